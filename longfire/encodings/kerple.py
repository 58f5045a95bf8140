"""Kerple: Chi et al., KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation (NeurIPS 2022).

    logarithmic: b(i, j) = −r₁·log(1 + r₂·|i − j|)        power: b(i, j) = −r₁·|i − j|^r₂

with r₁, r₂ > 0 learned per head, and r₂ ≤ 2 in the power variant. Initialisation and bounds follow the authors' code.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from longfire.encodings.base import DistanceBias, at_least_float32
from longfire.encodings.registry import register
from longfire.validation import at_least

LEAST = 0.01


class Kerple(DistanceBias):
    """Base class: r₁ and r₂ per head."""

    takes = shown = ("num_heads",)
    symmetric = True
    init_range: ClassVar[tuple[float, float]]
    """Upper ends of the uniform initialisation of r₁ and r₂, from 0."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        at_least("num_heads", num_heads, 1)
        self.num_heads = num_heads
        self.r1 = nn.Parameter(torch.empty(num_heads, dtype=at_least_float32()))
        self.r2 = nn.Parameter(torch.empty(num_heads, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.r1, 0, self.init_range[0])
        nn.init.uniform_(self.r2, 0, self.init_range[1])


@register("kerple_log")
class KerpleLog(Kerple):
    """A learned logarithmic penalty, b(i, j) = −r₁·log(1 + r₂·|i − j|) (Chi et al. 2022)."""

    title = "Kerple-log"
    init_range = (2.0, 1.0)
    bounded = True
    smooth_beyond = 128  # curvature ≤ r₁ / distance²

    def of_distance(self, distance: Tensor) -> Tensor:
        dtype = self.compute_dtype
        r1, r2 = bounded(self.r1.to(dtype)), bounded(self.r2.to(dtype))
        return -r1[:, None, None] * torch.log1p(r2[:, None, None] * distance.abs().to(dtype))


@register("kerple_power")
class KerplePower(Kerple):
    """A learned power-law penalty, b(i, j) = −r₁·|i − j|^r₂ (Chi et al. 2022)."""

    title = "Kerple-power"
    init_range = (1.0, 2.0)

    def of_distance(self, distance: Tensor) -> Tensor:
        dtype = self.compute_dtype
        r1, r2 = bounded(self.r1.to(dtype)), bounded(self.r2.to(dtype), most=2.0)
        return -r1[:, None, None] * distance.abs().to(dtype) ** r2[:, None, None]


def bounded(raw: Tensor, most: float | None = None) -> Tensor:
    """Clamp a parameter, with a straight-through gradient so that it can return from beyond its bounds."""
    return raw.detach().clamp(LEAST, most) + (raw - raw.detach())
