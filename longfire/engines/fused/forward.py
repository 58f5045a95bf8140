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
    tiling = TILINGS.choose(call.q, call.S)
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


@triton.jit
def scores(
    q, k, zone, row0, start, BM: tl.constexpr, NODES: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr
):
    """Logits of a tile [BM, 64], the factor that converts them to units of log 2, and the reference to be added.

    NODES per side of a tile; 0 in the near zone.
    """
    block, key_block = row0 // BLOCK, start // BLOCK
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [BM, DP] · [DP, BN]
    if NODES == 0:
        tile = row0 % BLOCK // TILE * 2 + start % BLOCK // TILE
        bias = load_near(zone.Near + near_index(zone.blocks, block, key_block, EXACT) + tile * (TILE * TILE), BM)
        logits = logits * (zone.scale * LOG2E) + bias.to(tl.float32)
        unit = 1.0
    else:
        offsets, there = node_offsets(zone.blocks, row0, start, BM, NODES)
        at = zone.Nodes + offsets
        nodes = tl.load(at) if NODES == 16 else tl.load(at, mask=there, other=0.0)  # [≥16, 16]
        mixed = tl.dot(zone.rows, nodes, input_precision=PRECISION).to(nodes.dtype)  # [BM, ≥16] · [≥16, 16]
        logits = tl.dot(mixed, zone.columns, logits, input_precision=PRECISION)  # [BM, 16] · [16, BN]
        unit = zone.scale * LOG2E
    reference = tl.load(zone.Reference + block - key_block) * LOG2E if zone.Reference is not None else 0.0  # []
    return logits, unit, reference


@triton.jit
def walk(
    acc, total, top,  # softmax so far: [BM, DP], [BM], [BM]
    q,  # [BM, DP]
    keys, zone, dropout, row0, query0, lo, hi,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, NODES: tl.constexpr,
    DIAGONAL: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys from lo to hi."""
    i = row0 + tl.arange(0, BM)
    for start in tl.range(lo, hi, BN, num_stages=STAGES):
        start = tl.multiple_of(start, BN)
        j = start + tl.arange(0, BN)
        k = load_rows(keys.K, j + keys.shift, keys.k_stride, keys.S, D, DP, DIAGONAL)  # [BN, DP]
        s, unit, reference = scores(q, k, zone, tl.maximum(row0, 0), start, BM, NODES, EXACT, PRECISION)  # [BM, BN]
        if DIAGONAL or keys.Mask is not None or keys.window is not None:
            s = tl.where(visible(i[:, None], j[None, :], keys, DIAGONAL), s, float("-inf"))
        highest = tl.maximum(top, tl.max(s, 1) * unit + reference)
        finite = highest
        if DIAGONAL or keys.Mask is not None or keys.window is not None:
            finite = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp2(s * unit - (finite - reference)[:, None])
        rescale = tl.exp2(top - finite)
        total = total * rescale + tl.sum(p, 1)
        if dropout.seed is not None:
            keep = kept(dropout, (i - query0)[:, None], (j + keys.shift)[None, :])
            p = tl.where(keep, p / (1 - dropout.p), 0.0)
        acc = acc * rescale[:, None]
        v = load_rows(keys.V, j + keys.shift, keys.v_stride, keys.S, D, DP, DIAGONAL)  # [BN, DP]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)  # [BM, BN] · [BN, DP]
        top = highest
    return acc, total, top


@triton.jit
def zone_ends(row0, S, shift, window, blocks, BM: tl.constexpr, BN: tl.constexpr):
    """Where the keys of a query tile begin, and end: in the far zone, the middle zone, full near tiles, and overall."""
    block = tl.maximum(row0, 0) // BLOCK
    far = tl.maximum(block - blocks.middle + 1, 0) * BLOCK
    middle = tl.maximum(block - blocks.near + 1, 0) * BLOCK
    diagonal = tl.maximum(row0, 0) // BN * BN
    begin = 0
    if window is not None:
        begin = tl.maximum(row0 - window + 1, 0) // BN * BN
        far, middle = tl.maximum(far, begin), tl.maximum(middle, begin)
    return begin, far, middle, diagonal, tl.minimum(tl.maximum(row0 + BM, BN), S - shift)


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
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr, NEAR_STAGES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
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

    begin, far_end, middle_end, diagonal, end = zone_ends(row0, place.end, shift, window, blocks, BM, BN)
    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    if Far is not None:
        w, c = node_weights(scale, BM, BN, 4, Far.at.dtype.element_ty)
        zone = Zone(near, far, w, c, reference, blocks, scale)
        acc, total, top = walk(
            acc, total, top, q, keys, zone, dropout, row0, query0, begin, far_end,
            D, DP, BM, BN, 4, False, EXACT, STAGES, PRECISION,
        )  # fmt: skip
    if Middle is not None:
        w, c = node_weights(scale, BM, BN, 16, Middle.at.dtype.element_ty)
        zone = Zone(near, middle, w, c, reference, blocks, scale)
        acc, total, top = walk(
            acc, total, top, q, keys, zone, dropout, row0, query0, far_end, middle_end,
            D, DP, BM, BN, 16, False, EXACT, STAGES, PRECISION,
        )  # fmt: skip
    zone = Zone(near, None, None, None, reference, blocks, scale)
    acc, total, top = walk(
        acc, total, top, q, keys, zone, dropout, row0, query0, middle_end, diagonal,
        D, DP, BM, BN, 0, False, EXACT, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    acc, total, top = walk(
        acc, total, top, q, keys, zone, dropout, row0, query0, diagonal, end,
        D, DP, BM, BN, 0, True, EXACT, NEAR_STAGES, PRECISION,
    )  # fmt: skip

    blind = total == 0.0
    acc = acc / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, float("inf"), top + tl.log2(tl.where(blind, 1.0, total)))  # inf: no weight in backward
    store_rows(out_at, acc.to(Out.at.dtype.element_ty), rows, Out.row, place.limit, D, DP)  # [BM, DP]
    tl.store(lse_at + rows, lse, mask=(rows >= 0) & (rows < place.limit))  # [BM]
