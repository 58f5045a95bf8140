"""Turn gradients of near biases and nodes into the gradient of the samples: the adjoint of `bias_kernels`.

Each program owns samples and gathers the gradients of what they contributed to, so no two write to the same place.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.engines.fused import zones
from longfire.engines.fused.bias_kernels import Blocks, cell, node_at, node_position, tile_index
from longfire.engines.fused.tiles import BLOCK, LENGTHS, TILE
from longfire.engines.fused.zones import FAR, MIDDLE, node_index

NEAR_BYTES = 1 << 29
"""Limit for the gradients of near biases; above it, a few heads at a time are processed."""
MIDDLE_COLUMN, FAR_COLUMN = 3, 4
"""Columns of the table of segments that say where their nodes begin."""
DISTANCES, ROWS, TILES, NODES_AT_A_TIME = 64, 16, 64, 256
"""Sizes that one program covers at a time."""


class Turns(NamedTuple):
    """How near gradients are split up: (heads, groups of rows of blocks, blocks apart, 128, 128)."""

    heads: int
    groups: int
    rows_per_group: int

    @classmethod
    def of(cls, where: Any, H: int) -> "Turns":
        """As many heads at a time as fit, in even shares."""
        rows = max(1, where.blocks // (4 if where.exact else 16)) if where.by_distance else 1
        groups = -(-where.blocks // rows)
        bytes_per_head = 4 * groups * where.near * zones.BLOCK**2
        at_most = min(H, max(1, NEAR_BYTES // bytes_per_head))
        return cls(-(-H // -(-H // at_most)), groups, rows)


def collect_near(
    dnear: Tensor, groups: int, dmiddle: Tensor, dsamples: Tensor, where: Any, S: int, first_head: int, count: int
) -> None:
    """Compute some heads' gradients of the samples from those of near biases and middle nodes (B, H, …)."""
    (A, H, E), g, N = dsamples.shape, where, DISTANCES
    if g.by_distance:
        sum_diagonals[-(-E // N), count](
            dNear=dnear, dSamples=dsamples, first_head=first_head, E=E, groups=groups, near_blocks=g.near, N=N, R=ROWS
        )
        return
    dmiddle = _over_batch(dmiddle[:, first_head : first_head + count])
    has_middle = dmiddle.numel() > 0
    # one block more: at the same key, the distance from a node's row differs a little
    farthest = ((g.middle if has_middle else g.near) + 1) * zones.BLOCK
    sums = dsamples.new_empty(2, A, count, farthest)
    shared = {"first_node": g.first_node, "last": g.last, "ROWS": g.rows_per_octave, "N": N}
    collect_rows[A, count, farthest // N](
        dNear=dnear, dMiddle=dmiddle if has_middle else None, Sums=sums, S=S, E=farthest, groups=groups,
        near_blocks=g.near, middle_blocks=g.middle, first_block=g.first_block, middle_per_head=dmiddle.shape[1],
        NODES=MIDDLE, R=ROWS, **shared,
    )  # fmt: skip
    collect_distances[A, count, -(-E // N)](
        Sums=sums, dSamples=dsamples, first_head=first_head, E=E, farthest=farthest, row_stride=H * E,
        DISTANCES=g.distances_per_octave, **shared, num_warps=2,
    )  # fmt: skip


def collect_far(dfar: Tensor, dsamples: Tensor, where: Any) -> None:
    """Add gradients of far nodes (B, H, …) to those of the samples."""
    (A, H, E), g, total = dsamples.shape, where, _over_batch(dfar)
    first_far = node_index(max(g.first_block, g.middle) * zones.BLOCK, g.rows_per_octave) - g.first_node
    # at most half a row: 2d ≤ i at the same distance, 2j < i at the same key
    tiles = -(-(g.last_block + 2) // TILES) * TILES
    shared = {
        "ByDistance": dsamples.new_empty(2, A - first_far, H, tiles, 2 * FAR),
        "ByKey": dsamples.new_empty(A - first_far, H, tiles, FAR),
        "tiles": tiles,
        "first_far": first_far,
        "middle_blocks": g.middle,
        "first_node": g.first_node,
        "last": g.last,
        "ROWS": g.rows_per_octave,
        "NODES": FAR,
    }
    collect_far_rows[A - first_far, H, tiles // TILES](
        dNodes=total, nodes_per_head=total.shape[1], near_blocks=g.near, first_block=g.first_block, N=TILES, **shared
    )
    collect_far_distances[A - first_far, H, -(-E // DISTANCES)](
        dSamples=dsamples, E=E, row_stride=H * E, DISTANCES=g.distances_per_octave, N=DISTANCES, **shared
    )


def collect_nodes(dmiddle: Tensor, dfar: Tensor, dsamples: Tensor, where: Any) -> None:
    """Add gradients of nodes (B, H, …) to those of the samples, for a bias that depends only on the distance."""
    (_, H, E), g = dsamples.shape, where
    for nodes, gradients, nearest, farthest in (
        (MIDDLE, dmiddle, g.near, g.middle),
        (FAR, dfar, g.middle, g.last_block),
    ):
        if gradients.numel() == 0:
            continue
        total, first, count = _over_batch(gradients), 2 * nearest - 1, 2 * (farthest - nearest) + 1  # tiles apart
        sums = dsamples.new_empty(H, count, nodes**2)
        sum_tiles[triton.cdiv(count * nodes**2, NODES_AT_A_TIME), H](
            dNodes=total, Sums=sums, nodes_per_head=total.shape[1], count=count, first=first, nearest=nearest,
            farthest=farthest, first_block=g.first_block, last_block=g.last_block, near_blocks=g.near,
            middle_blocks=g.middle, NODES=nodes, N=NODES_AT_A_TIME, R=ROWS,
        )  # fmt: skip
        add_tiles[count + 1, H](Sums=sums, dSamples=dsamples, E=E, count=count, first=first, NODES=nodes)


def over_segments(gradients: Tensor, table: Tensor, column: int, size: int) -> Tensor:
    """Sum gradients of nodes (H, …) over segments, whose nodes are the first of the longest's: (1, H, size)."""
    H, nodes_in_all = gradients.shape
    total = gradients.new_empty(1, H, size if nodes_in_all else 0, dtype=torch.float32)
    if total.numel():
        sum_segments[triton.cdiv(size, 1024), H](
            dNodes=gradients, Sums=total, Table=table, sequences=len(table) - 1, nodes_in_all=nodes_in_all, size=size,
            COLUMN=column, N=1024,
        )  # fmt: skip
    return total


def _over_batch(gradients: Tensor) -> Tensor:
    """Sum gradients of nodes (B, heads, …) over the batch."""
    return gradients[0] if gradients.shape[0] == 1 else gradients.sum(0, dtype=torch.float32)


@triton.jit(do_not_specialize=LENGTHS)
def sum_segments(
    dNodes,  # (H, nodes_in_all)
    Sums,  # (H, size)
    Table,  # (sequences + 1, 5)
    sequences, nodes_in_all, size,
    COLUMN: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N nodes of one head."""
    h = tl.program_id(1).to(tl.int64)
    node = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for n in range(tl.load(Table + sequences * 5)):  # []
        begin, after = tl.load(Table + n * 5 + COLUMN), tl.load(Table + n * 5 + 5 + COLUMN)  # []
        found = tl.load(dNodes + h * nodes_in_all + begin + node, mask=node < after - begin, other=0.0)  # [N]
        total += found.to(tl.float32)
    tl.store(Sums + h * size + node, total, mask=node < size)  # [N]


@triton.jit(do_not_specialize=LENGTHS)
def sum_diagonals(
    dNear,  # (heads, groups, blocks apart, 128, 128)
    dSamples,  # (1, H, E)
    first_head, E, groups, near_blocks,
    N: tl.constexpr,  # divides 128
    R: tl.constexpr,
):  # fmt: skip
    """N samples of a bias that depends only on the distance: sums along diagonals."""
    r = (tl.program_id(0) * N % BLOCK + tl.arange(0, N))[None, :]
    apart = tl.program_id(0) * N // BLOCK
    h = tl.program_id(1)
    at = dNear + h.to(tl.int64) * groups * near_blocks * BLOCK * BLOCK
    total = tl.zeros([R, N], tl.float32)
    for g in range(groups):
        for row in range(0, BLOCK, R):
            i = (row + tl.arange(0, R))[:, None]
            block = g * near_blocks + apart + tl.where(i >= r, 0, 1)
            there = block < (g + 1) * near_blocks
            offset = block.to(tl.int64) * (BLOCK * BLOCK) + i * BLOCK + (i - r + BLOCK) % BLOCK
            total += tl.load(at + offset, mask=there, other=0.0)  # [R, N]
    d = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(dSamples + (first_head + h) * E + d, tl.sum(total, 0), mask=d < E)  # [N]


@triton.jit(do_not_specialize=LENGTHS)
def sum_tiles(
    dNodes,  # (H, nodes_per_head)
    Sums,  # (H, count, NODES · NODES)
    nodes_per_head, count, first, nearest, farthest, first_block, last_block, near_blocks, middle_blocks,
    NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """N nodes, summed over all tiles whose queries and keys are as many tiles apart, from `first` on."""
    h = tl.program_id(1).to(tl.int64)
    blocks = Blocks(first_block, near_blocks, middle_blocks)
    node = (tl.program_id(0) * N + tl.arange(0, N))[None, :]
    apart = first + node // (NODES * NODES)
    at = dNodes + h * nodes_per_head
    total = tl.zeros([R, N], tl.float32)
    for row in range(2 * first_block, 2 * last_block, R):
        tile = row + tl.arange(0, R)[:, None]
        key_tile = tile - apart  # [R, N]
        between = tile // 2 - tl.maximum(key_tile, 0) // 2
        there = (tile < 2 * last_block) & (key_tile >= 0) & (between >= nearest) & (between < farthest)
        offset = tile_index(blocks, tile, key_tile, NODES != 16) * (NODES * NODES) + node % (NODES * NODES)
        total += tl.load(at + offset, mask=there, other=0.0).to(tl.float32)  # [R, N]
    node = tl.program_id(0) * N + tl.arange(0, N)
    size = count * NODES * NODES
    tl.store(Sums + h * size + node, tl.sum(total, 0), mask=node < size)  # [N]


@triton.jit(do_not_specialize=LENGTHS)
def add_tiles(
    Sums,  # (H, count, NODES · NODES)
    dSamples,  # (1, H, E)
    E, count, first,
    NODES: tl.constexpr,
):  # fmt: skip
    """Add the nodes at 64 distances to the gradients of these samples."""
    h = tl.program_id(1)
    chunk = first - 1 + tl.program_id(0)
    d = chunk * TILE + tl.arange(0, TILE)
    node = tl.arange(0, NODES * NODES)
    beyond = node_at(node // NODES, NODES) - node_at(node % NODES, NODES)
    total = tl.zeros([TILE], tl.float32)
    for step in tl.static_range(2):
        apart = chunk + step + 0 * node
        there = (apart >= first) & (apart < first + count)
        at = Sums + (h * count + apart - first) * (NODES * NODES) + node
        found = tl.load(at, mask=there, other=0.0)  # [NODES · NODES]
        here = (apart * TILE + beyond)[None, :] == d[:, None]  # [TILE, NODES · NODES]
        total += tl.sum(tl.where(here, found[None, :], 0.0), 1)
    at = dSamples + h * E + d
    tl.store(at, tl.load(at, mask=d < E, other=0.0) + total, mask=d < E)  # [TILE]


# --- near and middle zones of an interpolated bias ------------------------------------------------------------------


@triton.jit
def row_range(a, first_node, last, ROWS: tl.constexpr):
    """The queries that a row node contributes to: start, end (exclusive)."""
    here, gap = node_position(a + first_node, ROWS)
    before, _ = node_position(tl.maximum(a + first_node - 1, 0), ROWS)
    return tl.where(a == 0, tl.minimum(here, last), before + 1), tl.minimum(here + gap, last + 1)


@triton.jit
def row_weight(i, node, last, ROWS: tl.constexpr):
    """A row node's weight for one of its rows i, and the node's position."""
    left_node, left, right, t = cell(i, last, ROWS)
    return tl.where(left_node == node, 1 - t, t), tl.where(left_node == node, left, right)


@triton.jit
def distance_range(node, DISTANCES: tl.constexpr):
    """Positions of distance nodes and of their neighbours: before, here, after."""
    here, gap = node_position(node, DISTANCES)
    before, _ = node_position(tl.maximum(node - 1, 0), DISTANCES)
    return tl.where(node == 0, -1, before), here, here + gap


@triton.jit
def hat(d, before, here, after, last):
    """A node's weight at distance d in a row whose last distance is `last`."""
    here = tl.minimum(here, last)
    after = tl.minimum(after, last)
    rising = (d - before).to(tl.float32) / tl.maximum(here - before, 1).to(tl.float32)
    falling = (after - d).to(tl.float32) / tl.maximum(after - here, 1).to(tl.float32)
    return tl.where((d >= 0) & (d <= last), tl.maximum(tl.where(d <= here, rising, falling), 0.0), 0.0)


@triton.jit
def near_at(at, i, j, wanted, blocks):
    """Near gradients of pairs; 0 where not wanted or not near."""
    r, c = i & (BLOCK - 1), j & (BLOCK - 1)  # within the block; no division, as they may be negative
    apart = (i - r) - (j - c)  # in blocks, times 128
    inside = wanted & (j >= 0) & (j <= i) & (apart < blocks.near * BLOCK)
    offset = (i // BLOCK - blocks.first) * blocks.near * (BLOCK * BLOCK) + apart * BLOCK
    return tl.load(at + offset + r * BLOCK + c, mask=inside, other=0.0).to(tl.float32)  # [R, N]


@triton.jit
def middle_at(at, r, j, wanted, blocks, NODES: tl.constexpr):
    """Gradients of middle nodes in rows of nodes r; 0 where not wanted, or where j is not one of their keys."""
    c = j & (TILE - 1)
    q = (c * (NODES - 1) + (TILE - 1) // 2) // (TILE - 1)  # the nearest node
    apart = r // NODES // 2 * BLOCK - (j - (j & (BLOCK - 1)))  # in blocks, times 128
    there = wanted & (j >= 0) & (node_at(q, NODES) == c)
    there &= (apart >= blocks.near * BLOCK) & (apart < blocks.middle * BLOCK)
    index = tile_index(blocks, r // NODES, 0, False)  # of the row's first key
    offset = index * (NODES * NODES) + (j - c) * (NODES * NODES // TILE) + r % NODES * NODES + q
    return tl.load(at + offset, mask=there, other=0.0).to(tl.float32)  # [R, N]


@triton.jit
def near_rows(at, a, closest, blocks, first_node, last, S, ROWS: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    """The contribution of near gradients to a row node and to the next, at N distances from `closest` on.

    Summed over rows in steps of R, and over those R, across threads, by the caller: [R, N].
    """
    d = (closest + tl.arange(0, N))[None, :]
    own, following = tl.zeros([R, N], tl.float32), tl.zeros([R, N], tl.float32)
    here, gap = node_position(a + first_node, ROWS)
    start = tl.maximum(here, blocks.first * BLOCK)
    end = tl.minimum(tl.minimum(here + gap, last + 1), S)
    if (closest < blocks.near * BLOCK) & (2 * closest < end):  # at the same distance
        for step in range((end - start + R - 1) // R):
            i = (start + step * R + tl.arange(0, R))[:, None]
            _node, _left, _right, t = cell(i, last, ROWS)
            found = near_at(at, i, i - d, (2 * d <= i) & (i < end), blocks)
            own += (1 - t) * found
            following += t * found
    start, end = row_range(a, first_node, last, ROWS)
    start, end = tl.maximum(start, blocks.first * BLOCK), tl.minimum(end, S)
    if (closest < (blocks.near + 1) * BLOCK) & (
        start < 2 * blocks.near * BLOCK
    ):  # at the same key, where no pair is farther
        for step in range((end - start + R - 1) // R):
            i = (start + step * R + tl.arange(0, R))[:, None]
            weight, seen = row_weight(i, a + first_node, last, ROWS)
            j = seen - d
            found = near_at(at, i, j, (2 * (i - j) > i) & (i < end), blocks)
            own += weight * found
    return own, following


@triton.jit
def middle_rows(
    at, a, closest, blocks, first_node, last,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The contribution of middle nodes to a row node and to the next, at N distances from `closest` on: [R, N]."""
    d = (closest + tl.arange(0, N))[None, :]
    own, following = tl.zeros([R, N], tl.float32), tl.zeros([R, N], tl.float32)
    here, gap = node_position(a + first_node, ROWS)
    start, end = tl.maximum(here, blocks.first * BLOCK), tl.minimum(here + gap, last + 1)
    if (closest + N > (blocks.near - 1) * BLOCK) & (2 * closest < end):  # at the same distance
        first = start // TILE * NODES
        for step in range(((end + TILE - 1) // TILE * NODES - first + R - 1) // R):
            r = (first + step * R + tl.arange(0, R))[:, None]
            i = r // NODES * TILE + node_at(r % NODES, NODES)
            _node, _left, _right, t = cell(i, last, ROWS)
            wanted = (2 * d <= i) & (i >= start) & (i < end)
            found = middle_at(at, r, i - d, wanted, blocks, NODES)
            own += (1 - t) * found
            following += t * found
    start, end = row_range(a, first_node, last, ROWS)
    start = tl.maximum(start, blocks.first * BLOCK)
    # an eighth more: at the same key, the distance from a node's row differs a little
    there = (closest + N > (blocks.near - 1) * BLOCK * 7 // 8) & (closest < end)
    if there & (2 * (closest + N) > start - (end - start)):  # at the same key
        first = start // TILE * NODES
        for step in range(((end + TILE - 1) // TILE * NODES - first + R - 1) // R):
            r = (first + step * R + tl.arange(0, R))[:, None]
            i = r // NODES * TILE + node_at(r % NODES, NODES)
            weight, seen = row_weight(i, a + first_node, last, ROWS)
            j = seen - d
            wanted = (2 * (i - j) > i) & (i >= start) & (i < end)
            found = middle_at(at, r, j, wanted, blocks, NODES)
            own += weight * found
    return own, following


@triton.jit(do_not_specialize=LENGTHS)
def collect_rows(
    dNear,  # (heads, groups, blocks apart, 128, 128)
    dMiddle,  # (heads, middle_per_head), or None
    Sums,  # (2, A, heads, E), E every distance
    S, E, groups, near_blocks, middle_blocks, first_node, first_block, last, middle_per_head,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """N distances of one row node.

    Sums[0] is for the node itself; Sums[1] is what the rows between it and the next node contribute to the next one.
    Those rows see both at the same distance and are read once.
    """
    a, h = tl.program_id(0), tl.program_id(1)
    closest = tl.program_id(2) * N
    blocks = Blocks(first_block, near_blocks, middle_blocks)
    at = dNear + h.to(tl.int64) * groups * near_blocks * BLOCK * BLOCK
    own, following = near_rows(at, a, closest, blocks, first_node, last, S, ROWS, N, R)
    if dMiddle is not None:
        at_nodes = dMiddle + h.to(tl.int64) * middle_per_head
        more, more_following = middle_rows(at_nodes, a, closest, blocks, first_node, last, ROWS, NODES, N, R)
        own += more
        following += more_following
    A, heads = tl.num_programs(0), tl.num_programs(1)
    offset = (a * heads + h) * E + closest + tl.arange(0, N)
    tl.store(Sums + offset, tl.sum(own, 0))  # [N]
    tl.store(Sums + A * heads * E + offset, tl.sum(following, 0))  # [N]


@triton.jit(do_not_specialize=LENGTHS)
def collect_distances(
    Sums,  # (2, A, heads, farthest)
    dSamples,  # (A, H, E)
    first_head, E, farthest, row_stride, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N samples of one row node and head, from the sums at every distance."""
    a, h = tl.program_id(0), tl.program_id(1)
    A, heads = tl.num_programs(0), tl.num_programs(1)
    node = tl.program_id(2) * N + tl.arange(0, N)
    there = node < E
    before, position, after = distance_range(node, DISTANCES)
    widest = tl.max(tl.where(there, after - position, 1), 0)
    here, _gap = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    at = Sums + (a * heads + h) * farthest
    previous = Sums + ((A + tl.maximum(a - 1, 0)) * heads + h) * farthest
    farthest_of_previous = tl.where(a > 0, farthest, 0)
    total = tl.zeros([N], tl.float32)
    if tl.min(before, 0) < farthest:
        for offset in range(1 - widest, widest):
            d = position + offset
            u = hat(d, before, position, after, own)
            found = tl.load(at + d, mask=(u > 0) & (d < farthest), other=0.0)  # [N]
            found += tl.load(previous + d, mask=(u > 0) & (d < farthest_of_previous), other=0.0)  # [N]
            total += u * found
    tl.store(dSamples + a * row_stride + (first_head + h) * E + node, total, mask=there)  # [N]


# --- the far zone ---------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=LENGTHS)
def collect_far_rows(
    dNodes,  # (H, nodes_per_head)
    ByDistance,  # (2, A, H, tiles, 8)
    ByKey,  # (A, H, tiles, 4)
    nodes_per_head, tiles, first_far, near_blocks, middle_blocks, first_node, first_block, last,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The contribution of N tiles' far nodes to a row node, from `first_far` on.

    ByDistance: pairs interpolated at the same distance, by the number of tiles between key and query and by how many
    nodes further into its tile the query is, from −3; [0] for the node itself, [1] for the next, as in `collect_rows`.
    ByKey: pairs interpolated at the same key, by that key.
    """
    a, h = tl.program_id(0) + first_far, tl.program_id(1)
    blocks = Blocks(first_block, near_blocks, middle_blocks)
    here, gap = node_position(a + first_node, ROWS)
    start, end = row_range(a, first_node, last, ROWS)
    first_tile = tl.maximum(tl.maximum(start // TILE, 2 * first_block), 2 * middle_blocks)
    lane = (tl.program_id(2) * N + tl.arange(0, N))[:, None]
    further = tl.arange(0, 8)[None, :] - (NODES - 1)
    key_node = tl.arange(0, NODES)[None, :]
    key = lane * TILE + node_at(key_node, NODES)  # [N, NODES]
    at = dNodes + h.to(tl.int64) * nodes_per_head
    own, following = tl.zeros([N, 8], tl.float32), tl.zeros([N, 8], tl.float32)
    by_key = tl.zeros([N, NODES], tl.float32)
    for tile in range(first_tile, (end + TILE - 1) // TILE):
        index = tile_index(blocks, tile, 0 * lane, True)  # of the row's first tile
        for p in tl.static_range(NODES):
            i = tile * TILE + node_at(p, NODES) + 0 * lane
            _node, _left, _right, t = cell(i, last, ROWS)
            q = p - further
            d = lane * TILE + node_at(p, NODES) - node_at(q, NODES)
            there = (q >= 0) & (q < NODES) & (lane <= tile) & (tile // 2 - (tile - lane) // 2 >= middle_blocks)
            there &= (i >= here) & (i < here + gap) & (i < end) & (2 * d <= i)
            pointers = at + (index + tile - lane) * (NODES * NODES) + p * NODES + q
            found = tl.load(pointers, mask=there, other=0.0)  # [N, 8]
            own += (1 - t) * found.to(tl.float32)
            following += t * found.to(tl.float32)
            weight, _seen = row_weight(i, a + first_node, last, ROWS)
            there = (tile // 2 - lane // 2 >= middle_blocks) & (i >= start) & (i < end) & (2 * (i - key) > i)
            pointers_by_key = at + (index + lane) * (NODES * NODES) + p * NODES + key_node
            found = tl.load(pointers_by_key, mask=there, other=0.0)  # [N, NODES]
            by_key += weight * found.to(tl.float32)
    A, heads = tl.num_programs(0), tl.num_programs(1)
    offset = (tl.program_id(0) * heads + h) * tiles + lane
    tl.store(ByDistance + offset * 8 + further + (NODES - 1), own)  # [N, 8]
    tl.store(ByDistance + (A * heads * tiles + offset) * 8 + further + (NODES - 1), following)  # [N, 8]
    tl.store(ByKey + offset * NODES + key_node, by_key)  # [N, NODES]


@triton.jit(do_not_specialize=LENGTHS)
def collect_far_distances(
    ByDistance,  # (2, A, H, tiles, 8)
    ByKey,  # (A, H, tiles, 4)
    dSamples,  # (A, H, E)
    E, row_stride, tiles, first_far, middle_blocks, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add the far zone's contribution to N samples of one row node and head."""
    a, h = tl.program_id(0) + first_far, tl.program_id(1)
    A, heads = tl.num_programs(0), tl.num_programs(1)
    node = (tl.program_id(2) * N + tl.arange(0, N))[None, :]
    before, position, after = distance_range(node, DISTANCES)
    widest = tl.max(tl.max(tl.where(node < E, after - position, 1), 1), 0)
    here, _gap = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    # an eighth more: at the same key, the distance from a node's row differs a little
    if tl.max(tl.max(after, 1), 0) > (middle_blocks - 1) * BLOCK * 7 // 8:
        total = tl.zeros([N], tl.float32)
        at = (tl.program_id(0) * heads + h) * tiles
        previous = (A * heads + tl.maximum(tl.program_id(0) - 1, 0) * heads + h) * tiles
        tiles_of_previous = tl.where(tl.program_id(0) > 0, tiles, 0)
        eighth = tl.arange(0, 8)[:, None]
        first = tl.maximum(before - TILE, 0) // TILE
        for step in range((2 * widest + 2 * TILE) // TILE + 2):
            tile = first + step
            d = tile * TILE + node_at(eighth, NODES) - node_at(NODES - 1, NODES)
            u = tl.where(eighth < 2 * NODES - 1, hat(d, before, position, after, own), 0.0)
            found = tl.load(ByDistance + (at + tile) * 8 + eighth, mask=(u > 0) & (tile < tiles), other=0.0)  # [8, N]
            there = (u > 0) & (tile < tiles_of_previous)
            found += tl.load(ByDistance + (previous + tile) * 8 + eighth, mask=there, other=0.0)  # [8, N]
            total += tl.sum(u * found, 0)
        key_node = tl.arange(0, NODES)[:, None]
        first = tl.maximum(own - after, 0) // TILE
        for step in range(2 * widest // TILE + 2):
            tile = first + step
            d = own - tile * TILE - node_at(key_node, NODES)
            u = hat(d, before, position, after, own)
            there = (u > 0) & (tile < tiles)
            found = tl.load(ByKey + (at + tile) * NODES + key_node, mask=there, other=0.0)  # [NODES, N]
            total += tl.sum(u * found, 0)
        sample = tl.program_id(2) * N + tl.arange(0, N)
        pointers = dSamples + a * row_stride + h * E + sample
        tl.store(pointers, tl.load(pointers, mask=sample < E, other=0.0) + total, mask=sample < E)  # [N]
