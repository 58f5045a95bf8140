"""What can be told of positions by looking at them: once per tensor, with the answer kept for the next layer.

On a GPU a look waits for the device.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor

from longfire.encodings.positions import strictly_increase


def keys_increase(k_positions: Tensor, key_mask: Tensor | None) -> bool:
    """Whether the positions of the keys that the mask keeps strictly increase along each sequence."""
    return bool(_once(strictly_increase, k_positions, key_mask))


@dataclass(frozen=True)
class Layout:
    """How many places of padding each sequence has before its first key, (B,) int32; None: none has any."""

    shift: Tensor | None


def fused_layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    """Positions the fused kernels can serve, each sequence's keys in order from 0 after masked padding; or why not."""
    found: Layout | str = _once(_look, q_positions, k_positions, key_mask, B)
    shift = found.shift if isinstance(found, Layout) else None
    if shift is not None and shift.is_cuda and torch.cuda.is_current_stream_capturing():
        _PINNED[id(found)] = found
    return found


_PINNED: dict[int, object] = {}
"""What CUDA graphs have seen: their replays will read it again."""

_LAST: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
"""The questions last asked, of what (tensors as weak references and versions), and the answers."""
_KEPT = 8


def _once(look: Callable[..., Any], *arguments: Any) -> Any:
    """`look(*arguments)`, or its last answer if no tensor among them was written to since."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    # nobody counts what is written to these
    if any(tensor.is_inference() or tensor.device.type == "cpu" for tensor in tensors):
        return look(*arguments)
    rest = tuple(tensor._version for tensor in tensors), *(a for a in arguments if not isinstance(a, Tensor))
    for asked, (references, *others), answer in _LAST:
        known = [reference() for reference in references]
        same = asked is look and tuple(others) == rest and len(known) == len(tensors)
        if same and all(map(is_, known, tensors)):
            return answer
    with torch.inference_mode(False):  # training may use the answer next
        answer = look(*arguments)
        if isinstance(answer, Tensor):
            answer = answer.item()
    _LAST.insert(0, (look, (tuple(weakref.ref(tensor) for tensor in tensors), *rest), answer))
    del _LAST[_KEPT:]
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
