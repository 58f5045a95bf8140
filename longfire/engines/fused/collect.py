"""The adjoint of `expand`: from gradients of near biases and nodes to gradients of the values.

Each program owns values and goes looking for what they went into, so that nothing is added by two programs at once.
"""

import triton
import triton.language as tl

from longfire.engines.fused.expand import cell, node_position
from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    TILE,
    node_at,
    tile_index,
)


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
    dNear, dMiddle, Sums, S, E, groups, near_blocks, middle_blocks, first_node, first_block, last, middle_per_head,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Sums (2, A, heads, E) at every distance below E, of near gradients and of middle nodes (if NODES is not 0).

    First what a row node has of them but for second, what the rows from it to the next node have for that one: those
    rows see both at the same distance. All are summed over the batch already.
    """
    a, h = tl.program_id(0), tl.program_id(1)
    closest = tl.program_id(2) * N
    at = dNear + h.to(tl.int64) * groups * near_blocks * BLOCK * BLOCK
    own, following = near_rows(at, a, closest, near_blocks, first_node, first_block, last, S, ROWS, N, R)
    if NODES > 0:
        at_nodes = dMiddle + h.to(tl.int64) * middle_per_head
        more, more_following = middle_rows(
            at_nodes, a, closest, near_blocks, middle_blocks, first_node, first_block, last, ROWS, NODES, N, R
        )
        own += more
        following += more_following
    A, heads = tl.num_programs(0), tl.num_programs(1)
    offset = (a * heads + h) * E + closest + tl.arange(0, N)
    tl.store(Sums + offset, own)
    tl.store(Sums + A * heads * E + offset, following)


@triton.jit
def near_rows(
    at, a, closest, near_blocks, first_node, first_block, last, S, ROWS: tl.constexpr, N: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """What near gradients say to a row node, and to the next, at N distances from `closest` on."""
    d = (closest + tl.arange(0, N))[None, :]
    own, following = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    here, gap = node_position(a + first_node, ROWS)
    start = tl.maximum(here, first_block * BLOCK)
    end = tl.minimum(tl.minimum(here + gap, last + 1), S)
    if (closest < near_blocks * BLOCK) & (2 * closest < end):  # at the same distance
        for step in range((end - start + R - 1) // R):
            i = (start + step * R + tl.arange(0, R))[:, None]
            _node, _left, _right, t = cell(i, last, ROWS)
            found = near_at(at, i, i - d, (2 * d <= i) & (i < end), near_blocks, first_block)
            own += tl.sum((1 - t) * found, 0)
            following += tl.sum(t * found, 0)
    start, end = row_range(a, first_node, last, ROWS)
    start, end = tl.maximum(start, first_block * BLOCK), tl.minimum(end, S)
    if (closest < (near_blocks + 1) * BLOCK) & (start < 2 * near_blocks * BLOCK):  # at the same key; no pair farther on
        for step in range((end - start + R - 1) // R):
            i = (start + step * R + tl.arange(0, R))[:, None]
            weight, seen = row_weight(i, a + first_node, last, ROWS)
            j = seen - d
            found = near_at(at, i, j, (2 * (i - j) > i) & (i < end), near_blocks, first_block)
            own += tl.sum(weight * found, 0)
    return own, following


@triton.jit
def middle_rows(
    at, a, closest, near_blocks, middle_blocks, first_node, first_block, last,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """What middle nodes say to a row node, and to the next, at N distances from `closest` on."""
    d = (closest + tl.arange(0, N))[None, :]
    own, following = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    here, gap = node_position(a + first_node, ROWS)
    start, end = tl.maximum(here, first_block * BLOCK), tl.minimum(here + gap, last + 1)
    if (closest + N > (near_blocks - 1) * BLOCK) & (2 * closest < end):  # at the same distance
        first = start // TILE * NODES
        for step in range(((end + TILE - 1) // TILE * NODES - first + R - 1) // R):
            r = (first + step * R + tl.arange(0, R))[:, None]
            i = r // NODES * TILE + node_at(r % NODES, NODES)
            _node, _left, _right, t = cell(i, last, ROWS)
            wanted = (2 * d <= i) & (i >= start) & (i < end)
            found = middle_at(at, r, i - d, wanted, near_blocks, middle_blocks, first_block, NODES)
            own += tl.sum((1 - t) * found, 0)
            following += tl.sum(t * found, 0)
    start, end = row_range(a, first_node, last, ROWS)
    start = tl.maximum(start, first_block * BLOCK)
    # an eighth to spare: compared at the same key, a pair's distance in a node's row is a little another
    there = (closest + N > (near_blocks - 1) * BLOCK * 7 // 8) & (closest < end)
    if there & (2 * (closest + N) > start - (end - start)):  # at the same key
        first = start // TILE * NODES
        for step in range(((end + TILE - 1) // TILE * NODES - first + R - 1) // R):
            r = (first + step * R + tl.arange(0, R))[:, None]
            i = r // NODES * TILE + node_at(r % NODES, NODES)
            weight, seen = row_weight(i, a + first_node, last, ROWS)
            j = seen - d
            wanted = (2 * (i - j) > i) & (i >= start) & (i < end)
            found = middle_at(at, r, j, wanted, near_blocks, middle_blocks, first_block, NODES)
            own += tl.sum(weight * found, 0)
    return own, following


@triton.jit(do_not_specialize=LENGTHS)
def near(
    Sums, dValues, first_head, E, farthest, row_stride, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N values of one row node and head, from the sums at every distance."""
    a, h = tl.program_id(0), tl.program_id(1)
    A, heads = tl.num_programs(0), tl.num_programs(1)
    node = tl.program_id(2) * N + tl.arange(0, N)
    there = node < E
    before, position, after = distance_range(node, DISTANCES)
    widest = tl.max(tl.where(there, after - position, 1), 0)
    here, _step = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    at = Sums + (a * heads + h) * farthest
    before_it = Sums + ((A + tl.maximum(a - 1, 0)) * heads + h) * farthest
    farthest_before_it = tl.where(a > 0, farthest, 0)
    total = tl.zeros([N], tl.float32)
    if tl.min(before, 0) < farthest:
        for offset in range(1 - widest, widest):
            d = position + offset
            u = hat(d, before, position, after, own)
            found = tl.load(at + d, mask=(u > 0) & (d < farthest), other=0.0)
            found += tl.load(before_it + d, mask=(u > 0) & (d < farthest_before_it), other=0.0)
            total += u * found
    tl.store(dValues + a * row_stride + (first_head + h) * E + node, total, mask=there)


@triton.jit
def middle_at(at, r, j, wanted, near_blocks, middle_blocks, first_block, NODES: tl.constexpr):
    """Gradients of middle nodes in rows of nodes r; 0 where they are not wanted, or j is none of their keys."""
    c = j & (TILE - 1)
    q = (c * (NODES - 1) + (TILE - 1) // 2) // (TILE - 1)  # the nearest node
    apart = r // NODES // 2 * BLOCK - (j - (j & (BLOCK - 1)))  # blocks, times 128
    there = wanted & (j >= 0) & (node_at(q, NODES) == c)
    there &= (apart >= near_blocks * BLOCK) & (apart < middle_blocks * BLOCK)
    index = tile_index(r // NODES, 0, first_block, near_blocks, middle_blocks, False)  # of the row's first key
    offset = index * (NODES * NODES) + (j - c) * (NODES * NODES // TILE) + r % NODES * NODES + q
    return tl.load(at + offset, mask=there, other=0.0).to(tl.float32)


@triton.jit
def near_at(at, i, j, wanted, near_blocks, first_block):
    """Near gradients of pairs; 0 where they are not wanted or not near."""
    r, c = i & (BLOCK - 1), j & (BLOCK - 1)  # in the block; and no division where there may be a sign
    apart = (i - r) - (j - c)  # its blocks, times 128
    inside = wanted & (j >= 0) & (j <= i) & (apart < near_blocks * BLOCK)
    offset = (i // BLOCK - first_block) * near_blocks * (BLOCK * BLOCK) + apart * BLOCK
    return tl.load(at + offset + r * BLOCK + c, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=LENGTHS)
def far_rows(
    dNodes, ByDistance, ByKey, nodes_per_head, tiles, first_far, near_blocks, middle_blocks, first_node, first_block,
    last,
    ROWS: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """What the far nodes of a row node's queries say, for N tiles, of row nodes from `first_far` on.

    ByDistance (2, A, heads, tiles, 8): where rows are compared at the same distance, by how many tiles the keys are
    before the query's and how many nodes the query's is further on in its tile than the key's, from 3 before on; as in
    `rows` first for the node itself, then for the next one. ByKey (A, heads, tiles, 4): where they are compared at the
    same key, by that key.
    """
    a, h = tl.program_id(0) + first_far, tl.program_id(1)
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
        index = tile_index(tile, 0 * lane, first_block, near_blocks, middle_blocks, True)  # of the row's first tile
        for p in tl.static_range(NODES):
            i = tile * TILE + node_at(p, NODES) + 0 * lane
            _node, _left, _right, t = cell(i, last, ROWS)
            q = p - further
            d = lane * TILE + node_at(p, NODES) - node_at(q, NODES)
            there = (q >= 0) & (q < NODES) & (lane <= tile) & (tile // 2 - (tile - lane) // 2 >= middle_blocks)
            there &= (i >= here) & (i < here + gap) & (i < end) & (2 * d <= i)
            found = tl.load(at + (index + tile - lane) * (NODES * NODES) + p * NODES + q, mask=there, other=0.0)
            own += (1 - t) * found.to(tl.float32)
            following += t * found.to(tl.float32)
            weight, _seen = row_weight(i, a + first_node, last, ROWS)
            there = (tile // 2 - lane // 2 >= middle_blocks) & (i >= start) & (i < end) & (2 * (i - key) > i)
            found = tl.load(at + (index + lane) * (NODES * NODES) + p * NODES + key_node, mask=there, other=0.0)
            by_key += weight * found.to(tl.float32)
    A, heads = tl.num_programs(0), tl.num_programs(1)
    offset = (tl.program_id(0) * heads + h) * tiles + lane
    tl.store(ByDistance + offset * 8 + further + (NODES - 1), own)
    tl.store(ByDistance + (A * heads * tiles + offset) * 8 + further + (NODES - 1), following)
    tl.store(ByKey + offset * NODES + key_node, by_key)


@triton.jit(do_not_specialize=LENGTHS)
def far(
    ByDistance, ByKey, dValues, E, row_stride, tiles, first_far, middle_blocks, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Adds what the nodes of the far zone say to N values of one row node and head."""
    a, h = tl.program_id(0) + first_far, tl.program_id(1)
    A, heads = tl.num_programs(0), tl.num_programs(1)
    node = (tl.program_id(2) * N + tl.arange(0, N))[None, :]
    before, position, after = distance_range(node, DISTANCES)
    widest = tl.max(tl.max(tl.where(node < E, after - position, 1), 1), 0)
    here, _gap = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    # an eighth to spare: compared at the same key, a pair's distance in a node's row is a little another
    if tl.max(tl.max(after, 1), 0) > (middle_blocks - 1) * BLOCK * 7 // 8:
        total = tl.zeros([N], tl.float32)
        at = (tl.program_id(0) * heads + h) * tiles
        before_it = (A * heads + tl.maximum(tl.program_id(0) - 1, 0) * heads + h) * tiles
        tiles_before_it = tl.where(tl.program_id(0) > 0, tiles, 0)
        eighth = tl.arange(0, 8)[:, None]
        first = tl.maximum(before - TILE, 0) // TILE
        for step in range((2 * widest + 2 * TILE) // TILE + 2):
            tile = first + step
            d = tile * TILE + node_at(eighth, NODES) - node_at(NODES - 1, NODES)
            u = tl.where(eighth < 2 * NODES - 1, hat(d, before, position, after, own), 0.0)
            found = tl.load(ByDistance + (at + tile) * 8 + eighth, mask=(u > 0) & (tile < tiles), other=0.0)
            found += tl.load(
                ByDistance + (before_it + tile) * 8 + eighth, mask=(u > 0) & (tile < tiles_before_it), other=0.0
            )
            total += tl.sum(u * found, 0)
        key_node = tl.arange(0, NODES)[:, None]
        first = tl.maximum(own - after, 0) // TILE
        for step in range(2 * widest // TILE + 2):
            tile = first + step
            d = own - tile * TILE - node_at(key_node, NODES)
            u = hat(d, before, position, after, own)
            found = tl.load(ByKey + (at + tile) * NODES + key_node, mask=(u > 0) & (tile < tiles), other=0.0)
            total += tl.sum(u * found, 0)
        value = tl.program_id(2) * N + tl.arange(0, N)
        pointers = dValues + a * row_stride + h * E + value
        tl.store(pointers, tl.load(pointers, mask=value < E, other=0.0) + total, mask=value < E)


@triton.jit(do_not_specialize=LENGTHS)
def diagonals(dNear, dValues, first_head, E, groups, near_blocks, N: tl.constexpr, R: tl.constexpr):
    """Sums along diagonals: the values of a bias of the distance alone. N divides 128."""
    r = (tl.program_id(0) * N % BLOCK + tl.arange(0, N))[None, :]
    apart = tl.program_id(0) * N // BLOCK
    h = tl.program_id(1)
    at = dNear + h.to(tl.int64) * groups * near_blocks * BLOCK * BLOCK
    total = tl.zeros([N], tl.float32)
    for g in range(groups):
        for row in range(0, BLOCK, R):
            i = (row + tl.arange(0, R))[:, None]
            block = g * near_blocks + apart + tl.where(i >= r, 0, 1)
            there = block < (g + 1) * near_blocks
            offset = block.to(tl.int64) * (BLOCK * BLOCK) + i * BLOCK + (i - r + BLOCK) % BLOCK
            total += tl.sum(tl.load(at + offset, mask=there, other=0.0), 0)
    d = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(dValues + (first_head + h) * E + d, total, mask=d < E)
