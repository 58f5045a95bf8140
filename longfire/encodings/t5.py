"""T5's relative position bias: Raffel et al., Exploring the Limits of Transfer Learning (JMLR 2020).

b(i, j) = r_k for the bucket k of i − j: one distance per bucket at first, then logarithmically wider buckets
"""

import math

import torch
from torch import Tensor, nn

from longfire.encodings.base import DistanceBias, at_least_float32
from longfire.encodings.registry import register
from longfire.validation import at_least


@register("t5")
class T5(DistanceBias):
    """A learned bias per head and bucket of distances (Raffel et al. 2020); the last bucket is open-ended.

    Args:
        num_heads: number of attention heads.
        num_buckets: half of them contain one distance each (K + 1 in the FIRE paper, which uses 64).
        max_distance: distances from here on share the last bucket (L₁ in the FIRE paper).
    """

    takes = ("num_heads",)
    shown = ("num_heads", "num_buckets", "max_distance")
    buckets: Tensor

    def __init__(self, num_heads: int, *, num_buckets: int = 64, max_distance: int = 128) -> None:
        super().__init__()
        at_least("num_heads", num_heads, 1)
        at_least("num_buckets", num_buckets, 2)
        at_least(f"max_distance (above half of num_buckets={num_buckets})", max_distance, num_buckets // 2 + 1)
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.smooth_beyond = max_distance  # a step function up to here, then constant
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads, dtype=at_least_float32()))
        self.register_buffer("buckets", torch.empty(max_distance + 1, dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)
        self.buckets.copy_(bucket_of_distance(self.num_buckets, self.max_distance))

    def of_distance(self, distance: Tensor) -> Tensor:
        buckets = self.buckets.long()  # transformers loads them as float32 into bfloat16 models
        by_distance = self.table.to(self.compute_dtype)[buckets].T  # (H, max_distance + 1)
        biases = by_distance[:, distance.squeeze(-3).clamp(0, self.max_distance).long()]  # (H, …, T, S)
        return biases.movedim(0, -3)


def bucket_of_distance(num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of every distance from 0 to max_distance.

    Logarithms are float32 on the CPU, as in public implementations: at a bucket's edge rounding decides, and devices
    must agree.
    """
    exact = num_buckets // 2
    distance = torch.arange(max_distance + 1)
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    wide = (exact + (ratio * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, wide)
