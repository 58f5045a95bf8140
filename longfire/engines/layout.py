"""Checks that read the values of positions, once per tensor: the result is cached for the next layer.

On a GPU, reading values waits for the device.
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
    """The layout if the fused kernels support it (keys in order from 0, after masked padding); otherwise why not."""
    found: Layout | str = _cached(_fused_layout, q_positions, k_positions, key_mask, B)
    shift = found.shift if isinstance(found, Layout) else None
    if shift is not None and shift.is_cuda and torch.cuda.is_current_stream_capturing():
        _PINNED[id(found)] = found
    return found


_PINNED: dict[int, object] = {}
"""Layouts that CUDA graphs have captured and will read again."""

_CACHE: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
"""The latest calls: function, arguments (tensors as weak references and versions) and result."""
_CACHE_SIZE = 8


def _cached(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, from the cache if no tensor has been written to since."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if any(tensor.is_inference() or tensor.device.type == "cpu" for tensor in tensors):
        return function(*arguments)  # inference tensors have no version; on a CPU reading is cheap
    rest = tuple(tensor._version for tensor in tensors), *(a for a in arguments if not isinstance(a, Tensor))
    for called, (references, *others), result in _CACHE:
        known = [reference() for reference in references]
        same = called is function and tuple(others) == rest and len(known) == len(tensors)
        if same and all(map(is_, known, tensors)):
            return result
    with torch.inference_mode(False):  # training may use the result next
        result = function(*arguments)
        if isinstance(result, Tensor):
            result = result.item()
    _CACHE.insert(0, (function, (tuple(weakref.ref(tensor) for tensor in tensors), *rest), result))
    del _CACHE[_CACHE_SIZE:]
    return result


def _fused_layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if T > S:
        return f"there are more queries ({T}) than keys ({S})"
    q, k = q_positions.expand(B, T).long(), k_positions.expand(B, S).long()
    index = torch.arange(S, device=k.device)
    kept = torch.ones(B, S, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    first = kept.int().argmax(1, keepdim=True)
    has_keys = kept.any(1, keepdim=True)  # without any, queries may be anywhere
    shift = torch.where(has_keys, first - k.gather(1, first), 0)  # (B, 1)
    expected = torch.arange(S - T, S, device=k.device) - shift
    keys_fit = (~kept | (k == index - shift)).all() & (shift >= 0).all()
    queries_fit = ((q == expected) | ((expected < 0) & (q == 0)) | ~has_keys).all()
    keys_ok, queries_ok, shifted = torch.stack([keys_fit, queries_fit, (shift != 0).any()]).tolist()
    if not keys_ok:
        return (
            "key positions do not go up one by one from 0 (padding before them is fine if key_mask hides it; put each "
            "document in its own row)"
        )
    if not queries_ok:
        return (
            "the queries are not the last of the keys in order (put queries of left padding at position 0; with right "
            "padding, pass no positions)"
        )
    return Layout(shift.squeeze(1).int() if shifted else None)
