"""Which positions the kernels can serve: each sequence's keys in order from 0, after padding that is masked.

Positions are looked at once per tensor: the answer is kept for the next layer. On a GPU this waits for the device.
"""

import weakref
from dataclasses import dataclass
from operator import is_

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How many places of padding each sequence has before its first key, (B,) int32; None: none has any."""

    shift: Tensor | None


_LAST: list[tuple[tuple[weakref.ref[Tensor], ...], tuple[int, ...], int, Layout | str]] = []
"""The tensors last looked at, their versions, the batch, and the answer."""
_KEPT = 4


def layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    """The layout, or why the kernels cannot serve these positions."""
    tensors = (q_positions, k_positions, *(() if key_mask is None else (key_mask,)))
    # nobody counts what is written to these
    if any(tensor.is_inference() or tensor.device.type == "cpu" for tensor in tensors):
        return _look(q_positions, k_positions, key_mask, B)
    now = tuple(tensor._version for tensor in tensors)
    for references, versions, batch, answer in _LAST:
        known = [reference() for reference in references]
        if (versions, batch, len(known)) == (now, B, len(tensors)) and all(map(is_, known, tensors)):
            return _pinned(answer)
    with torch.inference_mode(False):  # training may use the answer next
        answer = _look(q_positions, k_positions, key_mask, B)
    _LAST.insert(0, (tuple(weakref.ref(tensor) for tensor in tensors), now, B, answer))
    del _LAST[_KEPT:]
    return answer


_PINNED: dict[int, object] = {}
"""What CUDA graphs have seen: their replays will read it again."""


def _pinned(answer: "Layout | str") -> "Layout | str":
    if isinstance(answer, Layout) and answer.shift is not None and torch.cuda.is_current_stream_capturing():
        _PINNED[id(answer)] = answer
    return answer


def _look(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if T > S:
        return f"there are more queries ({T}) than keys ({S})"
    q, k = q_positions.expand(B, T).long(), k_positions.expand(B, S).long()
    index = torch.arange(S, device=k.device)
    kept = torch.ones(B, S, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    first = kept.int().argmax(1, keepdim=True)
    seeing = kept.any(1, keepdim=True)  # where there is no key, queries may be anywhere
    shift = torch.where(seeing, first - k.gather(1, first), 0)  # (B, 1)
    expected = torch.arange(S - T, S, device=k.device) - shift
    keys_fit = (~kept | (k == index - shift)).all() & (shift >= 0).all()
    queries_fit = ((q == expected) | ((expected < 0) & (q == 0)) | ~seeing).all()
    keys_ok, queries_ok, shifted = torch.stack([keys_fit, queries_fit, (shift != 0).any()]).tolist()
    if not keys_ok:
        return (
            "the positions of the keys do not go up one by one from 0 (padding before them is fine if key_mask hides "
            "it; several documents in one sequence are not: give each its own row)"
        )
    if not queries_ok:
        return (
            "the queries are not the last of the keys in order (queries of padding on the left must have position 0; "
            "with padding on the right leave positions out)"
        )
    return Layout(shift.squeeze(1).int() if shifted else None)
