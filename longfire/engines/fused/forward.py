"""Attention, forward: each program owns a tile of queries and loops over the keys, from far to near."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.engines.fused.bias_kernels import Blocks, load_near, near_index, node_offsets, node_weights
from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    LOG2E,
    TILE,
    Call,
    Dropout,
    Keys,
    Tiling,
    Tilings,
    floor_to,
    head_at,
    heads,
    kept,
    load_rows,
    store_rows,
    tile_place,
    visible,
)

TILINGS = Tilings(short=Tiling(registers=128), long=Tiling(stages=3), wide=Tiling())


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """Out (B, H, T, D), and the base-2 log-sum-exp of the logits (B, H, T)."""
    out = torch.empty_like(call.q)
    lse = call.q.new_empty(call.B, call.H, call.T, dtype=torch.float32)
    tiling = TILINGS.choose(call.q, call.zones)
    tiles = call.query_tiles(tiling.BM)
    attention_forward[(call.programs(tiles),)](
        Out=heads(out), Lse=lse, tiles=tiles, **call.arguments, **call.nodes, **tiling.zones(), **tiling.launch()
    )
    return out, lse


class Zone(NamedTuple):
    """One head's bias in one zone."""

    Near: Any
    Nodes: Any
    rows: Any  # node weights over queries
    columns: Any  # node weights over keys
    Reference: Any  # (blocks,), or None
    blocks: Any
    scale: Any  # of the logits
    after: Any  # `After`: from the bias of keys up to the query to that of later keys


class After(NamedTuple):
    """Distances, in elements, from one head's bias of keys up to the query to its bias of later keys."""

    near: Any
    nodes: Any
    reference: Any


@triton.jit
def after_of(H, Near, Nodes, references_per_head):
    """Where the bias of later keys is; unused if causal."""
    heads = H.to(tl.int64)
    return After(heads * Near.h, heads * Nodes.h if Nodes is not None else 0, H * references_per_head)


@triton.jit
def near_bias(
    zone, block, key_block, row0, start, BM: tl.constexpr, DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr,
    TABLE: tl.constexpr,
):  # fmt: skip
    """Near biases of a tile [BM, 64], and the reference to be added; `block` is the later one of both."""
    tile = row0 % BLOCK // TILE * 2 + start % BLOCK // TILE
    at = zone.Near + near_index(zone.blocks, block, key_block, TABLE) + tile * (TILE * TILE)
    reference_at = zone.Reference + block - key_block if zone.Reference is not None else None
    if CAUSAL or DIAGONAL:
        bias = load_near(at, BM).to(tl.float32)
        reference = tl.load(reference_at) * LOG2E if zone.Reference is not None else 0.0  # []
        if not CAUSAL:
            after = load_near(at + zone.after.near, BM).to(tl.float32)
            if zone.Reference is not None:
                after += tl.load(reference_at + zone.after.reference) * LOG2E - reference  # []
            later = (start + tl.arange(0, TILE))[None, :] > (row0 + tl.arange(0, BM))[:, None]
            bias = tl.where(later, after, bias)
    else:
        bias = load_near(at + tl.where(start > row0, zone.after.near, 0), BM).to(tl.float32)
        reference = 0.0
        if zone.Reference is not None:
            reference = tl.load(reference_at + tl.where(start > row0, zone.after.reference, 0)) * LOG2E  # []
    return bias, reference


@triton.jit
def scores(
    q, k, zone, row0, start, BM: tl.constexpr, NODES: tl.constexpr, DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr,
    TABLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits of a tile [BM, 64], the factor that converts them to units of log 2, and the reference to be added.

    NODES per side of a tile; 0 in the near zone.
    """
    block, key_block = row0 // BLOCK, start // BLOCK
    if not CAUSAL:
        block, key_block = tl.maximum(block, key_block), tl.minimum(block, key_block)
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [BM, DP] · [DP, BN]
    if NODES == 0:
        bias, reference = near_bias(zone, block, key_block, row0, start, BM, DIAGONAL, CAUSAL, TABLE)
        logits = logits * (zone.scale * LOG2E) + bias
        unit = 1.0
    else:
        offsets, there = node_offsets(zone.blocks, row0, start, BM, NODES, CAUSAL, TABLE)
        at = zone.Nodes + offsets
        if not CAUSAL:
            at += tl.where(start > row0, zone.after.nodes, 0)
        nodes = tl.load(at) if NODES == 16 else tl.load(at, mask=there, other=0.0)  # [≥16, 16]
        mixed = tl.dot(zone.rows, nodes, input_precision=PRECISION).to(nodes.dtype)  # [BM, ≥16] · [≥16, 16]
        logits = tl.dot(mixed, zone.columns, logits, input_precision=PRECISION)  # [BM, 16] · [16, BN]
        unit = zone.scale * LOG2E
        reference = 0.0
    return logits, unit, reference


@triton.jit
def walk(
    acc, total, top,  # softmax so far: [BM, DP], [BM], [BM]
    q,  # [BM, DP]
    keys, zone, dropout, row0, query0, reach,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, NODES: tl.constexpr,
    DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, TABLE: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys in reach."""
    i = row0 + tl.arange(0, BM)
    HIDES: tl.constexpr = DIAGONAL or not WHOLE or keys.Mask is not None or keys.window is not None
    for start in tl.range(reach.lo, reach.hi, BN, num_stages=STAGES):
        if not CAUSAL:
            start += tl.where(start < reach.gap, 0, reach.skip)
        start = tl.multiple_of(start, BN)
        j = start + tl.arange(0, BN)
        k = load_rows(keys.K, j + keys.shift, keys.k_stride, keys.S, D, DP, DIAGONAL or not WHOLE)  # [BN, DP]
        s, unit, reference = scores(
            q, k, zone, tl.maximum(row0, 0), start, BM, NODES, DIAGONAL, CAUSAL, TABLE, PRECISION
        )  # [BM, BN]
        if HIDES:
            s = tl.where(visible(i[:, None], j[None, :], keys, DIAGONAL, CAUSAL, WHOLE), s, float("-inf"))
        highest = tl.maximum(top, tl.max(s, 1) * unit + reference)
        finite = highest
        if HIDES:
            finite = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp2(s * unit - (finite - reference)[:, None])
        rescale = tl.exp2(top - finite)
        total = total * rescale + tl.sum(p, 1)
        if dropout.seed is not None:
            keep = kept(dropout, (i - query0)[:, None], (j + keys.shift)[None, :])
            p = tl.where(keep, p / (1 - dropout.p), 0.0)
        acc = acc * rescale[:, None]
        v = load_rows(keys.V, j + keys.shift, keys.v_stride, keys.S, D, DP, DIAGONAL or not WHOLE)  # [BN, DP]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)  # [BM, BN] · [BN, DP]
        top = highest
    return acc, total, top


class Reach(NamedTuple):
    """Tiles of keys from lo to hi; `skip` keys are left out at `gap`, where those after the query tile begin."""

    lo: Any
    hi: Any
    gap: Any
    skip: Any


@triton.jit
def reach_of(lo, gap, later, end, CAUSAL: tl.constexpr):
    """From lo to gap and, unless causal, from `later` to end."""
    if CAUSAL:
        hi, skip = gap, 0 * gap
    else:
        gap = tl.maximum(lo, gap)
        hi, skip = gap + tl.maximum(end - later, 0), later - gap
    return Reach(lo, hi, gap, skip)


@triton.jit
def zone_reaches(row0, S, shift, window, blocks, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """The keys that a query tile reaches in the far and middle zones, in full near tiles, and on the diagonal."""
    block = tl.maximum(row0, 0) // BLOCK
    far = tl.maximum(block - blocks.middle + 1, 0) * BLOCK
    middle = tl.maximum(block - blocks.near + 1, 0) * BLOCK
    diagonal = tl.maximum(row0, 0) // BN * BN
    begin, end = 0, S - shift
    later = tl.maximum(row0 + BM, BN)
    diagonal_end = tl.minimum(later, end)
    if window is not None:
        begin = tl.maximum(row0 - window + 1, 0) // BN * BN
        end = tl.minimum(end, row0 + BM + window - 1)
        far, middle = tl.maximum(far, begin), tl.maximum(middle, begin)
    near_end, middle_end = (block + blocks.near) * BLOCK, (block + blocks.middle) * BLOCK
    return (
        reach_of(begin, far, middle_end, end, CAUSAL),
        reach_of(far, middle, near_end, tl.minimum(middle_end, end), CAUSAL),
        reach_of(middle, diagonal, later, tl.minimum(near_end, end), CAUSAL),
        reach_of(diagonal, diagonal_end, 0, 0, CAUSAL),
    )


@triton.jit(do_not_specialize=LENGTHS)
def attention_forward(
    Q, K, V, Out,  # Heads: (B, H, T, D), (B, G, S, D), (B, G, S, D), (B, H, T, D)
    Lse,  # (B, H, T)
    KeyMask, Shift, Seed,  # (B, S), (B,), (1,), or None
    Segments,  # or None
    Near, Middle, Far,  # PerHead; Middle and Far may be None
    Reference,  # (H, references_per_head), or None
    B, H, T, S, group, window, tiles, scale, dropout_p,
    references_per_head, first_block, near_blocks, middle_blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    TABLE: tl.constexpr, NEAR_STAGES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence and head."""
    place, tile = tile_place(Shift, Segments, B, T, S, tiles, True)  # the longest first
    b, h, shift, query0 = place.b, place.h, place.shift, place.query0
    row0 = tl.multiple_of(floor_to(place.first, BM) + tile * BM, BM)
    outside = row0 >= place.end - shift
    if Segments is not None:
        outside |= row0 + BM <= query0
    if outside:
        return
    i = row0 + tl.arange(0, BM)

    # All addresses first: registers are scarce, and computing these later slows the loops down.
    q_at = head_at(Q, b, h)
    k_at, v_at = head_at(K, b, h, group), head_at(V, b, h, group)
    out_at = head_at(Out, b, h)
    lse_at = Lse + (b * H + h).to(tl.int64) * T
    mask = KeyMask + b.to(tl.int64) * S if KeyMask is not None else None
    near = Near.at + h.to(tl.int64) * Near.h
    middle = Middle.at + h.to(tl.int64) * Middle.h if Middle is not None else None
    far = Far.at + h.to(tl.int64) * Far.h if Far is not None else None
    reference = Reference + h * references_per_head if Reference is not None else None
    keys = Keys(k_at, v_at, K.row, V.row, mask, shift, place.end, window)
    dropout = Dropout(tl.load(Seed) if Seed is not None else None, dropout_p, b * H + h)  # []
    blocks = Blocks(first_block, near_blocks, middle_blocks)
    rows = i - query0
    q = load_rows(q_at, rows, Q.row, place.limit, D, DP, True)  # [BM, DP]

    in_far, in_middle, in_near, on_diagonal = zone_reaches(row0, place.end, shift, window, blocks, BM, BN, CAUSAL)
    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    if Far is not None:
        w, c = node_weights(scale, BM, BN, 4, Far.at.dtype.element_ty)
        zone = Zone(near, far, w, c, reference, blocks, scale, after_of(H, Near, Far, references_per_head))
        acc, total, top = walk(
            acc, total, top, q, keys, zone, dropout, row0, query0, in_far,
            D, DP, BM, BN, 4, False, CAUSAL, WHOLE, TABLE, STAGES, PRECISION,
        )  # fmt: skip
    if Middle is not None:
        w, c = node_weights(scale, BM, BN, 16, Middle.at.dtype.element_ty)
        zone = Zone(near, middle, w, c, reference, blocks, scale, after_of(H, Near, Middle, references_per_head))
        acc, total, top = walk(
            acc, total, top, q, keys, zone, dropout, row0, query0, in_middle,
            D, DP, BM, BN, 16, False, CAUSAL, WHOLE, TABLE, STAGES, PRECISION,
        )  # fmt: skip
    zone = Zone(near, None, None, None, reference, blocks, scale, after_of(H, Near, None, references_per_head))
    acc, total, top = walk(
        acc, total, top, q, keys, zone, dropout, row0, query0, in_near,
        D, DP, BM, BN, 0, False, CAUSAL, WHOLE, TABLE, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    acc, total, top = walk(
        acc, total, top, q, keys, zone, dropout, row0, query0, on_diagonal,
        D, DP, BM, BN, 0, True, CAUSAL, WHOLE, TABLE, NEAR_STAGES, PRECISION,
    )  # fmt: skip

    blind = total == 0.0
    acc = acc / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, float("inf"), top + tl.log2(tl.where(blind, 1.0, total)))  # inf: no weight in backward
    store_rows(out_at, acc.to(Out.at.dtype.element_ty), rows, Out.row, place.limit, D, DP)  # [BM, DP]
    tl.store(lse_at + rows, lse, mask=(rows >= 0) & (rows < place.limit))  # [BM]
