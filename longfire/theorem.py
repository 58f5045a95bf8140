"""Theorem 3.1 of the FIRE paper as code: ALiBi, Kerple, T5 and Sandwich, each rewritten as FIRE.

With L = L₀ all queries up to L₀ share one normaliser, so FIRE depends only on the distance, and the right ψ and f_θ
make it any of the four. They follow the proof, with two changes for floating point: T5's steps are half-way between two
distances, so that rounding cannot move a distance into the next bucket, and Kerple-power's r₁ stays an outer factor,
because the proof's r₁^(1/r₂) overflows for small r₂.
"""

from functools import singledispatch
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longfire.encodings import FIRE, T5, ALiBi, KerpleLog, KerplePower, PositionEncoding, Sandwich
from longfire.encodings.kerple import bounded
from longfire.validation import at_least, renamed


@renamed(max_length="exact_length")
def as_fire(encoding: PositionEncoding, exact_length: int) -> FIRE:
    """A FIRE whose bias equals this encoding's for all 0 < j ≤ i ≤ exact_length (Theorem 3.1).

    Supports ALiBi, both Kerples, T5 and Sandwich with any parameters; of a bidirectional T5, keys after the query
    (i < j ≤ exact_length) have the same bias, too. The result has its own trainable parameters, with
    the encoding's precision and device. Beyond `exact_length` it interpolates, as FIRE does.

    Args:
        encoding: the encoding to rewrite.
        exact_length: L₀. The biases are equal at 0-based positions below it.
    """
    at_least("exact_length", exact_length, 1)
    with torch.no_grad():
        fire = _construct(encoding, exact_length)
    fire.smooth_beyond = encoding.smooth_beyond  # same bias, same smoothness
    tensor = next(iter((*encoding.parameters(), *encoding.buffers())))
    return fire.to(tensor.device, encoding.compute_dtype)


class Step(nn.Module):
    """σ(x) = 1 for x ≥ 0, else 0."""

    def forward(self, x: Tensor) -> Tensor:
        return (x >= 0).to(x.dtype)


class Cosine(nn.Module):
    """σ(x) = cos x."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x)


class TheoremFIRE(FIRE):
    """FIRE with the proof's activations."""

    activations: ClassVar[dict[str, type[nn.Module]]] = {**FIRE.activations, "step": Step, "cos": Cosine}


class PerHeadLogFIRE(FIRE):
    """FIRE with a ψ per head, ψ_h(x) = log(c_h·x + 1), and a linear f_h(x) = v_h·x."""

    def __init__(self, c: Tensor, v: Tensor, **options: Any) -> None:
        super().__init__(len(c), hidden_layers=0, **options)
        self.mlp = nn.Sequential()
        self.c, self.v = nn.Parameter(c), nn.Parameter(v)

    def normalized_distance(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return super().normalized_distance(q_positions[..., None, :], k_positions[..., None, :])  # (…, H, T, S)

    def psi(self, x: Tensor) -> Tensor:
        return torch.log(torch.abs(self.c.to(x.dtype)[:, None, None] * x) + 1)

    def f(self, x: Tensor) -> Tensor:
        return self.v.to(x.dtype)[:, None, None] * x


class PerHeadPowerFIRE(FIRE):
    """FIRE with ψ(x) = x and one unit per head with a power as its activation: f_h(x) = v_h·(L₀·x)^{p_h}."""

    def __init__(self, v: Tensor, p: Tensor, length: int, **options: Any) -> None:
        super().__init__(len(v), hidden_layers=0, log=False, **options)
        self.mlp = nn.Sequential()
        self.length = length
        self.v, self.p = nn.Parameter(v), nn.Parameter(p)

    def f(self, x: Tensor) -> Tensor:
        unit = self.length * x.unsqueeze(-3)
        return self.v.to(x.dtype)[:, None, None] * unit ** self.p.to(x.dtype)[:, None, None]


@singledispatch
def _construct(encoding: PositionEncoding, length: int) -> FIRE:
    known = ", ".join(cls.__name__ for cls in _construct.registry if cls is not object)
    raise TypeError(
        f"{type(encoding).__name__} cannot be rewritten as FIRE. Theorem 3.1 covers biases that depend only on the "
        f"distance: {known}."
    )


def _exact(length: int) -> dict[str, Any]:
    """Options of every construction: L fixed at L₀, and no ε."""
    return {"threshold": "fixed", "init_L": float(length), "eps": 0.0}


@_construct.register
def _(encoding: ALiBi, length: int) -> FIRE:
    fire = FIRE(encoding.num_heads, hidden_layers=0, log=False, **_exact(length)).to(encoding.compute_dtype)
    (linear,) = fire.linears
    linear.weight.copy_(-encoding.slopes.to(encoding.compute_dtype)[:, None] * length)
    linear.bias.zero_()
    return fire


@_construct.register
def _(encoding: KerpleLog, length: int) -> FIRE:
    r1, r2 = (bounded(r.to(encoding.compute_dtype)) for r in (encoding.r1, encoding.r2))
    return PerHeadLogFIRE(r2.clone(), -r1 * torch.log1p(r2 * length), **_exact(length))


@_construct.register
def _(encoding: KerplePower, length: int) -> FIRE:
    dtype = encoding.compute_dtype
    r1, r2 = bounded(encoding.r1.to(dtype)), bounded(encoding.r2.to(dtype), most=2.0)
    return PerHeadPowerFIRE(-r1, r2.clone(), length, **_exact(length))


@_construct.register
def _(encoding: T5, length: int) -> FIRE:
    sides = 2 if encoding.bidirectional else 1
    table = encoding.table.unflatten(0, (sides, -1))  # (sides, K + 1, H): keys up to the query, keys after it
    bucket = encoding.buckets[-1 - encoding.max_distance :]  # of distances from 0 on
    starts = torch.searchsorted(bucket, torch.arange(1, table.shape[1], device=table.device))  # s_1…s_K
    fire = _two_layers(encoding, length, "step", weights=torch.full_like(starts, length, dtype=table.dtype))
    hidden, output = fire.linears
    hidden.bias.copy_(0.5 - starts.to(table.dtype))
    output.weight.copy_(table.diff(dim=1).transpose(1, 2).flatten(0, 1))  # (sides · H, K)
    output.bias.copy_(table[:, 0].flatten())
    return fire


@_construct.register
def _(encoding: Sandwich, length: int) -> FIRE:
    fire = _two_layers(encoding, length, "cos", weights=length * encoding.frequencies(encoding.scales.device))
    hidden, output = fire.linears
    hidden.bias.zero_()
    output.weight.copy_(encoding.scales[:, None].expand(-1, encoding.terms))
    output.bias.zero_()
    return fire


def _two_layers(encoding: T5 | Sandwich, length: int, activation: str, weights: Tensor) -> FIRE:
    """ψ(x) = x and one hidden layer with these input weights; the caller sets the rest."""
    options = {"hidden_layers": 1, "width": len(weights), "activation": activation, "log": False, **_exact(length)}
    fire = TheoremFIRE(encoding.num_heads, bidirectional=encoding.bidirectional, **options)
    fire = fire.to(weights.device, encoding.compute_dtype)
    fire.linears[0].weight.copy_(weights[:, None])
    return fire
