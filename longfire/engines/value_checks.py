"""Checks that read the values of tensors, once per tensor: the result is cached for the next layer.

On a GPU, reading values waits for the device. In a compiled or captured graph they are asynchronous assertions.
"""

import ctypes
import weakref
from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longfire.encodings.positions import has_values, is_transformed, unwrapped


def holds(condition: Callable[..., Tensor], *arguments: Tensor | None, message: str) -> bool:
    """Whether `condition(*arguments)` is true. Where that cannot be known yet, assert it with this message."""
    tensors = [argument for argument in arguments if argument is not None]
    if not all(map(has_values, tensors)):
        if not any(tensor.is_meta for tensor in tensors):
            torch._assert_async(condition(*arguments), message)
        return True
    if any(map(is_transformed, tensors)):
        return bool(unwrapped(condition(*arguments)).all())
    return bool(cached(condition, *arguments))


class _Entry(NamedTuple):
    """A call and its result."""

    function: Callable[..., Any]
    tensors: tuple[weakref.ref[Tensor], ...]
    rest: tuple[Any, ...]  # versions of the tensors, and the other arguments
    copies: tuple[Tensor, ...]
    result: Any


_CACHE: list[_Entry] = []
_CACHE_SIZE = 8
_PINNED: list[_Entry] = []
"""What CUDA graphs have captured and will read again."""
_ASSERTED: set[tuple[int, int]] = set()
"""Captures, and the copies that they have compared with the tensors."""
CHANGED = "positions, segment_ids and key_mask must not change between replays of a CUDA graph: capture it again"


def cached(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, from the cache if no tensor has been written to since.

    A CUDA graph keeps the result that it captured, and asserts at each replay that the tensors are still the same.
    """
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if any(tensor.is_inference() or tensor.device.type == "cpu" for tensor in tensors):
        return function(*arguments)  # inference tensors have no version; on a CPU reading is cheap
    capturing = torch.cuda.is_current_stream_capturing()
    rest = tuple(tensor._version for tensor in tensors), *(a for a in arguments if not isinstance(a, Tensor))
    for entry in _CACHE:
        known = [reference() for reference in entry.tensors]
        same = entry.function is function and entry.rest == rest and len(known) == len(tensors)
        if same and all(map(is_, known, tensors)):
            if capturing:
                _pin(entry, tensors)
            return entry.result
    with torch.inference_mode(False):  # training may use the result next
        result = function(*arguments)
        if isinstance(result, Tensor):
            result = result.item()
        if not capturing:
            copies = tuple(_copy(tensor) for tensor in tensors)
            _CACHE.insert(0, _Entry(function, tuple(map(weakref.ref, tensors)), rest, copies, result))
    del _CACHE[_CACHE_SIZE:]
    return result


def _copy(tensor: Tensor) -> Tensor:
    """A copy to compare with later: that of an earlier call with the same content, if there is one."""
    for entry in _CACHE:
        for known, version, copy in zip(entry.tensors, entry.rest[0], entry.copies, strict=True):
            if known() is tensor and version == tensor._version:
                return copy
    return tensor.clone()


def _pin(entry: _Entry, tensors: list[Tensor]) -> None:
    """Keep what is being captured, and assert in the graph, once for each tensor, that it still is what it was."""
    if not any(known is entry for known in _PINNED):
        _PINNED.append(entry)
    capture = _capture_id()
    for tensor, copy in zip(tensors, entry.copies, strict=True):
        if capture is None or (capture, id(copy)) not in _ASSERTED:
            torch._assert_async((tensor == copy).all(), CHANGED)
        if capture is not None:
            _ASSERTED.add((capture, id(copy)))  # the copy is kept with the entry, and so is its id


def _capture_id() -> int | None:
    """CUDA's number of the capture that is under way, which PyTorch does not tell; None if the driver cannot either."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    try:
        found = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2(
            stream, ctypes.byref(status), ctypes.byref(number), None, None, None
        )
    except (OSError, AttributeError):
        return None
    return number.value if found == 0 and status.value == 1 else None
