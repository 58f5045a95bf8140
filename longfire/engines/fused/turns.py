"""From what the walks leave to the gradient of the values: how many heads at a time, and launching `collect`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longfire.engines.fused import collect, configs
from longfire.engines.fused.geometry import BLOCK, FAR, MIDDLE, node_index

DISTANCES, ROWS, TILES = 64, 16, 64
"""What a program of `collect` looks at, at a time."""


@dataclass(frozen=True)
class Turns:
    """How the gradients of near biases are made: (heads, groups of rows of blocks, blocks apart, 128, 128)."""

    heads: int
    """So many heads at a time."""
    groups: int
    rows_per_group: int


def near_turns(g: Any, H: int) -> Turns:
    """As many heads at a time as fit."""
    rows = max(1, g.blocks // 4) if g.exact else 1
    groups = -(-g.blocks // rows)
    bytes_a_head = 4 * groups * g.near * BLOCK * BLOCK
    return Turns(even_turns(H, max(1, configs.NEAR_BYTES // bytes_a_head)), groups, rows)


def even_turns(heads: int, at_most: int) -> int:
    """Heads a turn, as many in each as can be."""
    return -(-heads // -(-heads // min(at_most, heads)))


def collect_near(near: dict[str, Any], dmiddle: Tensor, dvalues: Tensor, g: Any, first_head: int, heads: int) -> None:
    """What the gradients of near biases and middle nodes of some heads say of their values.

    `near` are near ones as `collect.rows` takes them.
    """
    A, H, E = dvalues.shape
    N, R = DISTANCES, ROWS
    if g.exact:
        collect.diagonals[-(-E // N), heads](near["dNear"], dvalues, first_head, E, near["groups"], g.near, N=N, R=R)
        return
    shared = {"first_node": g.first_node, "last": g.last, "ROWS": g.rows_per_octave}
    own = over_batch(dmiddle[:, first_head : first_head + heads])
    # a block to spare: compared at the same key, a pair's distance in a node's row is a little another
    farthest = ((g.middle if own.numel() else g.near) + 1) * BLOCK
    sums = dvalues.new_empty(2, A, heads, farthest)
    collect.rows[A, heads, farthest // N](
        dMiddle=own if own.numel() else sums, Sums=sums, E=farthest, near_blocks=g.near, middle_blocks=g.middle,
        first_block=g.first_block, middle_per_head=own.shape[1],
        NODES=MIDDLE if own.numel() else 0, N=N, R=R, **near, **shared,
    )  # fmt: skip
    collect.near[A, heads, -(-E // N)](
        sums, dvalues, first_head, E, farthest, H * E, DISTANCES=g.distances_per_octave, N=N, **shared, num_warps=2
    )


def collect_far(dfar: Tensor, dvalues: Tensor, g: Any) -> None:
    """What the gradients of far nodes (B, H, …) say of the values, added."""
    A, H, E = dvalues.shape
    total = over_batch(dfar)
    first_far = node_index(max(g.first_block, g.middle) * BLOCK, g.rows_per_octave) - g.first_node
    # no key is compared at a distance, or by itself, beyond the middle of the row
    tiles = -(-(g.last_block + 2) // TILES) * TILES
    by_distance = dvalues.new_empty(2, A - first_far, H, tiles, 2 * FAR)
    by_key = dvalues.new_empty(A - first_far, H, tiles, FAR)
    shared = {
        "first_far": first_far,
        "first_node": g.first_node,
        "last": g.last,
        "ROWS": g.rows_per_octave,
        "NODES": FAR,
    }
    collect.far_rows[A - first_far, H, tiles // TILES](
        total, by_distance, by_key, total.shape[1], tiles, near_blocks=g.near, middle_blocks=g.middle,
        first_block=g.first_block, N=TILES, **shared,
    )  # fmt: skip
    collect.far[A - first_far, H, -(-E // DISTANCES)](
        by_distance, by_key, dvalues, E, H * E, tiles, middle_blocks=g.middle, DISTANCES=g.distances_per_octave,
        N=DISTANCES, **shared,
    )  # fmt: skip


def over_batch(gradients: Tensor) -> Tensor:
    """Gradients of nodes (B, heads, …), summed."""
    return gradients[0] if gradients.shape[0] == 1 else gradients.sum(0, dtype=torch.float32)
