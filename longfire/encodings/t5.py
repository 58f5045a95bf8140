"""T5's relative position bias: Raffel et al., Exploring the Limits of Transfer Learning (JMLR 2020).

b(i, j) = r_k for the bucket k of i − j: one distance per bucket at first, then logarithmically wider buckets; in an
encoder, half of the buckets are for keys after the query
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from longfire.encodings.base import DistanceBias, at_least_float32
from longfire.encodings.registry import register
from longfire.validation import at_least, one_of


@register("t5")
class T5(DistanceBias):
    """A learned bias per head and bucket of distances (Raffel et al. 2020); the last bucket is open-ended.

    Args:
        num_heads: number of attention heads.
        num_buckets: half of them contain one distance each (K + 1 in the FIRE paper, which uses 64).
        max_distance: distances from here on share the last bucket (L₁ in the FIRE paper).
        bidirectional: for encoders: the first half of the buckets is for keys up to the query, the second for keys
            after it.
    """

    takes = ("num_heads",)
    bounded = True
    shown = ("num_heads", "num_buckets", "max_distance", "bidirectional")
    buckets: Tensor

    def __init__(
        self, num_heads: int, *, num_buckets: int = 64, max_distance: int = 128, bidirectional: bool = False
    ) -> None:
        super().__init__()
        at_least("num_heads", num_heads, 1)
        one_of("bidirectional", bidirectional, (True, False))
        sides = 2 if bidirectional else 1
        at_least("num_buckets", num_buckets, 2 * sides)
        if num_buckets % sides:
            raise ValueError(f"num_buckets must be even with bidirectional=True, not {num_buckets}.")
        half = "a quarter" if bidirectional else "half"
        least = num_buckets // sides // 2 + 1
        at_least(f"max_distance (above {half} of num_buckets={num_buckets})", max_distance, least)
        self.bidirectional = bidirectional
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.smooth_beyond = max_distance  # a step function up to here, then constant
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads, dtype=at_least_float32()))
        self.register_buffer("buckets", torch.empty(sides * max_distance + 1, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(_check_sides)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)
        if self.bidirectional:  # distances −max_distance…max_distance
            before = bucket_of_distance(self.num_buckets // 2, self.max_distance)
            self.buckets.copy_(torch.cat([before[1:].flip(0) + self.num_buckets // 2, before]))
        else:
            self.buckets.copy_(bucket_of_distance(self.num_buckets, self.max_distance))

    def of_distance(self, distance: Tensor) -> Tensor:
        buckets = self.buckets.long()  # transformers loads them as float32 into bfloat16 models
        by_distance = self.table.to(self.compute_dtype)[buckets].T  # (H, distances)
        least = -self.max_distance if self.bidirectional else 0
        biases = by_distance[:, distance.squeeze(-3).clamp(least, self.max_distance).long() - least]  # (H, …, T, S)
        return biases.movedim(0, -3)


def _check_sides(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Refuse a state dict saved with the other value of `bidirectional`."""
    assert isinstance(module, T5)
    buckets = state.get(f"{prefix}buckets")
    sizes = {module.max_distance + 1: False, 2 * module.max_distance + 1: True}
    saved = sizes.get(len(buckets)) if isinstance(buckets, Tensor) else None
    if saved is not None and saved != module.bidirectional:
        where = prefix.rstrip(".") or type(module).__name__
        rest[-1].append(
            f"{where} was saved with bidirectional={saved}, but this T5 has bidirectional={module.bidirectional}. "
            f"Build it with {saved}."
        )


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
