"""Where a bias is looked at, and where it is kept exact: the numbers that the kernels and their specification share.

    distance   0 ──────────── 2W ─────────────────── 10W ─────────────────────→
               near: every     middle: 16 × 16 nodes   far: 4 × 4 nodes
               pair its own    a tile of 64 × 64       a tile of 64 × 64

W is the encoding's `smooth_beyond`. Which zone a pair (i, j) is in depends on its block of 128 × 128 alone, so that all
kernels agree whatever tiles they work in. Positions are logical: 0 is the first key of the sequence.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from longfire.encodings.base import LEAST_SMOOTH_BEYOND

BLOCK = 128
TILE = 64
LARGEST = 60000.0  # what float16 holds
MIDDLE, FAR = 16, 4
"""Nodes along a tile's side in the middle and the far zone."""


@dataclass(frozen=True)
class Geometry:
    """Of one sequence of keys 0…keys−1, seen by queries first…keys−1."""

    keys: int
    first: int
    smooth: int | None
    """W, a power of two; None: the bias is of the distance alone, and all of it is near."""

    @property
    def exact(self) -> bool:
        """Nothing is interpolated."""
        return self.smooth is None

    @property
    def first_block(self) -> int:
        return self.first // BLOCK

    @property
    def blocks(self) -> int:
        """Blocks of rows, from `first_block` on."""
        return (self.keys + BLOCK - 1) // BLOCK - self.first_block

    @property
    def last_block(self) -> int:
        """One past the last block of rows."""
        return self.first_block + self.blocks

    @property
    def last(self) -> int:
        """The last position at which the bias is looked at: a whole tile has its nodes even if its rows end early."""
        return self.last_block * BLOCK - 1

    @property
    def near(self) -> int:
        """How many blocks of keys are near, the query's own included."""
        near = self.last_block if self.smooth is None else (2 * self.smooth + 2 * BLOCK - 2) // BLOCK
        return near if near < self.last_block else self.last_block

    @property
    def middle(self) -> int:
        """How many blocks of keys are near or in the middle."""
        return self.last_block if self.smooth is None else (10 * self.smooth + 2 * BLOCK - 2) // BLOCK

    @property
    def rows_per_octave(self) -> int:
        return 0 if self.smooth is None else self.smooth // 4

    @property
    def distances_per_octave(self) -> int:
        return 0 if self.smooth is None else self.smooth // 2

    @property
    def first_node(self) -> int:
        return 0 if self.smooth is None else node_index(self.first_block * BLOCK, self.rows_per_octave)

    @property
    def row_nodes(self) -> int:
        """Queries at which the bias is looked at."""
        if self.smooth is None:
            return 1
        return node_index(self.last, self.rows_per_octave) + 2 - self.first_node

    @property
    def distance_nodes(self) -> int:
        """Distances at which it is looked at."""
        return self.keys if self.smooth is None else node_index(self.last, self.distances_per_octave) + 2

    @property
    def middle_tiles(self) -> int:
        """Tiles of the middle zone in a row of tiles (those before the first key left in, to keep rows alike)."""
        return 2 * (self.middle - self.near)

    @property
    def far_tiles(self) -> int:
        """Tiles of the far zone in all."""
        return far_tiles_before(2 * self.last_block, self.middle) - far_tiles_before(2 * self.first_block, self.middle)

    @property
    def has_middle(self) -> bool:
        return self.smooth is not None and self.last_block > self.near

    @property
    def has_far(self) -> bool:
        return self.smooth is not None and self.last_block > self.middle

    @property
    def references(self) -> int:
        """What biases are kept relative to: one number for each row node, or for each distance between blocks."""
        return self.near if self.smooth is None else self.row_nodes

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Query positions (A, 1) and key positions (A, E) whose biases are the values that the kernels start from.

        Every position and distance at first, then so many per octave. Where a row has no key at a distance, its first
        key stands for it.
        """
        if self.smooth is None:
            distance = torch.arange(self.keys, device=device)
            return distance[-1:, None], (self.keys - 1 - distance)[None]
        rows = torch.arange(self.first_node, self.first_node + self.row_nodes, device=device)
        rows = node_position(rows, self.rows_per_octave).clamp(max=self.last)[:, None]
        distance = node_position(torch.arange(self.distance_nodes, device=device), self.distances_per_octave)
        return rows, (rows - distance).clamp(min=0)


def smoothness(smooth_beyond: int) -> int:
    """W: the power of two from `smooth_beyond` on."""
    W = LEAST_SMOOTH_BEYOND
    while smooth_beyond > W:
        W *= 2
    return W


def node_index(position: int, per_octave: int) -> int:
    """The last node at or before a position: nodes are at 0, 1, … 2·per_octave, and from there `per_octave` an octave.

    Written as a few comparisons so that a compiled graph is valid for a whole octave of lengths.
    """
    octave = 0
    while position >= 2 * per_octave << octave:
        octave += 1
    return octave * per_octave + position // (1 << octave)


def node_position(index: Tensor, per_octave: int) -> Tensor:
    """Where nodes are."""
    octave = (index // per_octave - 1).clamp(min=0)
    return (index - octave * per_octave) << octave


def far_tiles_before(tile: int, middle: int) -> int:
    """Far tiles in all rows of tiles before this one."""
    rows = max(tile // 2 - middle + 1, 0)
    return 2 * rows * (rows - 1) + tile % 2 * 2 * rows
