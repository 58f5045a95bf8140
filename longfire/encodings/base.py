"""What every position encoding is: three hooks, each doing nothing by default.

Dimensions: B batch, H heads, T queries, S keys, D head size, C model width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from longfire.encodings.positions import can_check_values, check_pair, check_same_device
from longfire.validation import positive

LEAST_SMOOTH_BEYOND = 64
"""The least `smooth_beyond` that the fused engine honours; it takes a smaller one as this."""
LOW_PRECISION = (torch.bfloat16, torch.float16)


class PositionEncoding(nn.Module):
    """Base of all encodings. A model calls all three hooks and never asks which encoding it has.

    `encoding(q_positions, k_positions)` is its bias, with forward hooks and `encoding.compile()` honoured; subclasses
    define `bias`.

    Positions are 0-based token indices: integer tensors of shape (T,) or (B, T).

    When a model is cast to bfloat16 or float16, the encoding's parameters stay in float32: a bias is a few numbers that
    every query and key depends on.
    """

    title: ClassVar[str] = ""
    """As a person writes it, where that is not the class's name."""

    scope: ClassVar[Literal["model", "layer"]] = "layer"
    """`"model"`: one instance serves the whole model; `"layer"`: every layer has its own, unless it is shared."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Which of num_heads, head_dim, width and max_length the constructor takes from the model."""

    free: ClassVar[tuple[str, ...]] = ()
    """Options that a trained model may be given, or rid of: they say how it is used, not what it has learned."""

    aliases: ClassVar[dict[str, str]] = {}
    """Options that `build_encoding` knows by another name than the constructor does."""

    example: ClassVar[dict[str, Any]] = {}
    """Options to show and test it with, where the constructor has some that must be given."""

    distance_only: bool = False
    """The bias depends on i − j alone."""

    smooth_beyond: int | None = None
    """A distance W from which straight lines over a few keys are as good as the bias. None: unknown, or never.

    The fused engine then draws them over gaps of up to 2/W of the distance and, at one distance, of up to 4/W of the
    query's position: over 4 keys at distance 256 for a W of 128. A larger W is more exact and slower.
    """

    max_length: int | None = None
    """How many positions there are. None: any number."""

    __call__: Callable[..., Tensor | None]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token embeddings (B, T, C) → the same with absolute positions added."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (B, H, T, D) → the same, turned by their positions."""
        return x

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """What is added to the scaled logits: (H, T, S), (B, H, T, S) for batched positions, or None.

        In float32, or float64 if the parameters are, whatever autocast says. Keys after the query get finite values;
        attention masks them.
        """
        return None

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """The bias; None for NoPE. An encoding that works by `rotate` or `embed` instead is refused."""
        self.refuse_without_bias()
        return self.bias(q_positions, k_positions)

    @property
    def has_bias(self) -> bool:
        """Whether `bias` does anything."""
        return type(self).bias is not PositionEncoding.bias

    def refuse_without_bias(self) -> None:
        """Refuse, where a bias is wanted, an encoding whose positions come in another way and would be lost."""
        if self.has_bias:
            return
        hooks = [
            call
            for hook, call in (
                ("rotate", "q = encoding.rotate(q, q_positions) and k = encoding.rotate(k, k_positions)"),
                ("embed", "x = encoding.embed(x, positions), on the token embeddings"),
            )
            if getattr(type(self), hook) is not getattr(PositionEncoding, hook)
        ]
        if hooks:
            raise ValueError(
                f"{type(self).__name__} has no bias for attention to add. Call {', and '.join(hooks)}; then leave the "
                f"bias out."
            )

    def reset_parameters(self) -> None:
        """Give parameters and buffers their starting values again."""

    @property
    def compute_dtype(self) -> torch.dtype:
        tensors = (*self.parameters(), *self.buffers())
        return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32

    def check(self, q_positions: Tensor, k_positions: Tensor) -> None:
        """Refuse what `bias` cannot serve: bad positions, another device, parameters that are not finite."""
        check_pair(q_positions, k_positions)
        for tensor in islice(chain(self.parameters(), self.buffers()), 1):  # they are in one place
            check_same_device("positions are", q_positions, f"{type(self).__name__} is", tensor)
        if q_positions.device.type != "cpu":
            return
        for name, parameter in self.named_parameters():
            if can_check_values(parameter) and not torch.isfinite(parameter).all():
                raise ValueError(
                    f"{type(self).__name__}.{name} is not finite (nan or inf): training diverged or a checkpoint is "
                    f"damaged. Load an earlier checkpoint, or lower the encoding's learning rate."
                )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if result.dtype in LOW_PRECISION and tensor.dtype not in LOW_PRECISION:
                return tensor.to(result.device)
            return result

        return super()._apply(keep_precision, recurse)  # type: ignore[no-any-return]


class DistanceBias(PositionEncoding):
    """A bias of the distance i − j alone. Subclasses say what it is in `of_distance`."""

    distance_only = True

    def of_distance(self, distance: Tensor) -> Tensor:
        """Integer distances (…, 1, T, S), negative for keys after the query → biases (…, H, T, S)."""
        raise NotImplementedError(f"{type(self).__name__} must define of_distance")

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        self.check(q_positions, k_positions)
        distance = q_positions[..., :, None] - k_positions[..., None, :]  # (…, T, S)
        with full_precision(distance.device):
            return self.of_distance(distance.unsqueeze(-3))


def per_head(name: str, values: Sequence[float], num_heads: int) -> list[float]:
    """One finite number per head, or an error."""
    numbers = [float(value) for value in values]
    if len(numbers) != num_heads or not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{name} must be {num_heads} finite numbers, one per head, not {numbers}.")
    return numbers


def at_least_float32() -> torch.dtype:
    """The dtype for new parameters: float32 even where a model is built under a bfloat16 default."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off on this device, and no TF32 products (which a compiled graph decides for itself)."""
    if device.type == "meta":
        return nullcontext()
    if device.type == "cuda" and not torch.compiler.is_compiling():
        return _no_autocast_no_tf32()
    return torch.autocast(device.type, enabled=False)


@contextmanager
def _no_autocast_no_tf32() -> Iterator[None]:
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "ieee"
    try:
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        products.fp32_precision = before


def position_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that belong to position encodings inside `module` and inside wrappers there, each once, in order.

    Frozen ones are among them, such as the original beside the copy that PEFT trains. `parameter_groups` makes an
    optimiser group of those that learn.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"position_parameters takes a module, not {type(module).__name__}.")
    encodings = (m for m in module.modules() if isinstance(m, PositionEncoding))
    return list(dict.fromkeys(p for encoding in encodings for p in encoding.parameters()))


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float, position_lr: float | None = None
) -> list[dict[str, Any]]:
    """Optimiser groups of all parameters that learn, each once and in the same order in every process.

        torch.optim.AdamW(longfire.parameter_groups(model, lr=1e-3, weight_decay=0.1, position_lr=1e-2))

    Args:
        model: any module.
        lr: learning rate of the model.
        weight_decay: of its matrices; vectors (biases, norms) and position encodings have none.
        position_lr: learning rate of the position encodings' own parameters, which are few and learn too little at the
            model's rate: three to ten times that serves well. None: `lr`.
    """
    own = position_parameters(model)  # which refuses what is no module
    positive("lr", lr, zero_too=True)
    positive("weight_decay", weight_decay, zero_too=True)
    if position_lr is not None:
        positive("position_lr", position_lr, zero_too=True)
    owned = set(own)
    rest = [p for p in model.parameters() if p not in owned]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
        {"params": own, "lr": lr if position_lr is None else position_lr, "weight_decay": 0.0},
    ]
    learning = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
    return [group for group in learning if group["params"]]
