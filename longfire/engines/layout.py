"""Facts about positions that take a look at their values: one look per tensor, cached for the next layer.

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
    return bool(_cached(strictly_increase, k_positions, key_mask))


@dataclass(frozen=True)
class Layout:
    """How much padding each sequence has before its first key, (B,) int32; None: no sequence has any."""

    shift: Tensor | None


def fused_layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    """The layout if the fused kernels can serve it (keys in order from 0 after masked padding); otherwise why not."""
    found: Layout | str = _cached(_fused_layout, q_positions, k_positions, key_mask, B)
    shift = found.shift if isinstance(found, Layout) else None
    if shift is not None and shift.is_cuda and torch.cuda.is_current_stream_capturing():
        _PINNED[id(found)] = found
    return found


_PINNED: dict[int, object] = {}
"""What CUDA graphs have captured: replays read it again."""

_ANSWERS: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
"""The latest questions, their arguments (tensors as weak references and versions) and answers."""
_KEPT = 8


def _cached(look: Callable[..., Any], *arguments: Any) -> Any:
    """`look(*arguments)`, or its last answer if no tensor has been written to since."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if any(tensor.is_inference() or tensor.device.type == "cpu" for tensor in tensors):
        return look(*arguments)  # inference tensors have no version; on a CPU a look is cheap
    rest = tuple(tensor._version for tensor in tensors), *(a for a in arguments if not isinstance(a, Tensor))
    for asked, (references, *others), answer in _ANSWERS:
        known = [reference() for reference in references]
        same = asked is look and tuple(others) == rest and len(known) == len(tensors)
        if same and all(map(is_, known, tensors)):
            return answer
    with torch.inference_mode(False):  # training may use the answer next
        answer = look(*arguments)
        if isinstance(answer, Tensor):
            answer = answer.item()
    _ANSWERS.insert(0, (look, (tuple(weakref.ref(tensor) for tensor in tensors), *rest), answer))
    del _ANSWERS[_KEPT:]
    return answer


def _fused_layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if T > S:
        return f"there are more queries ({T}) than keys ({S})"
    q, k = q_positions.expand(B, T).long(), k_positions.expand(B, S).long()
    index = torch.arange(S, device=k.device)
    kept = torch.ones(B, S, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    first = kept.int().argmax(1, keepdim=True)
    seeing = kept.any(1, keepdim=True)  # without any key, queries may be anywhere
    shift = torch.where(seeing, first - k.gather(1, first), 0)  # (B, 1)
    expected = torch.arange(S - T, S, device=k.device) - shift
    keys_fit = (~kept | (k == index - shift)).all() & (shift >= 0).all()
    queries_fit = ((q == expected) | ((expected < 0) & (q == 0)) | ~seeing).all()
    keys_ok, queries_ok, shifted = torch.stack([keys_fit, queries_fit, (shift != 0).any()]).tolist()
    if not keys_ok:
        return (
            "key positions do not go up one by one from 0 (padding before them is fine if key_mask hides it; several "
            "documents in one sequence are not: give each its own row)"
        )
    if not queries_ok:
        return (
            "the queries are not the last of the keys in order (queries of left padding must be at position 0; with "
            "right padding, leave positions out)"
        )
    return Layout(shift.squeeze(1).int() if shifted else None)
