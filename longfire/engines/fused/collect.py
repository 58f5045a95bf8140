"""The adjoint of `expand`: from gradients of near biases and nodes to gradients of the values.

Each program owns values and goes looking for what they went into, so that nothing is added by two programs at once.
"""

import triton
import triton.language as tl

from longfire.engines.fused.expand import cell, node_position
from longfire.engines.fused.tiles import BLOCK, LENGTHS, TILE, node_at, tile_index


@triton.jit
def row_range(a, first_node, last, ROWS: tl.constexpr):
    """The queries that a row node counts for: from, to (not included)."""
    here, step = node_position(a + first_node, ROWS)
    before, _ = node_position(tl.maximum(a + first_node - 1, 0), ROWS)
    return tl.where(a == 0, tl.minimum(here, last), before + 1), tl.minimum(here + step, last + 1)


@triton.jit
def row_weight(i, node, last, ROWS: tl.constexpr):
    """How much a row node counts for row i, one of its own, and where that row sees it."""
    left_node, left, right, t = cell(i, last, ROWS)
    return tl.where(left_node == node, 1 - t, t), tl.where(left_node == node, left, right)


@triton.jit
def distance_range(node, DISTANCES: tl.constexpr):
    """Where distance nodes are, and their neighbours on either side."""
    here, step = node_position(node, DISTANCES)
    before, _ = node_position(tl.maximum(node - 1, 0), DISTANCES)
    return tl.where(node == 0, -1, before), here, here + step


@triton.jit
def hat(d, before, here, after, last):
    """How much a node counts at distance d in a row whose last distance is `last`."""
    here = tl.minimum(here, last)
    after = tl.minimum(after, last)
    rising = (d - before).to(tl.float32) / tl.maximum(here - before, 1).to(tl.float32)
    falling = (after - d).to(tl.float32) / tl.maximum(after - here, 1).to(tl.float32)
    return tl.where((d >= 0) & (d <= last), tl.maximum(tl.where(d <= here, rising, falling), 0.0), 0.0)


@triton.jit(do_not_specialize=LENGTHS)
def rows(
    dNear, Sums, E, groups, near_blocks, first_node, first_block, keys, last,
    ROWS: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Sums (A, heads, E): near gradients of a row node, at every distance below E."""
    a, h = tl.program_id(0), tl.program_id(1)
    d = (tl.program_id(2) * N + tl.arange(0, N))[None, :]
    start, end = row_range(a, first_node, last, ROWS)
    end = tl.minimum(end, keys) if tl.min(d) < (near_blocks + 1) * BLOCK else start
    at = dNear + h.to(tl.int64) * groups * near_blocks * BLOCK * BLOCK
    total = tl.zeros([N], tl.float32)
    for step in range((end - start + R - 1) // R):
        i = (start + step * R + tl.arange(0, R))[:, None]
        weight, own = row_weight(i, a + first_node, last, ROWS)
        weight = tl.where((i < end) & (d <= own), weight, 0.0)
        total += tl.sum(weight * near_at(at, i, i - d, near_blocks, first_block, (2 * d <= i) & (weight > 0)), 0)
        if start < 2 * E:  # farther on no near pair is compared at the same key
            slid = i - own + d  # the distance in row i of the key that is at d in this node's row
            total += tl.sum(
                weight * near_at(at, i, i - slid, near_blocks, first_block, (2 * slid > i) & (weight > 0)), 0
            )
    tl.store(Sums + (a * tl.num_programs(1) + h) * E + tl.program_id(2) * N + tl.arange(0, N), total)


@triton.jit(do_not_specialize=LENGTHS)
def node_rows(
    dNodes, Sums, E, nodes_per_head, near_blocks, middle_blocks, first_node, first_block, last_block, last,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Adds to Sums what the nodes of the middle zone say at every distance below E."""
    a, h = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * N + tl.arange(0, N)
    start, end = row_range(a, first_node, last, ROWS)
    first = tl.maximum(start // TILE, 2 * first_block) * NODES
    stop = tl.minimum(end // TILE + 1, 2 * last_block) * NODES
    if (tl.max(d, 0) > (near_blocks - 1) * BLOCK * 7 // 8) & (tl.min(d, 0) < end):
        at = dNodes + h.to(tl.int64) * nodes_per_head
        total = tl.zeros([N], tl.float32)
        for step in range((stop - first + R - 1) // R):
            r = (first + step * R + tl.arange(0, R))[:, None]
            i = r // NODES * TILE + node_at(r % NODES, NODES)
            weight, own = row_weight(i, a + first_node, last, ROWS)
            weight = tl.where((i >= start) & (i < end) & (r < stop) & (d[None, :] <= own), weight, 0.0)
            for slide in tl.static_range(2):
                # which of the two ways of comparing there is among these rows
                if (2 * tl.max(d, 0) >= start - (end - start)) if slide else (2 * tl.min(d, 0) <= end):
                    j = (own if slide else i) - d[None, :]
                    q = ((j % TILE) * (NODES - 1) + (TILE - 1) // 2) // (TILE - 1)  # the nearest node
                    there = (2 * (i - j) > i) if slide else (2 * (i - j) <= i)
                    apart = r // NODES // 2 - j // BLOCK
                    there &= (
                        (j >= 0) & (node_at(q, NODES) == j % TILE) & (apart >= near_blocks) & (apart < middle_blocks)
                    )
                    index = tile_index(r // NODES, j // TILE, first_block, near_blocks, middle_blocks, False)
                    offset = index * (NODES * NODES) + r % NODES * NODES + q
                    total += tl.sum(weight * tl.load(at + offset, mask=there & (weight > 0), other=0.0), 0)
        pointers = Sums + (a * tl.num_programs(1) + h) * E + d
        tl.store(pointers, tl.load(pointers) + total)


@triton.jit(do_not_specialize=LENGTHS)
def near(
    Sums, dValues, first_head, E, farthest, row_stride, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N values of one row node and head, from the sums at every distance."""
    a, h = tl.program_id(0), tl.program_id(1)
    node = tl.program_id(2) * N + tl.arange(0, N)
    there = node < E
    before, position, after = distance_range(node, DISTANCES)
    widest = tl.max(tl.where(there, after - position, 1), 0)
    here, _step = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    at = Sums + (a * tl.num_programs(1) + h) * farthest
    total = tl.zeros([N], tl.float32)
    if tl.min(before, 0) < farthest:
        for offset in range(1 - widest, widest):
            d = position + offset
            u = hat(d, before, position, after, own)
            total += u * tl.load(at + d, mask=(u > 0) & (d < farthest), other=0.0)
    tl.store(dValues + a * row_stride + (first_head + h) * E + node, total, mask=there)


@triton.jit
def near_at(at, i, j, near_blocks, first_block, wanted):
    """Near gradients of pairs; 0 where they are not wanted or not near."""
    block = i // BLOCK
    apart = block - j // BLOCK
    inside = wanted & (j >= 0) & (j <= i) & (apart < near_blocks)
    offset = ((block - first_block) * near_blocks + apart) * (BLOCK * BLOCK) + i % BLOCK * BLOCK + j % BLOCK
    return tl.load(at + offset, mask=inside, other=0.0)


@triton.jit(do_not_specialize=LENGTHS)
def far(
    dNodes, dValues, E, row_stride, nodes_per_head, near_blocks, middle_blocks, first_node, first_block, last_block,
    last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Adds what the nodes of the far zone say to N values of one row node and head."""
    a, h = tl.program_id(0), tl.program_id(1)
    node = tl.program_id(2) * N + tl.arange(0, N)
    there = node < E
    before, position, after = distance_range(node, DISTANCES)
    widest = tl.max(tl.where(there, after - position, 1), 0)
    start, end = row_range(a, first_node, last, ROWS)
    first = tl.maximum(start // TILE, 2 * first_block) * NODES
    stop = tl.minimum(end // TILE + 1, 2 * last_block) * NODES
    lowest, highest = tl.min(before, 0), tl.max(tl.where(there, after, 0), 0)
    # an eighth to spare: compared at the same key, a pair's distance in a node's row is a little another
    if (highest > (middle_blocks - 1) * BLOCK * 7 // 8) & (lowest < end):
        total = tl.zeros([N], tl.float32)
        at = dNodes + h.to(tl.int64) * nodes_per_head
        for step in range((stop - first + R - 1) // R):
            r = (first + step * R + tl.arange(0, R))[:, None]
            i = r // NODES * TILE + node_at(r % NODES, NODES)
            weight, own = row_weight(i, a + first_node, last, ROWS)
            weight = tl.where((i >= start) & (i < end) & (r < stop) & there[None, :], weight, 0.0)
            for slide in tl.static_range(2):
                # rows from `start` to `end` alone: which of the two ways there is in them
                if (2 * highest >= start - (end - start)) if slide else (2 * lowest <= end):
                    base = own if slide else i  # the key at distance 0
                    smallest = tl.maximum(base - after[None, :], 0)
                    c0 = smallest // TILE * NODES + (smallest % TILE) * (NODES - 1) // (TILE - 1)
                    for c in range(2 * widest * NODES // TILE + 3):
                        j = (c0 + c) // NODES * TILE + node_at((c0 + c) % NODES, NODES)
                        case = (2 * (i - j) > i) if slide else (2 * (i - j) <= i)
                        u = hat(base - j, before[None, :], position[None, :], after[None, :], own)
                        u = tl.where(case, weight * u, 0.0)
                        zone = r // NODES // 2 - j // BLOCK >= middle_blocks
                        index = tile_index(r // NODES, j // TILE, first_block, near_blocks, middle_blocks, True)
                        offset = index * (NODES * NODES) + r % NODES * NODES + (c0 + c) % NODES
                        total += tl.sum(u * tl.load(at + offset, mask=(u > 0) & zone, other=0.0), 0)
        pointers = dValues + a * row_stride + h * E + node
        tl.store(pointers, tl.load(pointers, mask=there, other=0.0) + total, mask=there)


@triton.jit(do_not_specialize=LENGTHS)
def diagonals(dNear, dValues, first_head, E, groups, near_blocks, N: tl.constexpr):
    """Sums along diagonals: the values of a bias of the distance alone. N divides 128."""
    r = tl.program_id(0) * N % BLOCK + tl.arange(0, N)
    apart = tl.program_id(0) * N // BLOCK
    h = tl.program_id(1)
    at = dNear + h.to(tl.int64) * groups * near_blocks * BLOCK * BLOCK
    total = tl.zeros([N], tl.float32)
    for g in range(groups):
        for row in range(BLOCK):
            i = row + 0 * r
            block = g * near_blocks + apart + tl.where(i >= r, 0, 1)
            there = block < (g + 1) * near_blocks
            offset = block.to(tl.int64) * (BLOCK * BLOCK) + i * BLOCK + (i - r + BLOCK) % BLOCK
            total += tl.load(at + offset, mask=there, other=0.0)
    d = apart * BLOCK + r
    tl.store(dValues + (first_head + h) * E + d, total, mask=d < E)
