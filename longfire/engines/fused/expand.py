"""From the values to what attention reads: near biases, and nodes of the middle and far zones.

In half precision they are kept relative to a reference. One for all of a query's keys makes no difference to its
softmax, so attention need not know it; where all biases are near there is one for each block, which attention adds.
"""

import triton
import triton.language as tl

from longfire.engines.fused import geometry
from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    LOG2E,
    TILE,
    fragment_offset,
    fragment_position,
    near_index,
    node_at,
    tile_index,
)

LARGEST = tl.constexpr(geometry.LARGEST)
LOWEST = tl.constexpr(-1e30)  # stands for −inf, of which differences could not be taken
LOWEST_REFERENCE = tl.constexpr(-float(1 << 20))  # attention adds and subtracts it, each rounded to its size


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
def node_position(index, PER_OCTAVE: tl.constexpr):
    """Where a node is, and how far the next one is from it."""
    octave = tl.maximum(index // PER_OCTAVE - 1, 0)
    return (index - octave * PER_OCTAVE) << octave, 1 << octave


@triton.jit
def along_row(values, d, last, E, DISTANCES: tl.constexpr):
    """A row's values at distances d, linear between nodes."""
    node, _left, _right, u = cell(d, last, DISTANCES)
    here = tl.maximum(tl.load(values + node), LOWEST)
    after = tl.maximum(tl.load(values + tl.minimum(node + 1, E - 1)), LOWEST)
    return tl.where(u > 0, here + u * (after - here), here)


@triton.jit
def looked_up(
    values, i, j, row_stride, first_node, last, E,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr,
):  # fmt: skip
    """The biases of pairs (i, j) from one head's values, at nodes (DISTANCES) or at every distance below E (0)."""
    d = tl.maximum(i - j, 0)
    row, left, right, t = cell(i, last, ROWS)
    slide = 2 * d > i  # towards the first key rows are compared at the same key, otherwise at the same distance
    at = values + (row - first_node) * row_stride
    next_row = at + tl.where(t > 0, row_stride, 0)
    if DISTANCES == 0:
        below = tl.load(at + tl.where(slide, left - j, d))
        above = tl.load(next_row + tl.where(slide & (t > 0), right - j, d))
    else:
        below = along_row(at, tl.where(slide, left - j, d), left, E, DISTANCES)
        above = along_row(next_row, tl.where(slide, right - j, d), right, E, DISTANCES)
    return tl.where(t > 0, below + t * (above - below), below)


@triton.jit(do_not_specialize=LENGTHS)
def distances(
    Values, Rows, Reference, E, farthest, row_stride, first_node, last,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows (A, H, farthest): a row node's values at every distance below `farthest`; Reference (H, A): the largest.

    Relative to the largest, what counts in a softmax keeps its digits.
    """
    a, h = tl.program_id(0), tl.program_id(1)
    here, _step = node_position(a + first_node, ROWS)
    own = tl.minimum(here, last)
    at = Values + a * row_stride + h * E
    for step in range((farthest + N - 1) // N):
        d = step * N + tl.arange(0, N)
        value = along_row(at, tl.minimum(d, own), own, E, DISTANCES)
        tl.store(Rows + (a * tl.num_programs(1) + h) * farthest + d, value, mask=d < farthest)
    highest = LOWEST
    for step in range((E + N - 1) // N):
        node = step * N + tl.arange(0, N)  # nodes beyond the row's last distance repeat its first key's value
        highest = tl.maximum(highest, tl.max(tl.load(at + node, mask=node < E, other=float("-inf")), 0))
    tl.store(Reference + h * tl.num_programs(0) + a, highest)


@triton.jit(do_not_specialize=LENGTHS)
def references(Values, Reference, E, references_per_head):
    """The largest bias in a block, where the bias is of the distance alone."""
    block, h = tl.program_id(0), tl.program_id(1)
    d = (block - 1) * BLOCK + 1 + tl.arange(0, 2 * BLOCK)  # the distances in a block, and one more
    there = (d >= 0) & (d < E) & (d < (block + 1) * BLOCK)
    highest = tl.maximum(tl.max(tl.load(Values + h * E + d, mask=there, other=float("-inf")), 0), LOWEST_REFERENCE)
    tl.store(Reference + h * references_per_head + block, highest)


@triton.jit
def reference_index(block, first_node, last, ROWS: tl.constexpr, EXACT: tl.constexpr):
    """Of what a row of blocks (a block, if EXACT) is kept relative to."""
    if EXACT:
        return block
    node, _left, _right, _t = cell(block * BLOCK, last, ROWS)
    return node - first_node


@triton.jit(do_not_specialize=LENGTHS)
def near(
    Rows, Reference, Near, E, references_per_head, near_per_head, row_stride, first_node, first_block, last,
    near_blocks,
    ROWS: tl.constexpr, EXACT: tl.constexpr, RELATIVE: tl.constexpr,
):  # fmt: skip
    """A tile of 64 × 64 of a near block."""
    block, h = tl.program_id(0) // 4, tl.program_id(1)
    tile = tl.program_id(0) % 4
    if EXACT:
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
    i = block * BLOCK + tile // 2 * TILE + row
    j = key_block * BLOCK + tile % 2 * TILE + column
    if EXACT:
        value = tl.maximum(tl.load(Rows + h * E + tl.minimum(tl.maximum(i - j, 0), E - 1)), LOWEST)
    else:
        value = looked_up(Rows + h * E, i, tl.minimum(j, i), row_stride, first_node, last, E, ROWS, 0)
    if RELATIVE:
        value -= tl.load(Reference + h * references_per_head + reference_index(block, first_node, last, ROWS, EXACT))
    value *= LOG2E
    if RELATIVE:
        value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    at = Near + h.to(tl.int64) * near_per_head + near_index(block, key_block, first_block, near_blocks, EXACT)
    tl.store(at + tile * (TILE * TILE) + part + own, value.to(Near.dtype.element_ty))


@triton.jit
def transposed(Near, Out):
    """A tile of a near block, with keys down and queries across."""
    block = tl.program_id(0).to(tl.int64) // 4 * (BLOCK * BLOCK)
    tile = tl.program_id(0) % 4
    element = tl.arange(0, TILE * TILE)
    row, column = fragment_position(element)
    source = tile % 2 * 2 + tile // 2
    value = tl.load(Near + block + source * (TILE * TILE) + fragment_offset(column, row))
    tl.store(Out + block + tile * (TILE * TILE) + element, value)


@triton.jit(do_not_specialize=LENGTHS)
def nodes(
    Values, Reference, Nodes, E, references_per_head, nodes_per_head, row_stride, first_node, first_block, last,
    near_blocks, middle_blocks, largest,
    ROWS: tl.constexpr, DISTANCES: tl.constexpr, NODES: tl.constexpr, FAR: tl.constexpr, RELATIVE: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The nodes of N tiles in a row of tiles."""
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
    value = looked_up(Values + h * E, i, tl.minimum(j, i), row_stride, first_node, last, E, ROWS, DISTANCES)
    if RELATIVE:
        value -= tl.load(Reference + h * references_per_head + reference_index(block, first_node, last, ROWS, False))
        value = tl.minimum(tl.maximum(value, -largest), largest)  # a weight of nothing, and finite
    index = tile_index(tile, key_tile, first_block, near_blocks, middle_blocks, FAR) * (NODES * NODES) + p * NODES + q
    tl.store(Nodes + h.to(tl.int64) * nodes_per_head + index, value.to(Nodes.dtype.element_ty), mask=inside)
