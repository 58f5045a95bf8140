"""The base class of all position encodings, and the optimiser groups for their parameters.

Shapes: B batch, H heads, T queries, S keys, D head size, C model width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from itertools import chain, islice
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from longfire.encodings.positions import can_check_values, check_pair, check_same_device
from longfire.validation import positive

LEAST_SMOOTH_BEYOND = 64
"""The fused engine rounds smaller values of `smooth_beyond` up to this."""
LOW_PRECISION = (torch.bfloat16, torch.float16)


class PositionEncoding(nn.Module):
    """Base class of all encodings: three hooks, `embed`, `rotate` and `bias`, that do nothing by default.

    A model calls all three and never asks which encoding it has. `encoding(q_positions, k_positions)` returns the bias
    and honours forward hooks and `encoding.compile()`; subclasses define `bias`.

    Positions are 0-based token indices: integer tensors of shape (T,) or (B, T).

    Parameters stay in float32 when a model is cast to bfloat16 or float16: they are few, and every query and key
    depends on them.
    """

    title: ClassVar[str] = ""
    """Display name, if it is not the class name."""

    scope: ClassVar[Literal["model", "layer"]] = "layer"
    """`"model"`: one instance for the whole model; `"layer"`: one per layer, unless the model shares it."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Constructor arguments that the model supplies: any of num_heads, head_dim, width and max_length."""

    free: ClassVar[tuple[str, ...]] = ()
    """Options that may change after training, because no learned weight depends on them."""

    aliases: ClassVar[dict[str, str]] = {}
    """Options of `build_encoding` that differ in name from the constructor argument: option → argument."""

    shown: ClassVar[tuple[str, ...]] = ()
    """Attributes shown in the repr."""

    example: ClassVar[dict[str, Any]] = {}
    """Values of required options, for demonstrations and tests."""

    distance_only: bool = False
    """Whether the bias depends only on i − j."""

    bidirectional: bool = False
    """Whether it tells keys after the query from keys before it."""

    symmetric: bool = False
    """Whether it treats keys after the query like keys before it by design, as a function of |i − j| does."""

    smooth_beyond: int | None = None
    """Distance W beyond which the fused engine may interpolate the bias linearly. None: never.

    Samples are at most 2/W of the distance apart along a row and 4/W of the query's position apart along a diagonal:
    4 keys at distance 256 for W = 128. A larger W is more exact and slower. A bias of the distance alone is known at
    every distance, and only what lies between a few pairs of a tile is interpolated.
    """

    bounded: bool = False
    """Whether a bias of the distance is nowhere far above that of the nearest keys: float16 then holds all of a head's
    biases relative to one number, and with `smooth_beyond`, the fused engine interpolates them in long sequences."""

    max_length: int | None = None
    """The number of positions. None: unlimited."""

    __call__: Callable[..., Tensor | None]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add absolute positions to token embeddings: (B, T, C) → (B, T, C)."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys by their positions: (B, H, T, D) → (B, H, T, D)."""
        return x

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """The bias added to the scaled logits: (H, T, S), (B, H, T, S) for batched positions, or None.

        In float32, or float64 if the parameters are, regardless of autocast. Keys after the query have finite values;
        attention masks them.
        """
        return None

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """The bias, or None for NoPE. Raises for encodings that use `rotate` or `embed` instead."""
        self.refuse_without_bias()
        return self.bias(q_positions, k_positions)

    @property
    def has_bias(self) -> bool:
        """Whether the encoding defines `bias`."""
        return type(self).bias is not PositionEncoding.bias

    def refuse_without_bias(self) -> None:
        """Refuse an encoding that uses `rotate` or `embed` where a bias is expected: its positions would be lost."""
        if self.has_bias:
            return
        calls = {
            "rotate": "q = encoding.rotate(q, q_positions) and k = encoding.rotate(k, k_positions)",
            "embed": "x = encoding.embed(x, positions), on the token embeddings",
        }
        hooks = [calls[hook] for hook in calls if getattr(type(self), hook) is not getattr(PositionEncoding, hook)]
        if hooks:
            raise ValueError(
                f"{type(self).__name__} has no bias for attention to add. Call {', and '.join(hooks)}; pass no bias."
            )

    def refuse_causal_only(self) -> None:
        """Refuse an encoding for keys up to the query where later keys are seen: it would confuse the two sides."""
        if self.bidirectional or self.symmetric:
            return
        name = type(self).__name__
        if "bidirectional" in signature(type(self)).parameters:
            remedy = f"Build it with {name}(…, bidirectional=True)"
        else:
            remedy = f"Declare bidirectional = True in {name} if its bias can, or symmetric = True if it need not"
        raise ValueError(
            f"{name} cannot tell keys after the query from keys before it, as causal=False requires. {remedy}, or use "
            f"an encoding of |i − j| such as ALiBi."
        )

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)

    def reset_parameters(self) -> None:
        """Initialise parameters and buffers."""

    @property
    def compute_dtype(self) -> torch.dtype:
        tensors = (*self.parameters(), *self.buffers())
        return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32

    def check(self, q_positions: Tensor, k_positions: Tensor) -> None:
        """Refuse invalid positions, a wrong device, and parameters that are not finite."""
        check_pair(q_positions, k_positions)
        for tensor in islice(chain(self.parameters(), self.buffers()), 1):  # all on one device
            check_same_device("positions are", q_positions, f"{type(self).__name__} is", tensor)
        if q_positions.device.type != "cpu":
            return
        for name, parameter in self.named_parameters():
            if can_check_values(parameter) and not torch.isfinite(parameter).all():
                raise ValueError(
                    f"{type(self).__name__}.{name} is not finite (nan or inf): training diverged or the checkpoint is "
                    f"damaged. Load an earlier checkpoint, or lower the encoding's learning rate."
                )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if result.dtype in LOW_PRECISION and tensor.dtype not in LOW_PRECISION:
                return tensor.to(result.device)
            return result

        return super()._apply(keep_precision, recurse)  # type: ignore[no-any-return]


class EncodingLinear(nn.Module):
    """Does what `nn.Linear` does, but is none, so that it is left alone by what adapts or quantises linear layers."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `nn.Linear` does."""
        nn.Linear.reset_parameters(self)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class DistanceBias(PositionEncoding):
    """A bias that depends only on the distance i − j. Subclasses define `of_distance`."""

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
    """The values as floats; refuse anything but one finite number per head."""
    numbers = [float(value) for value in values]
    if len(numbers) != num_heads or not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{name} must be {num_heads} finite numbers, one per head, not {numbers}.")
    return numbers


def at_least_float32() -> torch.dtype:
    """The dtype of new parameters: at least float32, even if torch's default dtype is bfloat16."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Turn off autocast and, in eager mode, TF32 matrix products."""
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
    """All parameters of position encodings in `module`, each once, in order.

    Includes frozen ones, such as the originals of copies that PEFT trains; `parameter_groups` skips those.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, not {type(module).__name__}.")
    encodings = (m for m in module.modules() if isinstance(m, PositionEncoding))
    return list(dict.fromkeys(p for encoding in encodings for p in encoding.parameters()))


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float, position_lr: float | None = None
) -> list[dict[str, Any]]:
    """Optimiser groups of all trainable parameters, each once, in the same order in every process.

        torch.optim.AdamW(longfire.parameter_groups(model, lr=1e-3, weight_decay=0.1, position_lr=1e-2))

    Args:
        model: any module.
        lr: learning rate of the model.
        weight_decay: for matrices; vectors (biases, norms) and position encodings have none.
        position_lr: learning rate of the position encodings. Default: `lr`, which is too slow for their few
            parameters; three to ten times as much works well.
    """
    own = position_parameters(model)
    rates = {"lr": lr, "weight_decay": weight_decay, "position_lr": lr if position_lr is None else position_lr}
    for name, value in rates.items():
        positive(name, value, zero_too=True)
    owned = set(own)
    rest = [p for p in model.parameters() if p not in owned]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
        {"params": own, "lr": rates["position_lr"], "weight_decay": 0.0},
    ]
    trainable = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
    return [group for group in trainable if group["params"]]
