"""ALiBi: Press et al., Train Short, Test Long: Attention with Linear Biases (ICLR 2022).

b(i, j) = −r·|i − j|,   a fixed slope r per head
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longfire.encodings.base import DistanceBias, at_least_float32, per_head
from longfire.encodings.registry import register
from longfire.validation import at_least, positive


@register("alibi")
class ALiBi(DistanceBias):
    """A penalty that grows linearly with the distance, b(i, j) = −r·|i − j| (Press et al. 2022). Nothing is learned.

    Args:
        num_heads: number of attention heads.
        max_bias: the smallest slope is 2^−max_bias if num_heads is a power of two (MPT's name for it).
        slopes: r of each head. Default: the paper's geometric slopes.
    """

    takes = shown = ("num_heads",)
    symmetric = True
    smooth_beyond = 0  # linear
    slopes: Tensor

    def __init__(self, num_heads: int, *, max_bias: float = 8.0, slopes: Sequence[float] | None = None) -> None:
        super().__init__()
        at_least("num_heads", num_heads, 1)
        positive("max_bias", max_bias)
        self.num_heads = num_heads
        self.start = per_head("slopes", alibi_slopes(num_heads, max_bias) if slopes is None else slopes, num_heads)
        self.register_buffer("slopes", torch.empty(num_heads, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.slopes.copy_(torch.tensor(self.start, dtype=torch.float64))

    def of_distance(self, distance: Tensor) -> Tensor:
        dtype = self.compute_dtype
        return -self.slopes.to(dtype)[:, None, None] * distance.abs().to(dtype)


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> list[float]:
    """Geometric slopes 2^(−max_bias·h/H) for h = 1…H.

    If H is not a power of two: the slopes of the next lower power, then every other slope of the next higher one.
    """

    def geometric(heads: int) -> list[float]:
        return [2.0 ** (-max_bias * h / heads) for h in range(1, heads + 1)]

    below = 1 << (num_heads.bit_length() - 1)
    return geometric(below) + geometric(2 * below)[::2][: num_heads - below]
