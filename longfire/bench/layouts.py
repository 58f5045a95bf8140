"""Attention that is not plain causal attention: how its tokens are laid out, and what its time is divided by."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from longfire.bench.benchmark import BOTH, FORWARD, Row

DOCUMENTS = 32
"""Documents in a packed row; also the length of a row in windows."""
SPREAD = 4
"""Random positions are drawn from a range this many times as large as their number."""
CAUSAL = "causal"
OPEN = None, None
"""No targets."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """One or more calls of attention on n tokens, and which keys a query sees."""

    calls: tuple[tuple[int, int], ...] = ()
    """Rows and length of each. Empty: one row of n."""
    causal: bool = True
    window: int | None = None
    segment_ids: Tensor | None = None  # (1, n)
    positions: Tensor | None = None  # (n,), of queries and keys

    def options(self, batch: int = 1) -> dict[str, Any]:
        """Arguments of `attention`. Engines read tensors once, so build them once."""
        ids = None if self.segment_ids is None else self.segment_ids.repeat(batch, 1)
        where = {"q_positions": self.positions, "k_positions": self.positions, "segment_ids": ids}
        return {"causal": self.causal, "window": self.window, **where}


@dataclass(frozen=True)
class Comparison:
    """The time of an arrangement divided by that of another, on the same engine."""

    arrangement: str
    baseline: str
    targets: dict[str, tuple[float | None, float | None]]
    """By encoding: the largest ratios wanted of the fused engine, forward and forward + backward."""
    unbiased: bool = False
    """The baseline is PyTorch's own attention, without a bias."""
    engines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """On a GPU, by encoding. Missing: the fused engine."""

    def target(self, row: Row, part: str) -> float | None:
        """The largest ratio wanted; None if there is no target."""
        wanted = self.targets.get(row["encoding"], OPEN) if row["engine"] == "fused" else OPEN
        return wanted[(FORWARD, BOTH).index(part)]


@dataclass(frozen=True)
class Layout:
    """What to measure, and at which lengths on a GPU."""

    lengths: tuple[int, ...]
    comparisons: tuple[Comparison, ...]


PLAIN = Arrangement()
EQUAL, UNEQUAL = f"{DOCUMENTS} equal documents", f"{DOCUMENTS} unequal documents"
ROWS, CALLS = f"{DOCUMENTS} rows", f"{DOCUMENTS} calls"
WINDOW, BOTH_SIDES, RANDOM = f"window of n/{DOCUMENTS}", "not causal", "random positions"

LAYOUTS = {
    "packed": Layout(
        (32768,),
        (
            Comparison(EQUAL, ROWS, {"fire": (1.15, 1.15)}),
            Comparison(UNEQUAL, CALLS, {"fire": (1.25, 1.25)}),
            Comparison(EQUAL, CAUSAL, {"fire": OPEN}),
        ),
    ),
    "window": Layout(
        (32768,),
        (Comparison(WINDOW, CAUSAL, {"fire": (0.18, 0.17), "alibi": (0.10, 0.10)}),),
    ),
    "bidirectional": Layout(
        (8192,),
        (
            Comparison(
                BOTH_SIDES,
                BOTH_SIDES,
                {"fire": (1.1, 1.45), "t5": (1.3, 1.7), "alibi": OPEN, "kerple_log": OPEN},
                unbiased=True,
            ),
        ),
    ),
    "positions": Layout(
        (4096, 8192),
        (
            Comparison(
                RANDOM,
                CAUSAL,
                dict.fromkeys(("kerple_log", "kerple_power", "t5", "alibi", "fire"), OPEN),
                engines={"fire": ("fused", "chunked", "sdpa")},  # fused refuses it, and the record says why
            ),
        ),
    ),
}
"""What `longfire bench attention --layout` measures."""


@lru_cache(maxsize=16)
def arrange(name: str, n: int, device: str) -> Arrangement:
    """The arrangement of n tokens. The same tensors for every engine."""
    return ARRANGEMENTS[name](n, device)


def _equal(n: int, device: str) -> Arrangement:
    return Arrangement(segment_ids=torch.arange(n, device=device)[None] // (n // DOCUMENTS))


def _unequal(n: int, device: str) -> Arrangement:
    return Arrangement(segment_ids=_random_documents(n)[None].to(device))


def _calls(n: int, device: str) -> Arrangement:
    lengths = _random_documents(n).unique_consecutive(return_counts=True)[1]
    return Arrangement(tuple((1, length) for length in lengths.tolist()))


def _random_documents(n: int) -> Tensor:
    """Segment ids (n,) of documents of n/32 tokens in the mean; each length is uniform up to twice that.

    Every length occurs twice: the fused engine remembers where it samples the bias for 16 lengths, and separate calls
    should not pay for more.
    """
    half = DOCUMENTS // 2
    ends = torch.rand(half, generator=torch.Generator().manual_seed(0)).cumsum(0)
    ends = (ends / ends[-1] * (n // 2)).round().long()
    ids = torch.bucketize(torch.arange(n // 2), ends[:-1], right=True)
    return torch.cat([ids, ids + half])


def _random_positions(n: int, device: str) -> Arrangement:
    drawn = torch.randperm(SPREAD * n, generator=torch.Generator().manual_seed(0))[:n]
    return Arrangement(positions=drawn.sort().values.to(device))


ARRANGEMENTS: dict[str, Callable[[int, str], Arrangement]] = {
    CAUSAL: lambda n, device: PLAIN,
    EQUAL: _equal,
    ROWS: lambda n, device: Arrangement(((DOCUMENTS, n // DOCUMENTS),)),
    UNEQUAL: _unequal,
    CALLS: _calls,
    WINDOW: lambda n, device: Arrangement(window=n // DOCUMENTS),
    BOTH_SIDES: lambda n, device: Arrangement(causal=False),
    RANDOM: _random_positions,
}
