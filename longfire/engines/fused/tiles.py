"""Shared by the attention kernels: one call's arguments, tile sizes, and loading and storing tiles."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.engines.fused import zones

BLOCK = tl.constexpr(zones.BLOCK)
TILE = tl.constexpr(zones.TILE)
LOG2E = tl.constexpr(1.4426950408889634)
LENGTHS = [
    "A", "B", "H", "T", "S", "E", "heads", "group", "groups", "tiles", "keys", "last", "row_stride", "first_node",
    "first_head", "first_far", "first_block", "last_block", "near_blocks", "middle_blocks", "rows_per_group",
    "references_per_head", "farthest", "length", "splits", "window", "sequences", "nodes_in_all", "size",
    "nearest", "count", "first",
]  # fmt: skip
"""Arguments whose values must not trigger a recompilation."""


class Heads(NamedTuple):
    """A (B, H, rows, D) tensor and its strides; D is contiguous."""

    at: Any
    b: Any
    h: Any
    row: Any


class PerHead(NamedTuple):
    """A (H, …) tensor and the stride of H."""

    at: Any
    h: Any


class Keys(NamedTuple):
    """Keys and values of one sequence and head."""

    K: Any
    V: Any
    k_stride: Any
    v_stride: Any
    Mask: Any  # (S,), or None
    shift: Any  # padding before the first key
    S: Any
    window: Any  # keys that a query sees on each side, its own included, or None


class Segments(NamedTuple):
    """Documents packed into rows; see `segments`."""

    tiles: Any  # (tiles, 6)
    table: Any  # (N + 1, 5)


class Place(NamedTuple):
    """Where a tile of one sequence and head, or of one segment and head, is."""

    b: Any
    h: Any
    shift: Any  # keys before the first
    end: Any  # of its keys
    limit: Any  # of its queries
    query0: Any  # the position of query 0
    first: Any  # its first position
    middle: Any  # where its middle and far nodes begin, in a segment
    far: Any


class Dropout(NamedTuple):
    """Dropout of one sequence and head."""

    seed: Any  # None: no dropout
    p: Any
    head: Any  # b·H + h


class ExpandedBias(NamedTuple):
    """A bias in the form that attention reads, (H, …) each; see `bias_kernels`."""

    near: Tensor
    middle: Tensor
    far: Tensor
    reference: Tensor


@dataclass(frozen=True)
class Tiling:
    """Tile sizes and compile options of a kernel."""

    BM: int = 64
    """Queries per tile."""
    BN: int = 64
    """Keys per tile."""
    warps: int = 4
    stages: int = 2
    """Pipeline stages."""
    near_stages: int | None = None
    """Pipeline stages in the near zone, where prefetching costs registers. Default: `stages`."""
    registers: int | None = None
    """Limit of registers per thread."""

    def launch(self) -> dict[str, int]:
        """Triton's launch options."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}

    def zones(self) -> dict[str, int]:
        """Constants of a kernel that loops over zones."""
        return {"BM": self.BM, "BN": self.BN, "STAGES": self.stages, "NEAR_STAGES": self.near_stages or self.stages}


class Tilings(NamedTuple):
    """The fastest tilings on an H200 in half precision."""

    short: Tiling
    long: Tiling  # from 16,384 keys
    wide: Tiling  # head sizes above 64
    exact: Tiling | None = None  # biases that depend only on the distance, if other than short and long

    def choose(self, q: Tensor, where: Any) -> Tiling:
        """For sequences, or segments, with these evaluated `Zones`."""
        D = q.shape[-1]
        if q.dtype == torch.float32:
            return Tiling(warps=4 if D <= 64 else 8, stages=1)
        if D > 64:
            return self.wide
        if where.exact and self.exact is not None:
            return self.exact
        return self.short if where.keys < 16384 else self.long


class Call:
    """One call of attention: the arguments that its kernels share."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: ExpandedBias,
        key_mask: Tensor | None,
        shift: Tensor | None,
        seed: Tensor | None,
        segments: Segments | None,
        where: zones.Zones,
        scale: float,
        dropout_p: float,
    ) -> None:
        g = self.zones = zones.evaluated(where)
        self.q, self.k, self.v, self.bias, self.shift, self.segments = q, k, v, bias, shift, segments
        self.B, self.H, self.T, self.D = q.shape
        self.S, self.group = k.shape[2], q.shape[1] // k.shape[1]
        relative = bias.near.dtype == torch.float16
        self.arguments: dict[str, Any] = {
            "Q": heads(q),
            "K": heads(k),
            "V": heads(v),
            "KeyMask": key_mask,
            "Shift": shift,
            "Seed": seed,
            "Segments": segments,
            "Near": PerHead(bias.near, bias.near.shape[1]),
            "Reference": bias.reference if g.exact and relative else None,
            "B": self.B,
            "H": self.H,
            "T": self.T,
            "S": self.S,
            "group": self.group,
            "window": g.window,
            "scale": scale,
            "dropout_p": dropout_p,
            "first_block": g.first_block,
            "near_blocks": g.near,
            "references_per_head": g.references,
            "D": self.D,
            "DP": max(16, triton.next_power_of_2(self.D)),
            "CAUSAL": g.causal,
            "WHOLE": g.causal or (segments is None and self.S % zones.TILE == 0),
            "TABLE": g.by_distance,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        }
        self.nodes: dict[str, Any] = {
            "Middle": PerHead(bias.middle, bias.middle.shape[1]) if g.has_middle else None,
            "Far": PerHead(bias.far, bias.far.shape[1]) if g.has_far else None,
            "middle_blocks": g.middle,
        }

    @property
    def sequences(self) -> int:
        """Rows of the batch, or segments."""
        return self.B if self.segments is None else len(self.segments.table) - 1

    def programs(self, tiles: int) -> int:
        """Tiles of all sequences and heads."""
        return tiles * self.H * (self.B if self.segments is None else 1)

    def query_tiles(self, BM: int) -> int:
        """Query tiles of a row, or of all segments; one more if rows are shifted: they may start anywhere in a tile."""
        if self.segments is not None:
            return len(self.segments.tiles)
        if self.shift is not None:
            return -(-self.T // BM) + 1
        return -(-self.S // BM) - (self.S - self.T) // BM

    def key_tiles(self, BN: int) -> int:
        """Key tiles of a row, or of all segments."""
        return -(-self.S // BN) if self.segments is None else len(self.segments.tiles)

    def has_whole_tiles(self, rows: int) -> bool:
        """Whether every tile of this many queries is full."""
        return self.shift is None and self.segments is None and self.T % rows == 0 and self.S % rows == 0


def heads(tensor: Tensor) -> Heads:
    """A (B, H, rows, D) tensor as a kernel argument."""
    return Heads(tensor, *tensor.stride()[:3])


@triton.jit
def head_at(X, b, h, group=1):
    """Pointer to the rows of head h // group."""
    return X.at + (b.to(tl.int64) * X.b + (h // group).to(tl.int64) * X.h)


@triton.jit
def load_rows(at, rows, stride, limit, D: tl.constexpr, DP: tl.constexpr, BOUND: tl.constexpr):
    """Load [rows, DP]; 0 outside."""
    d = tl.arange(0, DP)
    pointers = at + rows[:, None] * stride + d[None, :]  # [rows, DP]
    if BOUND:
        inside = (rows >= 0) & (rows < limit)
        return tl.load(pointers, mask=inside[:, None] & (d < D)[None, :], other=0.0)  # [rows, DP]
    if D != DP:
        return tl.load(pointers, mask=(d < D)[None, :], other=0.0)  # [rows, DP]
    return tl.load(pointers)  # [rows, DP]


@triton.jit
def store_rows(at, value, rows, stride, limit, D: tl.constexpr, DP: tl.constexpr):
    """Store the rows of value [rows, DP] that are inside."""
    d = tl.arange(0, DP)
    inside = (rows >= 0) & (rows < limit)
    tl.store(at + rows[:, None] * stride + d[None, :], value, mask=inside[:, None] & (d < D)[None, :])  # [rows, DP]


@triton.jit
def segment_place(at, h, T, S):
    """The segment whose row of the table is at this address."""
    b, shift, end = tl.load(at), tl.load(at + 1), tl.load(at + 2)  # []
    middle, far = tl.load(at + 3), tl.load(at + 4)  # []
    return Place(b, h, shift, end, tl.minimum(T, end - (S - T)), S - T - shift, 0, middle, far)


@triton.jit
def row_place(Shift, b, h, T, S):
    """Row b of a batch."""
    shift = tl.load(Shift + b) if Shift is not None else 0  # []
    return Place(b, h, shift, S, T, S - T - shift, S - T - shift, 0, 0)


@triton.jit
def tile_place(Shift, Segments, B, T, S, tiles, FROM_END: tl.constexpr):
    """Where this program's tile is, and its number: with FROM_END, a sequence's last tile comes first."""
    pid = tl.program_id(0)
    tile = pid % tiles
    if Segments is not None:
        at = Segments.tiles + tile * 6
        return segment_place(at + 1, pid // tiles, T, S), tl.load(at)  # []
    if FROM_END:
        tile = tiles - 1 - tile
    return row_place(Shift, pid // tiles % B, pid // tiles // B, T, S), tile


@triton.jit
def visible(i, j, keys, DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr):
    """Which pairs count, [rows, columns]. Queries before the first key (padding) see only that key."""
    seen = (i >= -(1 << 24)) & (j >= 0)
    if DIAGONAL and CAUSAL:
        seen &= j <= tl.maximum(i, 0)
    if DIAGONAL or not WHOLE:
        seen &= j + keys.shift < keys.S
    if keys.window is not None:
        seen &= i - j < keys.window
        if not CAUSAL:
            seen &= j - i < keys.window
    if keys.Mask is not None:
        seen &= tl.load(keys.Mask + j + keys.shift, mask=j + keys.shift < keys.S, other=0) != 0  # like j
    return seen


@triton.jit
def kept(dropout, rows, columns):
    """Which weights dropout keeps: depends only on seed, head and pair, so all kernels agree."""
    zero = (rows + columns) * 0
    random, _, _, _ = tl.philox(dropout.seed, rows + zero, columns + zero, dropout.head + zero, zero)
    return tl.uint_to_uniform_float(random) >= dropout.p


@triton.jit
def floor_to(x, MULTIPLE: tl.constexpr):
    """The largest multiple at or below x; x may be negative."""
    return (x + (1 << 24)) // MULTIPLE * MULTIPLE - (1 << 24)
