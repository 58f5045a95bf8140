"""From the values to what attention reads: near biases, and nodes of the middle and far zones.

In half precision they are kept relative to a reference. One for all of a query's keys makes no difference to its softmax,
so attention need not know it; where all biases are near there is one for each block, which attention adds again.
"""

import triton
import triton.language as tl

from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    LOG2E,
    TILE,
    fragment_position,
    near_index,
    node_at,
    tile_index,
)

LARGEST = tl.constexpr(60000.0)  # what float16 holds
SPREAD = tl.constexpr(8.0)  # so that the largest biases keep their digits


@triton.jit
def cell(x, last, PER_OCTAVE: tl.constexpr):
    """The nodes around x: index of the left one, both positions (none beyond `last`), how far x is between them."""
    bits = (x.to(tl.float32) / PER_OCTAVE).to(tl.int32, bitcast=True)
    octave = tl.maximum((bits >> 23) - 127, 0)  # ⌊log₂⌋, exact below 2^24
    left = (x >> octave) << octave
    right = tl.minimum(left + (1 << octave), last)
    t = (x - left).to(tl.float32) / tl.maximum(right - left, 1).to(tl.float32)
    return octave * PER_OCTAVE + (x >> octave), left, right, t


@triton.jit
def along_row(values, d, last, E, DISTANCES: tl.constexpr):
    node, _left, _right, u = cell(d, last, DISTANCES)
    here = tl.load(values + node)
    after = tl.load(values + tl.minimum(node + 1, E - 1))
    return tl.where(u > 0, here + u * (after - here), here)


@triton.jit
def looked_up(values, i, j, row_stride, first_node, last, E, ROWS: tl.constexpr, DISTANCES: tl.constexpr, EXACT: tl.constexpr):
    """The biases of pairs (i, j) from one head's values. Pairs with j > i: those of j = i."""
    d = tl.maximum(i - j, 0)
    if EXACT:
        return tl.load(values + tl.minimum(d, E - 1))
    row, left, right, t = cell(i, last, ROWS)
    slide = 2 * d > i  # towards the first key rows are compared at the same key, otherwise at the same distance
    at = values + (row - first_node) * row_stride
    below = along_row(at, tl.where(slide, left - j, d), left, E, DISTANCES)
    at += tl.where(t > 0, row_stride, 0)
    above = along_row(at, tl.where(slide, right - j, d), right, E, DISTANCES)
    return tl.where(t > 0, below + t * (above - below), below)


@triton.jit(do_not_specialize=LENGTHS)
def references(
    Values, Reference, E, references_per_head, row_stride, first_node, first_block, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, EXACT: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A number amid the biases of a row of blocks (of a block, if EXACT), or not far below the largest of them."""
    block, h = tl.program_id(0), tl.program_id(1)
    highest = float("-inf")
    lowest = float("inf")
    if EXACT:
        d = (block - 1) * BLOCK + 1 + tl.arange(0, 2 * BLOCK)  # the distances in a block, and one more
        there = (d >= 0) & (d < E) & (d < (block + 1) * BLOCK)
        value = tl.load(Values + h * E + d, mask=there, other=float("-inf"))
        highest = tl.max(value, 0)
        lowest = tl.min(tl.where(there, value, float("inf")), 0)
    else:
        row, left, _right, _t = cell((block + first_block) * BLOCK, last, ROWS)
        for chunk in range((E + N - 1) // N):
            node = chunk * N + tl.arange(0, N)
            octave = tl.maximum(node // DISTANCES - 1, 0)
            there = (node < E) & (((node - octave * DISTANCES) << octave) <= left)
            at = Values + (row - first_node) * row_stride + h * E + node
            value = tl.load(at, mask=there, other=float("-inf"))
            highest = tl.maximum(highest, tl.max(value, 0))
            lowest = tl.minimum(lowest, tl.min(tl.where(there, value, float("inf")), 0))
    middle = tl.maximum(0.5 * (highest + lowest), highest - SPREAD)
    tl.store(Reference + h * references_per_head + block, middle)


@triton.jit(do_not_specialize=LENGTHS)
def near(
    Values, Reference, Near, E, references_per_head, near_per_head, row_stride, first_node, first_block, last, near_blocks,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, EXACT: tl.constexpr, RELATIVE: tl.constexpr, TRANSPOSED: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """N elements of a near block. TRANSPOSED: keys down, queries across."""
    parts: tl.constexpr = BLOCK * BLOCK // N
    block, h = tl.program_id(0) // parts, tl.program_id(1)
    if EXACT:
        key_block = 0 * block
    else:
        block += first_block
        key_block = block - tl.program_id(2)
    if key_block < 0:
        return
    element = tl.program_id(0) % parts * N + tl.arange(0, N)
    tile = element // (TILE * TILE)
    row, column = fragment_position(element % (TILE * TILE))
    row, column = row + tile // 2 * TILE, column + tile % 2 * TILE
    i = block * BLOCK + (column if TRANSPOSED else row)
    j = key_block * BLOCK + (row if TRANSPOSED else column)
    value = looked_up(Values + h * E, i, j, row_stride, first_node, last, E, ROWS, DISTANCES, EXACT)
    if RELATIVE:
        value -= tl.load(Reference + h * references_per_head + block - (0 if EXACT else first_block))
    value *= LOG2E
    if RELATIVE:
        value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    at = Near + h.to(tl.int64) * near_per_head + near_index(block, key_block, first_block, near_blocks, EXACT)
    tl.store(at + element, value.to(Near.dtype.element_ty))


@triton.jit(do_not_specialize=LENGTHS)
def nodes(
    Values, Reference, Nodes, E, references_per_head, nodes_per_head, row_stride, first_node, first_block, last,
    near_blocks, middle_blocks,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, NODES: tl.constexpr, FAR: tl.constexpr, RELATIVE: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The nodes of a row of tiles, N of them."""
    tile, h = tl.program_id(0) + 2 * first_block, tl.program_id(1)
    block = tile // 2
    start = 0 if FAR else 2 * tl.maximum(block - middle_blocks + 1, 0)
    end = 2 * tl.maximum(block - (middle_blocks if FAR else near_blocks) + 1, 0)
    element = tl.program_id(2) * N + tl.arange(0, N)
    per_tile: tl.constexpr = NODES * NODES
    key_tile = start + element // per_tile
    inside = key_tile < end
    p, q = element % per_tile // NODES, element % NODES
    i = tile * TILE + node_at(p, NODES)
    j = tl.minimum(key_tile, tile) * TILE + node_at(q, NODES)
    value = looked_up(Values + h * E, i, j, row_stride, first_node, last, E, ROWS, DISTANCES, False)
    if RELATIVE:
        value -= tl.load(Reference + h * references_per_head + block - first_block)
        value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    index = tile_index(tile, key_tile, first_block, near_blocks, middle_blocks, FAR) * per_tile + element % per_tile
    tl.store(Nodes + h.to(tl.int64) * nodes_per_head + index, value.to(Nodes.dtype.element_ty), mask=inside)
