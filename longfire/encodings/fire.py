"""FIRE: Li et al., Functional Interpolation for Relative Positions improves Long Context Transformers (ICLR 2024).

    b(i, j) = f_θ( ψ(i − j) / ψ(max{L, i}) ),   ψ(x) = log(c·x + 1),   0 < j ≤ i

Both ways, for encoders: b(i, j) = f±( ψ(|i − j|) / ψ(max{L, i, j}) ), where f+ is for j ≤ i and f− for j > i.
Symbols: ψ is `psi`, f_θ is `mlp`, c is `c`, L is `L` = |L_multiplier · init_L|.
"""

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longfire.custom_ops import HAS_TRITON, is_plain_linear
from longfire.encodings.alibi import alibi_slopes
from longfire.encodings.base import (
    LEAST_SMOOTH_BEYOND,
    EncodingLinear,
    PositionEncoding,
    at_least_float32,
    full_precision,
    per_head,
)
from longfire.encodings.positions import is_transformed
from longfire.encodings.registry import register
from longfire.validation import at_least, one_of, positive

RANDOM, STARTS = "random", ("kerple_log", "alibi")
"""Values of `init`: random weights, or the encodings that FIRE can start as."""


@register("fire")
class FIRE(PositionEncoding):
    """An MLP of the query–key distance, normalised by the query's position to stay in [0, 1] (Li et al. 2024).

    b(i, j) = f_θ( ψ(i − j) / ψ(max{L, i}) ) with ψ(x) = log(c·x + 1)

    The defaults are the paper's. To extrapolate far, train with `init="kerple_log"`, `init_L` at a quarter of the
    training length and `horizon` at the training length.

    Args:
        num_heads: number of attention heads, and of the MLP's outputs.
        hidden_layers: of the MLP. Two in the paper's text, one in its listing; 0 is a linear map, as in its ablation.
        width: of the hidden layers (`mlp_width` in `build_encoding`, where `width` is the model's).
        activation: `"relu"` or `"gelu"`.
        final_activation: also apply the activation to the output.
        log: use ψ(x) = log(c·x + 1) with a learned c; otherwise ψ(x) = x.
        threshold: whether L is `"learned"` or `"fixed"`; None normalises by ψ(i) at every position.
        init_c: initial c. Default: 0.1, or 1.0 with `init="kerple_log"`.
        init_L: initial L. A quarter of the training length works well; with L at the training length or above,
            training never interpolates.
        init: `"random"` (the paper), or `"kerple_log"` or `"alibi"` to start as that encoding (see `init_as`).
            Loading weights overrides it.
        bidirectional: for attention that is not causal: keys after the query have a bias of their own,
            f±( ψ(|i − j|) / ψ(max{L, i, j}) ). The MLP has 2·num_heads outputs, first those for keys up to the query;
            c and L are shared, and both sides start alike.
        first_position: number of the first token. The paper counts from 1, its listing from 0.
        eps: added to the normaliser.
        horizon: the position, in tokens, at which the normaliser stops growing: ψ(min{max{L, i}, horizon}). None (the
            paper): never. A horizon at the training length does not affect training while L stays below it, and past
            it distances keep the meaning they had in training. It is not in the state dict, so weights load with any
            horizon. A horizon below L makes the normaliser constant and L untrainable; below init_L, FIRE warns.
        smooth_beyond: distance beyond which the fused engine interpolates the bias linearly over a few keys; at least
            64, rounded up to a power of two. Larger is more exact and slower. None: never, so `attention` uses another
            engine; all others are exact. It is not in the state dict either.

    `FIRE(num_heads, hidden_layers=1, first_position=0)` is the paper's listing, bit for bit, and loads its state dicts.
    """

    takes = ("num_heads",)
    shown = (
        "num_heads", "log", "threshold", "init", "activation", "final_activation", "first_position", "eps",
        "bidirectional",
    )  # fmt: skip
    free = ("horizon", "init", "smooth_beyond")
    aliases: ClassVar[dict[str, str]] = {"mlp_width": "width"}
    init_L: Tensor

    activations: ClassVar[dict[str, type[nn.Module]]] = {"relu": nn.ReLU, "gelu": nn.GELU}

    def __init__(
        self,
        num_heads: int,
        *,
        hidden_layers: int = 2,
        width: int = 32,
        activation: str = "relu",
        final_activation: bool = False,
        log: bool = True,
        threshold: Literal["learned", "fixed"] | None = "learned",
        init_c: float | None = None,
        init_L: float = 512.0,
        init: str = RANDOM,
        bidirectional: bool = False,
        first_position: int = 1,
        eps: float = 1e-6,
        horizon: int | None = None,
        smooth_beyond: int | None = 128,
    ) -> None:
        super().__init__()
        at_least("num_heads", num_heads, 1)
        at_least("hidden_layers", hidden_layers, 0)
        at_least("width", width, 1)
        at_least("first_position", first_position, 0)
        one_of("log", log, (True, False))
        one_of("final_activation", final_activation, (True, False))
        one_of("bidirectional", bidirectional, (True, False))
        one_of("activation", activation, self.activations)
        one_of("threshold", threshold, ("learned", "fixed", None))
        one_of("init", init, (RANDOM, *STARTS))
        if init_c is not None:
            positive("init_c", init_c)
        positive("init_L", init_L)
        positive("eps", eps, zero_too=True)
        if horizon is not None:
            at_least("horizon", horizon, 1)
            if threshold is not None and init_L > horizon:
                warnings.warn(
                    f"horizon={horizon} is below init_L={init_L:g}: FIRE's normaliser is then ψ({horizon}) for every "
                    f"query, and L has no effect. Use an init_L of at most {horizon} (a quarter of the training length "
                    f"works well), or horizon=None.",
                    stacklevel=2,
                )
        if smooth_beyond is not None:
            at_least("smooth_beyond", smooth_beyond, LEAST_SMOOTH_BEYOND)
        self.num_heads, self.first_position, self.eps, self.horizon = num_heads, first_position, eps, horizon
        self.smooth_beyond, self.bidirectional = smooth_beyond, bidirectional
        self.log, self.threshold, self.init, self.init_c = log, threshold, init, init_c
        self.activation, self.final_activation = activation, final_activation
        self.starting_L = init_L  # loading weights overwrites the buffer init_L

        sizes = [1, *[width] * hidden_layers, 2 * num_heads if bidirectional else num_heads]
        self.widest = max(sizes)
        dtype = at_least_float32()
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layers += [EncodingLinear(size_in, size_out, dtype), self.activations[activation]()]
        self.mlp = nn.Sequential(*(layers if final_activation else layers[:-1]))
        if log:
            self.c = nn.Parameter(torch.empty(1, dtype=dtype))  # shape (1,): sharded training refuses scalars
        if threshold is not None:
            self.register_buffer("init_L", torch.empty(1, dtype=dtype))
        if threshold == "learned":
            self.L_multiplier = nn.Parameter(torch.empty(1, dtype=dtype))
        self.register_load_state_dict_pre_hook(_scalars_to_vectors)
        self.register_load_state_dict_pre_hook(_check_sides)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for layer in self.linears:
            layer.reset_parameters()
        if self.bidirectional:  # both sides start alike
            for tensor in (self.linears[-1].weight, self.linears[-1].bias):
                tensor[self.num_heads :] = tensor[: self.num_heads]
        if self.log:
            self.c.fill_(0.1 if self.init_c is None else self.init_c)
        if self.threshold is not None:
            self.init_L.fill_(self.starting_L)
        if self.threshold == "learned":
            self.L_multiplier.fill_(1.0)
        if self.init != RANDOM:
            self.init_as(self.init)

    @property
    def linears(self) -> list[EncodingLinear]:
        """The MLP's linear layers."""
        return [layer for layer in self.mlp if isinstance(layer, EncodingLinear)]

    @property
    def L(self) -> Tensor | None:
        """The threshold, shape (1,), or None."""
        if self.threshold is None:
            return None
        dtype = self.compute_dtype
        init = self.init_L.to(dtype)
        return torch.abs(self.L_multiplier.to(dtype) * init) if self.threshold == "learned" else init

    def psi(self, x: Tensor) -> Tensor:
        """ψ of a distance or position ≥ 0. Not log1p, to match the listing bit for bit; still finite as c → 0."""
        return torch.log(torch.abs(self.c.to(x.dtype) * x) + 1) if self.log else x

    def normalized_distance(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """The MLP's input ψ(i − j) / ψ(max{L, i}): (T, S) or (B, T, S), in [0, 1] for j ≤ i up to the horizon.

        If bidirectional, ψ(|i − j|) / ψ(max{L, i, j}).
        """
        dtype = self.compute_dtype
        distance = (q_positions[..., :, None] - k_positions[..., None, :]).abs().to(dtype)  # exact: integers
        position = (q_positions.long() + self.first_position)[..., :, None].to(dtype)  # (…, T, 1)
        normalizer = self._normalizer(position)
        if self.bidirectional:
            k_position = (k_positions.long() + self.first_position)[..., None, :].to(dtype)  # (…, 1, S)
            later = is_later(q_positions, k_positions)
            normalizer = torch.where(later, self._normalizer(k_position), normalizer)
        return self.psi(distance) / normalizer

    def _normalizer(self, position: Tensor) -> Tensor:
        """ψ(min{max{L, i}, horizon}) + ε for positions i."""
        L = self.L
        if L is not None:
            position = torch.maximum(position, L)
        if self.horizon is not None:
            position = position.clamp(max=self.horizon)
        normalizer = self.psi(position) + self.eps
        # where ψ(i) vanishes, so does ψ of every smaller distance: 0 / 0 becomes 0
        return normalizer.clamp(min=1e-6) if self.eps == 0 else normalizer

    def f(self, x: Tensor) -> Tensor:
        """The MLP f_θ: (…, T, S) → (…, H, T, S), or 2·H of both sides."""
        x = x.unsqueeze(-1)
        for layer in self.mlp:
            x = _linear(x, layer) if is_plain_linear(layer, EncodingLinear) else layer(x)
        return x.movedim(-1, -3)

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        self.check(q_positions, k_positions)
        if HAS_TRITON and q_positions.is_cuda:
            from longfire.encodings.kernels.fire import fire_bias, serves

            if serves(self, q_positions):
                return fire_bias(self, q_positions, k_positions)
        needs_grad = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        with full_precision(q_positions.device):
            if (
                needs_grad
                or torch.compiler.is_compiling()
                or any(is_transformed(tensor) for tensor in (q_positions, k_positions, *self.parameters()))
            ):
                return self._bias(q_positions, k_positions)
            return self._bias_in_blocks(q_positions, k_positions)

    def _bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        bias = self.f(self.normalized_distance(q_positions, k_positions))
        if self.bidirectional:
            before, after = bias.chunk(2, dim=-3)
            bias = torch.where(is_later(q_positions, k_positions).unsqueeze(-3), after, before)
        return bias.contiguous()

    def _bias_in_blocks(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """The same bias a few rows at a time: the MLP's hidden layers take several times its memory."""
        T, S = q_positions.shape[-1], k_positions.shape[-1]
        batch = torch.broadcast_shapes(q_positions.shape[:-1], k_positions.shape[:-1])
        row_elements = max(1, math.prod(batch) * S * self.widest)
        rows = max(1, (1 << (26 if q_positions.is_cuda else 22)) // row_elements)
        if rows >= T:
            return self._bias(q_positions, k_positions)
        out = torch.empty(*batch, self.num_heads, T, S, dtype=self.compute_dtype, device=q_positions.device)
        for start in range(0, T, rows):
            block = q_positions[..., start : start + rows]
            out[..., start : start + rows, :] = self._bias(block, k_positions)
        return out

    @torch.no_grad()
    def init_as(self, name: str, *, slopes: Sequence[float] | None = None, c: float | None = None) -> Self:
        """Initialise as another encoding, by Theorem 3.1: equal biases for all i ≤ L, everything still trainable.

        `FIRE(…, init=name)` calls this. `"kerple_log"` is −slope·log(1 + c·(i − j)), with a slope per head (default:
        evenly spaced in (0, 2), the range of Kerple's own initialisation) and one c (default: `init_c`, or 1.0).
        `"alibi"`, which needs `log=False`, is −slope·(i − j) (default: ALiBi's slopes).

        In each hidden layer one unit passes x through, and only its output weights are non-zero. The other units keep
        their random input weights and join in once training moves their output weights.
        """
        one_of("init", name, STARTS)
        needs = {
            f"log={name == 'kerple_log'}": self.log == (name == "kerple_log"),
            "a threshold": self.threshold is not None,
            "activation='relu', final_activation=False": len(self.linears) > 0
            and isinstance(self.mlp[-1], EncodingLinear)
            and all(isinstance(layer, EncodingLinear | nn.ReLU) for layer in self.mlp),
            "no c, since log=False has none": self.log or c is None,
        }
        if missing := [need for need, met in needs.items() if not met]:
            raise ValueError(f"init={name!r} needs {' and '.join(missing)}, but this FIRE has {self.extra_repr()}.")
        if slopes is None and name == "kerple_log":
            slopes = [2 * (h + 0.5) / self.num_heads for h in range(self.num_heads)]
        elif slopes is None:
            slopes = alibi_slopes(self.num_heads)
        slope = torch.tensor(per_head("slopes", slopes, self.num_heads), dtype=self.compute_dtype)
        slope = slope.repeat(2 if self.bidirectional else 1)
        if self.log:
            c = next((value for value in (c, self.init_c) if value is not None), 1.0)
            positive("c", c)
            self.c.fill_(c)

        *hidden, output = self.linears
        for layer in hidden:
            layer.weight[0] = 0
            layer.weight[0, 0] = 1
            layer.bias[0] = 0
        zero = torch.zeros(1, dtype=slope.dtype, device=output.weight.device)
        normalizer = self._normalizer(zero)  # the same for all i ≤ L
        output.weight.zero_()
        output.weight[:, 0] = -slope.to(normalizer.device) * normalizer
        output.bias.zero_()
        return self

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}; free to change: horizon={self.horizon}, smooth_beyond={self.smooth_beyond}"


def is_later(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(…, T, S), True for keys after the query."""
    return k_positions[..., None, :] > q_positions[..., :, None]


def _linear(x: Tensor, layer: EncodingLinear) -> Tensor:
    """Apply the layer in x's precision."""
    weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
    if x.is_cuda and layer.in_features == 1:  # a TF32 matrix product would round distances to ten bits
        return x * weight[:, 0] + bias
    return F.linear(x, weight, bias)


def _scalars_to_vectors(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load the listing's 0-d c and L; here they have shape (1,)."""
    for name in ("c", "L_multiplier", "init_L"):
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and value.ndim == 0:
            state[prefix + name] = value.reshape(1)


def _check_sides(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Refuse a state dict saved with the other value of `bidirectional`."""
    assert isinstance(module, FIRE)
    saved = state.get(f"{prefix}mlp.{2 * len(module.linears) - 2}.weight")
    other = module.num_heads * (1 if module.bidirectional else 2)
    if isinstance(saved, Tensor) and len(saved) == other:
        where = prefix.rstrip(".") or type(module).__name__
        rest[-1].append(
            f"{where} was saved with {other} outputs of its MLP, one per head or, with bidirectional=True, two. This "
            f"one has num_heads={module.num_heads}, bidirectional={module.bidirectional}."
        )
