"""Turn samples of a bias into what attention reads: near biases, and nodes of the middle and far zones.

In half precision they are stored relative to a reference. A reference shared by all keys of a query does not change its
softmax, so attention can ignore it; if all biases are near, there is one per block, which attention adds back.

With two sides, the first half of the heads is for keys up to the query, the second for keys after it. There, what is
stored at (later, earlier) position is the bias of the query at the earlier and the key at the later one.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.engines.fused import zones
from longfire.engines.fused.tiles import BLOCK, LENGTHS, LOG2E, TILE, ExpandedBias
from longfire.engines.fused.zones import FAR, MIDDLE, Zones, evaluated

FLOAT16_MAX = tl.constexpr(zones.FLOAT16_MAX)
LOWEST = tl.constexpr(-1e30)  # replaces −inf, whose differences are undefined
LOWEST_REFERENCE = tl.constexpr(-float(1 << 20))  # attention adds and subtracts it, each time rounding to its magnitude


def expand(samples: Tensor, where: Zones, relative: bool, scale: float) -> ExpandedBias:
    """Expand samples (A, H, E) into what attention reads.

    `relative`: in float16, relative to a reference; otherwise in float32. Attention divides nodes by `scale`.
    """
    A, H, E = samples.shape
    g = evaluated(where)
    out = empty_bias(samples, g, relative)
    blocks = g.near if g.by_distance else g.blocks
    shared = {
        "heads": H // g.sides,
        "references_per_head": g.references,
        "first_node": g.first_node,
        "first_block": g.first_block,
        "last": g.last,
        "near_blocks": g.near,
        "ROWS": g.rows_per_octave,
        "CAUSAL": g.causal,
        "RELATIVE": relative,
    }
    rows, farthest = samples, E
    if not g.by_distance:
        farthest = ((g.middle if g.has_middle else g.near) + 1) * zones.BLOCK
        rows = samples.new_empty(A, H, farthest)
        largest = out.reference if g.causal else samples.new_empty(H, A)
        expand_rows[A, H](
            Samples=samples, Rows=rows, Reference=largest, E=E, farthest=farthest, row_stride=H * E,
            first_node=g.first_node, last=g.last, ROWS=g.rows_per_octave, DISTANCES=g.distances_per_octave, N=1024,
        )  # fmt: skip
        if not g.causal:
            query_references[g.blocks, H // 2](
                Samples=samples, Largest=largest, Reference=out.reference, A=A, E=E, row_stride=H * E,
                first_node=g.first_node, first_block=g.first_block, last=g.last,
                ROWS=g.rows_per_octave, DISTANCES=g.distances_per_octave, N=1024,
            )  # fmt: skip
    elif relative and not g.exact:
        largest = samples[0].amax(1).clamp(min=LOWEST.value)  # of all keys: attention need not add it back
        out.reference.copy_(largest.unflatten(0, (g.sides, -1)).amax(0).repeat(g.sides)[:, None])
    elif relative:
        block_references[blocks, H](Samples=samples, Reference=out.reference, E=E, references_per_head=g.references)
    expand_near[blocks * 4, H, 1 if g.by_distance else g.near](
        Rows=rows, Reference=out.reference, Near=out.near, E=farthest, near_per_head=out.near.shape[1],
        row_stride=H * farthest, TABLE=g.by_distance, **shared, num_warps=4,
    )  # fmt: skip
    limit = zones.FLOAT16_MAX * min(1.0, scale)
    for nodes, zone in ((MIDDLE, out.middle), (FAR, out.far)):
        if zone.shape[1] == 0:
            continue
        if g.by_distance:
            expand_tiles[triton.cdiv(zone.shape[1], 1024), H](
                Samples=samples, Reference=out.reference, Nodes=zone, E=E, heads=H // g.sides, limit=limit,
                references_per_head=g.references, nodes_per_head=zone.shape[1], NODES=nodes, RELATIVE=relative, N=1024,
            )  # fmt: skip
            continue
        tiles = g.middle_tiles if nodes == MIDDLE else 2 * max(g.last_block - g.middle, 0)
        source, length, distances = (rows, farthest, 0) if nodes == MIDDLE else (samples, E, g.distances_per_octave)
        tiles_per_program = 1024 // nodes**2
        expand_nodes[2 * g.blocks, H, triton.cdiv(tiles, tiles_per_program)](
            Samples=source, Reference=out.reference, Nodes=zone, E=length, nodes_per_head=zone.shape[1],
            row_stride=H * length, largest=limit, middle_blocks=g.middle,
            DISTANCES=distances, NODES=nodes, FAR=nodes == FAR, N=tiles_per_program, **shared,
        )  # fmt: skip
    return out


def empty_bias(samples: Tensor, where: Any, relative: bool) -> ExpandedBias:
    """Output buffers of `expand`; `where` is a Zones."""
    H, dtype = samples.shape[1], torch.float16 if relative else torch.float32  # H: of both sides
    near, middle, far = (samples.new_empty(H, size, dtype=dtype) for size in where.sizes)
    return ExpandedBias(near, middle, far, samples.new_zeros(H, where.references))


def transposed(near: Tensor) -> Tensor:
    """Near biases with keys down and queries across, for a bias that depends only on the distance."""
    out = torch.empty_like(near)
    transpose_near[(near.numel() // zones.TILE**2,)](near, out)
    return out


# --- samples --------------------------------------------------------------------------------------------------------


@triton.jit
def cell(x, last, PER_OCTAVE: tl.constexpr):
    """The nodes around x: the left one's index, both positions (at most `last`), and where x is between (0 to 1)."""
    bits = (x.to(tl.float32) / PER_OCTAVE).to(tl.int32, bitcast=True)
    octave = tl.maximum((bits >> 23) - 127, 0)  # ⌊log₂⌋, exact below 2^24
    left = (x >> octave) << octave
    right = tl.minimum(left + (1 << octave), last)
    t = (x - left).to(tl.float32) / tl.maximum(right - left, 1).to(tl.float32)
    return octave * PER_OCTAVE + (x >> octave), left, right, t


@triton.jit
def node_position(index, PER_OCTAVE: tl.constexpr):
    """The position of a node, and the gap to the next."""
    octave = tl.maximum(index // PER_OCTAVE - 1, 0)
    return (index - octave * PER_OCTAVE) << octave, 1 << octave


@triton.jit
def along_row(samples, d, last, E, DISTANCES: tl.constexpr):
    """A row's bias at distances d, linearly interpolated between nodes."""
    node, _left, _right, u = cell(d, last, DISTANCES)
    here = tl.maximum(tl.load(samples + node), LOWEST)  # like d
    after = tl.maximum(tl.load(samples + tl.minimum(node + 1, E - 1)), LOWEST)  # like d
    return tl.where(u > 0, here + u * (after - here), here)


@triton.jit
def interpolate(samples, i, j, row_stride, first_node, last, E, ROWS: tl.constexpr, DISTANCES: tl.constexpr):
    """The biases of pairs (i, j) from one head's samples: at nodes, or at every distance below E if DISTANCES is 0."""
    d = tl.maximum(i - j, 0)
    row, left, right, t = cell(i, last, ROWS)
    slide = 2 * d > i  # towards the first key, interpolate between rows at the same key, otherwise at the same distance
    at = samples + (row - first_node) * row_stride
    next_row = at + tl.where(t > 0, row_stride, 0)
    if DISTANCES == 0:
        below = tl.load(at + tl.where(slide, left - j, d))  # like (i, j)
        above = tl.load(next_row + tl.where(slide & (t > 0), right - j, d))  # like (i, j)
    else:
        below = along_row(at, tl.where(slide, left - j, d), left, E, DISTANCES)
        above = along_row(next_row, tl.where(slide, right - j, d), right, E, DISTANCES)
    return tl.where(t > 0, below + t * (above - below), below)


@triton.jit(do_not_specialize=LENGTHS)
def expand_rows(
    Samples,  # (A, H, E)
    Rows,  # (A, H, farthest): the bias at every distance
    Reference,  # (H, A): each row's largest
    E, farthest, row_stride, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One row node and head. Relative to the row's largest bias, whatever matters in a softmax keeps its precision."""
    a, h = tl.program_id(0), tl.program_id(1)
    here, _gap = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    at = Samples + a * row_stride + h * E
    for step in range((farthest + N - 1) // N):
        d = step * N + tl.arange(0, N)
        value = along_row(at, tl.minimum(d, own), own, E, DISTANCES)
        tl.store(Rows + (a * tl.num_programs(1) + h) * farthest + d, value, mask=d < farthest)  # [N]
    highest = LOWEST
    for step in range((E + N - 1) // N):
        node = step * N + tl.arange(0, N)  # nodes past the row's last distance repeat the sample of its first key
        found = tl.load(at + node, mask=node < E, other=float("-inf"))  # [N]
        highest = tl.maximum(highest, tl.max(found, 0))
    tl.store(Reference + h * tl.num_programs(0) + a, highest)  # []


@triton.jit(do_not_specialize=LENGTHS)
def query_references(
    Samples,  # (A, 2·H, E)
    Largest,  # (2·H, A): each row's largest
    Reference,  # (2·H, blocks)
    A, E, row_stride, first_node, first_block, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The largest bias of a block's first query on both sides, for both."""
    H, blocks = tl.num_programs(1), tl.num_programs(0)
    h = tl.program_id(1)
    i = (tl.program_id(0) + first_block) * BLOCK
    row, _left, _right, _t = cell(i, last, ROWS)
    highest = tl.load(Largest + h * A + row - first_node)  # []
    for step in range((E + N - 1) // N):
        d, _gap = node_position(tl.minimum(step * N + tl.arange(0, N), E - 1), DISTANCES)
        j = tl.minimum(i + d, last)
        value = interpolate(Samples + (H + h) * E, j, i + 0 * j, row_stride, first_node, last, E, ROWS, DISTANCES)
        highest = tl.maximum(highest, tl.max(value, 0))
    tl.store(Reference + h * blocks + tl.program_id(0), highest)  # []
    tl.store(Reference + (H + h) * blocks + tl.program_id(0), highest)  # []


@triton.jit(do_not_specialize=LENGTHS)
def block_references(
    Samples,  # (1, H, E)
    Reference,  # (H, blocks)
    E,
    references_per_head,
):
    """The largest bias in a block, for a bias that depends only on the distance."""
    block, h = tl.program_id(0), tl.program_id(1)
    d = (block - 1) * BLOCK + 1 + tl.arange(0, 2 * BLOCK)  # the distances in a block, and one more
    there = (d >= 0) & (d < E) & (d < (block + 1) * BLOCK)
    found = tl.load(Samples + h * E + d, mask=there, other=float("-inf"))  # [2·BLOCK]
    tl.store(Reference + h * references_per_head + block, tl.maximum(tl.max(found, 0), LOWEST_REFERENCE))  # []


@triton.jit
def reference_index(
    block, query_block, first_block, first_node, last, ROWS: tl.constexpr, TABLE: tl.constexpr, CAUSAL: tl.constexpr
):
    """The reference of a row of blocks, or of a block if TABLE."""
    if TABLE:
        index = block
    elif CAUSAL:
        node, _left, _right, _t = cell(block * BLOCK, last, ROWS)
        index = node - first_node
    else:
        index = tl.maximum(query_block - first_block, 0)  # blocks of keys alone are never read
    return index


# --- near biases ----------------------------------------------------------------------------------------------------


class Blocks(NamedTuple):
    """Where zones begin, in blocks of 128."""

    first: Any  # the first query's
    near: Any
    middle: Any


@triton.jit
def near_index(blocks, block, key_block, TABLE: tl.constexpr):
    """Offset of a near block of 128 × 128, stored as 2 × 2 tiles."""
    if TABLE:
        return (block - key_block) * BLOCK * BLOCK
    return ((block - blocks.first) * blocks.near + key_block - block + blocks.near - 1) * BLOCK * BLOCK


@triton.jit
def fragment_position(element):
    """Row and column of a tile's elements, stored in the order of a tensor core accumulator."""
    c_high = element // 1024
    thread = element // 8 % 128
    row = thread // 32 * 16 + element // 2 % 2 * 8 + thread % 32 // 4
    column = c_high * 16 + element // 4 % 2 * 8 + thread % 4 * 2 + element % 2
    return row, column


@triton.jit
def fragment_offset(row, column):
    """The inverse of `fragment_position`."""
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    return column // 16 * 1024 + thread * 8 + column // 8 % 2 * 4 + row // 8 % 2 * 2 + column % 2


@triton.jit
def load_near(at, X: tl.constexpr):
    """Load a column [X, 64] of a block's tiles: each thread reads its own accumulator elements, 16 bytes at a time."""
    tile = tl.arange(0, X // TILE * 4)[:, None, None]
    offset = tile // 4 * (2 * TILE * TILE) + tile % 4 * 1024
    offset = offset + tl.arange(0, 128)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    held = tl.load(at + offset)  # [X/16, 128, 8]
    held = tl.reshape(held, [X // TILE, 4, 4, 8, 4, 2, 2, 2])
    return tl.reshape(tl.permute(held, (0, 2, 6, 3, 1, 5, 4, 7)), [X, TILE])


@triton.jit(do_not_specialize=LENGTHS)
def expand_near(
    Rows,  # (A, H, E): the bias at every distance
    Reference,  # (H, references)
    Near,  # (H, near_per_head)
    E, heads, references_per_head, near_per_head, row_stride, first_node, first_block, last, near_blocks,
    ROWS: tl.constexpr, CAUSAL: tl.constexpr, TABLE: tl.constexpr, RELATIVE: tl.constexpr,
):  # fmt: skip
    """One 64 × 64 tile of a near block, queries down and keys across, in units of log 2."""
    block, h = tl.program_id(0) // 4, tl.program_id(1)
    tile = tl.program_id(0) % 4
    if TABLE:
        key_block = 0 * block
    else:
        block += first_block
        key_block = block - tl.program_id(2)
    if key_block < 0:
        return
    part = tl.arange(0, 4)[:, None, None] * 1024
    own = tl.arange(0, 128)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    row, _ = fragment_position(own)  # [1, 128, 8]
    _, column = fragment_position(part + own)  # [4, 128, 8]
    down = tile // 2 * TILE + row
    across = tile % 2 * TILE + column
    query_block = block
    i = block * BLOCK + down
    j = key_block * BLOCK + across
    if not CAUSAL:
        after = h >= heads
        query_block = tl.where(after, key_block, block)
        i = block * BLOCK + tl.where(after, across, down)  # the later position
        j = key_block * BLOCK + tl.where(after, down, across)
    if TABLE:
        found = tl.load(Rows + h * E + tl.minimum(tl.maximum(i - j, 0), E - 1))  # [4, 128, 8]
        value = tl.maximum(found, LOWEST)
    else:
        value = interpolate(Rows + h * E, i, tl.minimum(j, i), row_stride, first_node, last, E, ROWS, 0)
    if RELATIVE:
        reference = reference_index(block, query_block, first_block, first_node, last, ROWS, TABLE, CAUSAL)
        value -= tl.load(Reference + h * references_per_head + reference)  # []
    value *= LOG2E
    if RELATIVE:
        value = tl.minimum(tl.maximum(value, -FLOAT16_MAX), FLOAT16_MAX)
    blocks = Blocks(first_block, near_blocks, near_blocks)
    at = Near + h.to(tl.int64) * near_per_head + near_index(blocks, block, key_block, TABLE)
    tl.store(at + tile * (TILE * TILE) + part + own, value.to(Near.dtype.element_ty))  # [4, 128, 8]


@triton.jit
def transpose_near(Near, Out):
    """Transpose one tile of a near block: keys down, queries across."""
    block = tl.program_id(0).to(tl.int64) // 4 * (BLOCK * BLOCK)
    tile = tl.program_id(0) % 4
    element = tl.arange(0, TILE * TILE)
    row, column = fragment_position(element)
    source = tile % 2 * 2 + tile // 2
    value = tl.load(Near + block + source * (TILE * TILE) + fragment_offset(column, row))  # [TILE·TILE]
    tl.store(Out + block + tile * (TILE * TILE) + element, value)  # [TILE·TILE]


# --- nodes of the middle and far zones ------------------------------------------------------------------------------


@triton.jit
def node_at(p, NODES: tl.constexpr):
    """The position of a node in its tile."""
    return (p * (TILE - 1) + (NODES - 1) // 2) // (NODES - 1)


@triton.jit
def tile_index(blocks, tile, key_tile, FAR: tl.constexpr, TABLE: tl.constexpr = False):
    """Index of a 64 × 64 tile in the middle or far zone. TABLE: of all tiles as far apart."""
    if TABLE:
        return tile - key_tile
    if FAR:
        rows = tl.maximum(tile // 2 - blocks.middle + 1, 0)
        skipped = tl.maximum(blocks.first - blocks.middle + 1, 0)
        return 2 * rows * (rows - 1) + tile % 2 * 2 * rows - 2 * skipped * (skipped - 1) + key_tile
    width = 2 * (blocks.middle - blocks.near)
    return (tile - 2 * blocks.first) * width + key_tile - 2 * (tile // 2 - blocks.middle + 1)


@triton.jit(do_not_specialize=LENGTHS)
def expand_nodes(
    Samples,  # (A, H, E)
    Reference,  # (H, A)
    Nodes,  # (H, nodes_per_head)
    E, heads, references_per_head, nodes_per_head, row_stride, first_node, first_block, last, near_blocks,
    middle_blocks, largest,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, NODES: tl.constexpr, FAR: tl.constexpr, CAUSAL: tl.constexpr,
    RELATIVE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The nodes of N tiles in a row of tiles, queries down and keys across."""
    tile, h = tl.program_id(0) + 2 * first_block, tl.program_id(1)
    block = tile // 2
    start = 0 if FAR else 2 * tl.maximum(block - middle_blocks + 1, 0)
    end = 2 * tl.maximum(block - (middle_blocks if FAR else near_blocks) + 1, 0)
    key_tile = (start + tl.program_id(2) * N + tl.arange(0, N))[:, None, None]
    p = tl.arange(0, NODES)[None, :, None]
    q = tl.arange(0, NODES)[None, None, :]
    inside = (key_tile < end) & (p >= 0) & (q >= 0)  # [N, NODES, NODES]
    i = tile * TILE + node_at(p, NODES)
    j = tl.minimum(key_tile, tile) * TILE + node_at(q, NODES)
    value = interpolate(Samples + h * E, i, tl.minimum(j, i), row_stride, first_node, last, E, ROWS, DISTANCES)
    query_block, query_node, key_node = block, p, q
    if not CAUSAL:
        after = h >= heads
        query_block = tl.where(after, tl.minimum(key_tile, tile) // 2, block)
        query_node, key_node = tl.where(after, q, p), tl.where(after, p, q)
    if RELATIVE:
        reference = reference_index(block, query_block, first_block, first_node, last, ROWS, False, CAUSAL)
        value -= tl.load(Reference + h * references_per_head + reference)  # [], or [N, 1, 1]
        value = tl.minimum(tl.maximum(value, -largest), largest)  # finite, with a weight that is still 0
    index = tile_index(Blocks(first_block, near_blocks, middle_blocks), tile, key_tile, FAR)
    offset = index * (NODES * NODES) + query_node * NODES + key_node
    tl.store(
        Nodes + h.to(tl.int64) * nodes_per_head + offset, value.to(Nodes.dtype.element_ty), mask=inside
    )  # [N, NODES, NODES]


@triton.jit(do_not_specialize=LENGTHS)
def expand_tiles(
    Samples,  # (1, H, E)
    Reference,  # (H, references)
    Nodes,  # (H, nodes_per_head)
    E, heads, references_per_head, nodes_per_head, limit,
    NODES: tl.constexpr, RELATIVE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N nodes of a bias that depends only on the distance, by how many tiles apart query and key are."""
    h = tl.program_id(1)
    node = tl.program_id(0) * N + tl.arange(0, N)
    later, earlier = node // NODES % NODES, node % NODES
    later, earlier = tl.where(h < heads, later, earlier), tl.where(h < heads, earlier, later)
    d = node // (NODES * NODES) * TILE + node_at(later, NODES) - node_at(earlier, NODES)
    value = tl.maximum(tl.load(Samples + h * E + tl.minimum(tl.maximum(d, 0), E - 1)), LOWEST)  # [N]
    if RELATIVE:
        value -= tl.load(Reference + h * references_per_head)  # []
        value = tl.minimum(tl.maximum(value, -limit), limit)  # finite, with a weight that is still 0
    at = Nodes + h.to(tl.int64) * nodes_per_head + node
    tl.store(at, value.to(Nodes.dtype.element_ty), mask=node < nodes_per_head)  # [N]


@triton.jit
def hats(X: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr):
    """Weight of each of N nodes at each of X positions, linear between nodes: [X, N]."""
    x = tl.arange(0, X)[:, None]
    node = tl.arange(0, N)[None, :]
    p = node % NODES
    inside = x % TILE
    here = node_at(p, NODES)
    before = node_at(p - 1, NODES)
    after = node_at(p + 1, NODES)
    rising = (inside - before).to(tl.float32) / (here - before).to(tl.float32)
    falling = (after - inside).to(tl.float32) / (after - here).to(tl.float32)
    weight = tl.maximum(tl.where(inside <= here, rising, falling), 0.0)
    return tl.where(x // TILE == node // NODES, weight, 0.0)


@triton.jit
def node_weights(scale, BM: tl.constexpr, BN: tl.constexpr, NODES: tl.constexpr, DTYPE: tl.constexpr):
    """Weights from nodes to a tile's biases: over rows [BM, ≥16], divided by the scale; over columns [16, BN]."""
    N: tl.constexpr = 16 if BM // TILE * NODES < 16 else BM // TILE * NODES
    rows = (hats(BM, NODES, N) / scale).to(DTYPE)
    columns = tl.trans(hats(BN, NODES, 16)).to(DTYPE)
    return rows, columns


@triton.jit
def node_offsets(
    blocks, row0, start, BM: tl.constexpr, NODES: tl.constexpr, CAUSAL: tl.constexpr, TABLE: tl.constexpr = False
):  # fmt: skip
    """Offsets [≥16, 16] of the nodes of a tile [BM, 64], and which of them exist."""
    N: tl.constexpr = 16 if BM // TILE * NODES < 16 else BM // TILE * NODES
    row = tl.arange(0, N)[:, None]
    column = tl.arange(0, 16)[None, :]
    there = (row < BM // TILE * NODES) & (column < NODES)
    tile = row0 // TILE + row // NODES
    key_tile = start // TILE
    if CAUSAL:
        index = tile_index(blocks, tile, key_tile, NODES != 16, TABLE)
    else:
        index = tile_index(blocks, tl.maximum(tile, key_tile), tl.minimum(tile, key_tile), NODES != 16, TABLE)
    return index * (NODES * NODES) + row % NODES * NODES + column, there
