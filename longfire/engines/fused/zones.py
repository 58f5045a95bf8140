"""Where a bias is sampled and how it is stored by distance; shared by kernels and reference.

    distance   0 ──────────── 2W ─────────────────── 10W ─────────────────────→
               near: every     middle: 16 × 16 nodes   far: 4 × 4 nodes
               pair stored     a tile of 64 × 64       a tile of 64 × 64

W is the encoding's `smooth_beyond`. The zone of a pair (i, j) depends only on its block of 128 × 128, so all kernels
agree regardless of their tiles. Positions are logical: 0 is the first key of the sequence.

Unless attention is causal, keys after the query have a second set of samples and of everything made from them: the
bias of (i, j) with i < j is stored as that of (j, i) would be, so both sides have the same zones.
"""

from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.encodings.base import LEAST_SMOOTH_BEYOND

BLOCK, TILE = 128, 64
MIDDLE, FAR = 16, 4
"""Nodes along the side of a tile in the middle and far zones."""

LONG, LONGEST = 4096, 1 << 18
"""Keys from which, and up to which, a learned bias of the distance may be interpolated.

Reading and summing a table's entries over the whole triangle costs more: forward and backward, 1.2 to 1.7 times FIRE's
time at 8,192 and 32,768 keys (H200). The memory of the nodes' gradients grows with the square of the keys.
"""

FLOAT16_MAX = 60000.0  # with room for rounding
MAX_DISTANCE = 1 << 24
"""Decoding interpolates distances below this; larger ones are not exact in float32."""


@dataclass(frozen=True)
class Zones:
    """Zones of a sequence of keys 0…keys−1, seen by queries first…keys−1."""

    keys: int
    first: int
    smooth: int | None
    """W, a power of two. None: every pair is near, and the bias depends only on the distance."""
    window: int | None = None
    """Keys that a query sees on each side, its own included. None: all."""
    causal: bool = True
    distance_only: bool = False
    """Whether the bias depends only on the distance."""

    @classmethod
    def of(
        cls, encoding: PositionEncoding, keys: int, first: int, causal: bool = True, tabulate: bool = True
    ) -> "Zones":
        """The zones that an encoding's declarations allow. `tabulate`: read a bias of the distance from a table."""
        smooth = None if tabulate and encoding.distance_only else smooth_width(encoding)
        return cls(keys, first, smooth, causal=causal, distance_only=encoding.distance_only)

    @property
    def sides(self) -> int:
        """Sets of samples: 2 if keys after the query are seen, too."""
        return 1 if self.causal else 2

    @property
    def exact(self) -> bool:
        """Whether nothing is interpolated."""
        return self.smooth is None

    @property
    def by_distance(self) -> bool:
        """Whether samples, near biases and nodes are stored once per distance, not for every query."""
        return self.distance_only or self.exact

    @property
    def first_block(self) -> int:
        return self.first // BLOCK

    @property
    def blocks(self) -> int:
        """Blocks of queries, from `first_block` on."""
        return (self.keys + BLOCK - 1) // BLOCK - self.first_block

    @property
    def last_block(self) -> int:
        """One past the last block of queries."""
        return self.first_block + self.blocks

    @property
    def last(self) -> int:
        """The last sampled position: the last tile has all its nodes, even if its rows end early."""
        return self.last_block * BLOCK - 1

    @property
    def reach(self) -> int:
        """Blocks of keys that a query sees, including its own."""
        reach = self.last_block if self.window is None else blocks_within(self.window)
        return reach if reach < self.last_block else self.last_block

    @property
    def near(self) -> int:
        """Blocks of near keys, including the query's own."""
        near = self.last_block if self.smooth is None else blocks_within(2 * self.smooth)
        return near if near < self.reach else self.reach

    @property
    def middle(self) -> int:
        """Blocks of near and middle keys."""
        if self.smooth is None:
            return self.last_block
        middle = blocks_within(10 * self.smooth)
        reach = middle if self.window is None else blocks_within(self.window)
        return middle if middle < reach else reach

    @property
    def rows_per_octave(self) -> int:
        return 0 if self.smooth is None else self.smooth // 4

    @property
    def distances_per_octave(self) -> int:
        return 0 if self.smooth is None else self.smooth // 2

    @property
    def first_node(self) -> int:
        return 0 if self.by_distance else node_index(self.first_block * BLOCK, self.rows_per_octave)

    @property
    def row_nodes(self) -> int:
        """Sampled queries: A."""
        if self.by_distance:
            return 1
        return node_index(self.last, self.rows_per_octave) + 2 - self.first_node

    @property
    def distance_nodes(self) -> int:
        """Sampled distances: E."""
        if self.by_distance:
            return self.keys if self.exact else self.last + 1
        return node_index(self.last, self.distances_per_octave) + 2

    @property
    def middle_tiles(self) -> int:
        """Middle tiles per row of tiles, including those before the first key, so that all rows are alike."""
        return 2 * (self.middle - self.near)

    @property
    def far_tiles(self) -> int:
        """Far tiles in total."""
        return far_tiles_before(2 * self.last_block, self.middle) - far_tiles_before(2 * self.first_block, self.middle)

    @property
    def has_middle(self) -> bool:
        return self.smooth is not None and self.reach > self.near

    @property
    def has_far(self) -> bool:
        return self.smooth is not None and self.reach > self.middle

    @property
    def references(self) -> int:
        """References per head, which biases are stored relative to.

        By distance, one per distance in blocks; otherwise one per row node or, with two sides, per block of queries.
        """
        if self.by_distance:
            return self.near
        return self.row_nodes if self.causal else self.blocks

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements per head: near biases, middle nodes, far nodes."""
        near = BLOCK * BLOCK * self.near
        if not self.by_distance:
            return near * self.blocks, *self.node_grads
        middle, far = 2 * self.middle * MIDDLE**2, 2 * self.last_block * FAR**2  # by tiles apart
        return near, middle if self.has_middle else 0, far if self.has_far else 0

    @property
    def node_grads(self) -> tuple[int, int]:
        """Middle and far nodes per head of all tiles, which have gradients of their own."""
        middle = 2 * self.blocks * self.middle_tiles * MIDDLE**2 if self.has_middle else 0
        return middle, self.far_tiles * FAR**2 if self.has_far else 0

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Query positions (A, 1) and key positions (A, E) at which the encoding is sampled; for keys after the query,
        the other way round.

        Dense at first, then a fixed number per octave. Where a row has no key at a distance, its first key is used.
        """
        if self.by_distance:
            distance = torch.arange(self.distance_nodes, device=device)
            return distance[-1:, None], distance.flip(0)[None]
        rows = torch.arange(self.first_node, self.first_node + self.row_nodes, device=device)
        rows = node_position(rows, self.rows_per_octave).clamp(max=self.last)[:, None]
        distance = node_position(torch.arange(self.distance_nodes, device=device), self.distances_per_octave)
        return rows, (rows - distance).clamp(min=0)


@lru_cache(maxsize=64)
def evaluated(zones: Zones) -> Any:
    """The zones with all properties computed once: a launch reads dozens of them."""
    properties = [name for name, member in vars(Zones).items() if isinstance(member, property)]
    given = {name: getattr(zones, name) for name in ("keys", "first", "window", "causal")}
    return SimpleNamespace(**given, **{name: getattr(zones, name) for name in properties})


def blocks_within(distance: int) -> int:
    """Blocks, including a query's own, that have keys at less than this distance from it."""
    return (distance + 2 * BLOCK - 2) // BLOCK


def smooth_width(encoding: PositionEncoding) -> int:
    """W: `smooth_beyond`, rounded up to a power of two."""
    W = LEAST_SMOOTH_BEYOND
    while (encoding.smooth_beyond or 0) > W:
        W *= 2
    return W


def decode_nodes(encoding: PositionEncoding) -> int | None:
    """At how many distances a single query's bias is sampled; None if it cannot be interpolated, or need not be."""
    if encoding.distance_only or encoding.smooth_beyond is None or not encoding.has_bias:
        return None
    return node_index(MAX_DISTANCE - 1, smooth_width(encoding) // 2) + 2


def node_index(position: int, per_octave: int) -> int:
    """The last node at or before a position: nodes are at 0, 1, … 2·per_octave, then `per_octave` per octave.

    Only a few comparisons, so that a compiled graph is valid for a whole octave of lengths.
    """
    octave = 0
    while position >= 2 * per_octave << octave:
        octave += 1
    return octave * per_octave + position // (1 << octave)


def node_position(index: Tensor, per_octave: int) -> Tensor:
    """The positions of nodes."""
    octave = (index // per_octave - 1).clamp(min=0)
    return (index - octave * per_octave) << octave


def far_tiles_before(tile: int, middle: int) -> int:
    """Far tiles in all rows of tiles before this one."""
    rows = max(tile // 2 - middle + 1, 0)
    return 2 * rows * (rows - 1) + tile % 2 * 2 * rows
