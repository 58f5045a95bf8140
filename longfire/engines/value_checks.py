"""Checks that read the values of tensors, once per tensor: the result is cached for the next layer.

On a GPU, reading values waits for the device. In a compiled or captured graph they are asynchronous assertions.
"""

import weakref
from collections.abc import Callable
from operator import is_
from typing import Any

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


_CACHE: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
"""The latest calls: function, arguments (tensors as weak references and versions) and result."""
_CACHE_SIZE = 8


def cached(function: Callable[..., Any], *arguments: Any) -> Any:
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
