"""What the kernels share: addresses of biases, hat weights, loads, dropout. Tile shapes are comments."""

import triton
import triton.language as tl

from longfire.engines.fused import geometry

BLOCK = tl.constexpr(geometry.BLOCK)
TILE = tl.constexpr(geometry.TILE)
LENGTHS = [
    "B", "H", "T", "S", "E", "group", "groups", "tiles", "keys", "last", "row_stride", "first_node", "first_head",
    "first_far",
    "first_block", "last_block", "near", "middle", "near_blocks", "middle_blocks", "rows_per_group",
    "references_per_head",
    "farthest",
]  # fmt: skip
"""Arguments whose value must not bring about another compilation."""
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def node_at(p, NODES: tl.constexpr):
    """Where in its tile a node is."""
    return (p * (TILE - 1) + (NODES - 1) // 2) // (NODES - 1)


@triton.jit
def hats(X: tl.constexpr, NODES: tl.constexpr, N: tl.constexpr):
    """How much each of N nodes counts at each of X positions, linear between nodes: [X, N]."""
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
def near_index(block, key_block, first_block, near, EXACT: tl.constexpr):
    """Of the first element of a near block of 128 × 128, kept as 2 × 2 tiles."""
    if EXACT:
        return (block - key_block) * BLOCK * BLOCK
    return ((block - first_block) * near + key_block - block + near - 1) * BLOCK * BLOCK


@triton.jit
def fragment_position(element):
    """Row and column of a tile's elements, kept in the order in which tensor cores hold an accumulator."""
    c_high = element // 1024
    thread = element // 8 % 128
    row = thread // 32 * 16 + element // 2 % 2 * 8 + thread % 32 // 4
    column = c_high * 16 + element // 4 % 2 * 8 + thread % 4 * 2 + element % 2
    return row, column


@triton.jit
def fragment_offset(row, column):
    """Where in a tile an element is that `fragment_position` has at this row and column."""
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    return column // 16 * 1024 + thread * 8 + column // 8 % 2 * 4 + row // 8 % 2 * 2 + column % 2


@triton.jit
def near_offsets(X: tl.constexpr):
    """Of a column [X, 64] of tiles of a block, as threads hold them: 16 bytes at a time."""
    tile = tl.arange(0, X // TILE * 4)[:, None, None]
    offset = tile // 4 * (2 * TILE * TILE) + tile % 4 * 1024
    return offset + tl.arange(0, 128)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]


@triton.jit
def load_near(at, X: tl.constexpr):
    """A column [X, 64] of tiles of a block: each thread reads what it will hold, with no exchange between threads."""
    return rows_of(tl.load(at + near_offsets(X)), X)


@triton.jit
def rows_of(held, X: tl.constexpr):
    """What is at `near_offsets`, by row and column: [X, 64]."""
    held = tl.reshape(held, [X // TILE, 4, 4, 8, 4, 2, 2, 2])
    return tl.reshape(tl.permute(held, (0, 2, 6, 3, 1, 5, 4, 7)), [X, TILE])


@triton.jit
def tile_index(tile, key_tile, first_block, near, middle, FAR: tl.constexpr):
    """Of a tile of 64 × 64 in the middle or far zone."""
    if FAR:
        rows = tl.maximum(tile // 2 - middle + 1, 0)
        skipped = tl.maximum(first_block - middle + 1, 0)
        return 2 * rows * (rows - 1) + tile % 2 * 2 * rows - 2 * skipped * (skipped - 1) + key_tile
    width = 2 * (middle - near)
    return (tile - 2 * first_block) * width + key_tile - 2 * (tile // 2 - middle + 1)


@triton.jit
def load_rows(at, rows, stride, limit, D: tl.constexpr, DP: tl.constexpr, BOUND: tl.constexpr):
    """[rows, DP]; 0 outside."""
    d = tl.arange(0, DP)
    pointers = at + rows[:, None] * stride + d[None, :]
    if BOUND:
        inside = (rows >= 0) & (rows < limit)
        return tl.load(pointers, mask=inside[:, None] & (d < D)[None, :], other=0.0)
    if D != DP:
        return tl.load(pointers, mask=(d < D)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def store_rows(at, value, rows, stride, limit, D: tl.constexpr, DP: tl.constexpr):
    """[rows, DP], but for what is outside."""
    d = tl.arange(0, DP)
    inside = (rows >= 0) & (rows < limit)
    tl.store(at + rows[:, None] * stride + d[None, :], value, mask=inside[:, None] & (d < D)[None, :])


@triton.jit
def kept(seed, rows, columns, head, dropout_p):
    """Which weights dropout keeps: a function of the seed, the head and the pair alone, so the same in all kernels."""
    zero = (rows + columns) * 0
    random, _, _, _ = tl.philox(seed, rows + zero, columns + zero, head + zero, zero)
    return tl.uint_to_uniform_float(random) >= dropout_p


@triton.jit
def floor_to(x, MULTIPLE: tl.constexpr):
    """The multiple at or below x, which may be negative."""
    return (x + (1 << 24)) // MULTIPLE * MULTIPLE - (1 << 24)
