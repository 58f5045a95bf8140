"""Repeat an operator's launches without its Python, which often takes longer than its kernels run.

The second call with tensors of some shapes is recorded as the source of a Python function: a line for each tensor that
is created and each kernel that is launched. Further calls with tensors like these run that function instead.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MOST_TAPES = 256
"""Of an operator. A new one takes the place of the oldest."""
EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
}
"""What creates tensors; `torch.empty_strided` does the same in half the time."""
_THREAD = threading.local()
"""`recorder`: of the function that this thread is recording, or None."""


class Replayed:
    """A function that creates tensors and launches `Kernel`s, and does both alike whatever its tensors contain."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.tapes: dict[tuple[Any, ...], Callable[..., Any] | None] = {}
        self.lock = threading.Lock()  # backward runs in threads of its own

    def __call__(self, *arguments: Any) -> Any:
        key = tuple([_likeness(argument) for argument in arguments])
        tape = self.tapes.get(key)
        if tape is not None:
            return tape(*arguments)
        with self.lock:
            is_new = key not in self.tapes
            if is_new:
                self.tapes[key] = None
            if len(self.tapes) > MOST_TAPES:
                del self.tapes[next(iter(self.tapes))]
        if is_new:
            return self.function(*arguments)
        results, self.tapes[key] = record(self.function, arguments)
        return results


def _likeness(argument: Any) -> Any:
    """All that a launch depends on. (Triton compiles a kernel of its own for addresses that are multiples of 16.)"""
    if not isinstance(argument, Tensor):
        return argument
    return argument.shape, argument.stride(), argument.dtype, argument.device, argument.data_ptr() % 16


class Kernel:
    """A Triton kernel, by its `JITFunction`, whose launches can be recorded."""

    def __init__(self, jit: Any) -> None:
        self.jit = jit

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], /, **arguments: Any) -> None:
        compiled = self.jit[grid](**arguments)
        recorder = getattr(_THREAD, "recorder", None)
        if recorder is None:
            return
        own = [arguments.pop(name) for name in self.jit.arg_names]  # what is left are Triton's launch options
        interpreted = compiled is None
        launch = partial(self.jit[grid], **arguments) if interpreted else compiled[(*grid, 1, 1)[:3]]
        recorder.write(launch, own)


def record(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Callable[..., Any]]:
    """The function's results, and a faster function with the same results for arguments like these."""
    outer = getattr(_THREAD, "recorder", None)
    # two arguments may be the same tensor now and different ones in another call
    distinct = [argument.detach() if isinstance(argument, Tensor) else argument for argument in arguments]
    recorder = _THREAD.recorder = Recorder(distinct)
    try:
        with recorder:
            results = function(*distinct)
    finally:
        _THREAD.recorder = outer
    return results, recorder.tape(results) or function


class Recorder(TorchDispatchMode):
    """Writes down what a function does, as the source of another one."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.tensors: dict[int, tuple[Tensor, str]] = {}  # by id: keeps the tensor, so that no other has this id
        self.last_line: dict[str, int] = {}  # that uses a tensor
        self.replayable = True
        self.parameters = [f"argument{number}" for number in range(len(arguments))]
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if isinstance(argument, Tensor):
                self.tensors[id(argument)] = argument, parameter

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in EMPTY:
            args = tuple(result.shape), result.stride()
            function, kwargs = torch.empty_strided, {"dtype": result.dtype, "device": result.device}
        self.write(function, args, kwargs, result)
        return result

    def write(self, function: Callable[..., Any], args: Any, kwargs: Any = None, result: Any = None) -> None:
        """Add a line that calls the function."""
        sources = [self._source(value) for value in args]
        sources += [f"{name}={self._source(value)}" for name, value in (kwargs or {}).items()]
        target = "" if result is None else f"{self._target(result)} = "
        self.lines.append(f"{target}{self._constant(function)}({', '.join(sources)})")

    def tape(self, results: Any) -> Callable[..., Any] | None:
        """A function that does the same to its arguments; None if what was done depended on anything else."""
        returned = self._source(results)
        if not self.replayable:
            return None
        done: dict[int, list[str]] = {}
        for name, line in self.last_line.items():
            done.setdefault(line, []).append(name)
        body = [
            statement
            for number, line in enumerate(self.lines)
            for statement in (line, *(f"del {name}" for name in done.get(number, ())))
        ]
        on_gpu = next((name for tensor, name in self.tensors.values() if tensor.is_cuda), None)
        device = f"with {self._constant(torch.cuda.device_of)}({on_gpu})" if on_gpu else "if True"
        head = f"def tape({', '.join(self.parameters)}):\n  {device}:"
        exec("\n    ".join([head, *body, f"return {returned}"]), self.constants)
        tape: Callable[..., Any] = self.constants["tape"]
        return tape

    def _target(self, result: Any) -> str:
        """The names of new tensors, as the left side of an assignment."""
        if isinstance(result, list | tuple):
            return f"[{', '.join(map(self._target, result))}]"
        if not isinstance(result, Tensor):
            self.replayable = False  # the content of a tensor was read
            return "_"
        self.tensors.setdefault(id(result), (result, f"tensor{len(self.tensors)}"))
        return self._source(result)

    def _source(self, value: Any) -> str:
        """A value as it is written in source."""
        if isinstance(value, list | tuple):
            items = ", ".join(map(self._source, value))
            if isinstance(value, list):
                return f"[{items}]"
            named = hasattr(value, "_fields")
            return f"{self._constant(type(value))}({items})" if named else f"({items}{',' if value else ''})"
        if not isinstance(value, Tensor):
            return repr(value) if isinstance(value, int | str | None) else self._constant(value)
        if id(value) not in self.tensors:
            self.replayable = False
            return "_"
        name = self.tensors[id(value)][1]
        if name not in self.parameters:
            self.last_line[name] = len(self.lines)
        return name

    def _constant(self, value: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return name
