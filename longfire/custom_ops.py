"""Wrap kernels as torch operators.

Compilers see an operator with a shape and a gradient. Eager mode calls the function directly: dispatching an operator
takes a tenth of a millisecond, longer than many kernels.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

PLAIN = (Tensor, nn.Parameter)
HAS_TRITON = find_spec("triton") is not None  # without importing it
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton interprets kernels on the CPU, which is slow and only for tests."""


def is_plain_linear(module: nn.Module, kind: type[nn.Module] = nn.Linear) -> TypeGuard[Any]:
    """Whether calling the module computes x·Wᵀ + b and nothing else, so that its weight may be read instead.

    False for adapters; parametrised, quantised or sharded layers; hooks; and a replaced forward.
    """
    return type(module) is kind and type(module.weight) in PLAIN and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module does more than run its class's `forward`."""
    return (
        "forward" in vars(module)
        or bool(module._forward_hooks or module._forward_pre_hooks)
        or bool(module._backward_hooks or module._backward_pre_hooks)
        or _has_any_global_hook()
    )


class Operator:
    """The operator `name`, which runs `function`.

    `fake` returns empty results of the right shapes; `setup` and `backward` define the gradient.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        fake: Callable[..., Any],
        setup: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
    ) -> None:
        self.function = function
        self.op = torch.library.custom_op(name, function, mutates_args=())
        self.op.register_fake(fake)
        self.eager: Any = None
        if backward is not None and setup is not None:
            self.op.register_autograd(backward, setup_context=setup)
            methods = {"forward": _saving(function, setup), "backward": _once(name, backward)}
            members = {part: staticmethod(method) for part, method in methods.items()}
            self.eager = type(name.rpartition(":")[2], (torch.autograd.Function,), members)

    def __call__(self, *arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if torch.compiler.is_compiling() or any(type(tensor) not in PLAIN for tensor in tensors):
            return self.op(*arguments)
        if self.eager is None or not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            with torch.no_grad():
                return self.function(*arguments)
        return self.eager.apply(*arguments)


def _saving(function: Callable[..., Any], setup: Callable[..., None]) -> Callable[..., Any]:
    """Forward and `setup` in one: given separately, torch inspects the signature of forward in every call."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        output = function(*arguments)
        setup(ctx, arguments, output)
        return output

    return forward


def _once(name: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    def backward_once(*arguments: Any) -> Any:
        if torch.is_grad_enabled():  # only while backward itself is being differentiated
            raise RuntimeError(
                f"{name} can be differentiated once, so create_graph=True is not supported. For second derivatives of "
                f"attention use impl='reference', with FIRE on the CPU."
            )
        return backward(*arguments)

    return backward_once
