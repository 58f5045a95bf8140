"""Attention, backward. Deterministic: one writer per output, no atomics.

    query_grad   owns a tile of queries: dQ, and each sequence's gradients of middle and far nodes
    key_grad     owns a tile of keys: dK, dV
    near_grad    owns a tile of near biases: dS, summed over the batch

Each recomputes the weights from the logits and the log-sum-exp.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.engines.fused import zones
from longfire.engines.fused.bias_grad import (
    FAR_COLUMN,
    MIDDLE_COLUMN,
    Turns,
    collect_far,
    collect_near,
    collect_nodes,
    over_segments,
)
from longfire.engines.fused.bias_kernels import (
    Blocks,
    load_near,
    near_index,
    node_offsets,
    node_weights,
    tile_index,
    transposed,
)
from longfire.engines.fused.forward import Zone, after_of, reach_of, scores, zone_reaches
from longfire.engines.fused.segments import node_bounds
from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    LOG2E,
    TILE,
    Call,
    Dropout,
    Heads,
    Keys,
    PerHead,
    Tiling,
    Tilings,
    floor_to,
    head_at,
    heads,
    kept,
    load_rows,
    row_place,
    segment_place,
    store_rows,
    tile_place,
    visible,
)

QUERY_TILINGS = Tilings(short=Tiling(registers=168), long=Tiling(registers=168), wide=Tiling())
KEY_TILINGS = Tilings(
    short=Tiling(stages=3, near_stages=1),
    long=Tiling(stages=3, near_stages=1),
    wide=Tiling(stages=1),
    exact=Tiling(stages=3),
)
NEAR_TILINGS = Tilings(short=Tiling(stages=3), long=Tiling(registers=168), wide=Tiling(stages=1), exact=Tiling())


def backward(
    call: Call, dout: Tensor, out: Tensor, lse: Tensor, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and the gradient of the samples (empty unless `learned`)."""
    whole = call.has_whole_tiles(zones.BLOCK) and call.zones.window is None and (call.zones.causal or call.T == call.S)
    new = call.q.new_empty if whole else call.q.new_zeros  # no program writes tiles without visible pairs
    packed = call.segments is not None
    sizes = node_bounds(call.zones, call.B * call.S) if packed else call.zones.node_grads
    heads_of_bias = call.zones.sides * call.H
    shape = (heads_of_bias,) if packed else (call.B, heads_of_bias)
    dmiddle, dfar = (new(*shape, size if learned else 0) for size in sizes)
    dq, delta = _query_grad(call, dout, out, lse, dmiddle, dfar)
    dsamples = call.q.new_empty(0, dtype=torch.float32)
    if learned:
        dsamples = _sample_grad(call, dout, lse, delta, dmiddle, dfar)
    dk, dv = _key_grad(call, dout, lse, delta)
    return dq, dk, dv, dsamples


def _query_grad(
    call: Call, dout: Tensor, out: Tensor, lse: Tensor, dmiddle: Tensor, dfar: Tensor
) -> tuple[Tensor, Tensor]:
    dq, delta = torch.empty_like(call.q), torch.empty_like(lse)
    tiling = QUERY_TILINGS.choose(call.q, call.zones)
    tiles = call.query_tiles(tiling.BM)
    query_grad[(call.programs(tiles),)](
        Out=heads(out),
        dOut=heads(dout),
        dQ=heads(dq),
        Lse=lse,
        Delta=delta,
        dMiddle=PerHead(dmiddle, dmiddle.shape[-1]) if dmiddle.numel() else None,
        dFar=PerHead(dfar, dfar.shape[-1]) if dfar.numel() else None,
        tiles=tiles,
        BM=tiling.BM,
        BN=tiling.BN,
        **call.arguments,
        **call.nodes,
        **tiling.launch(),
    )
    return dq, delta


def _key_grad(call: Call, dout: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    k, grouped = call.k, call.group > 1
    new = (
        torch.empty_like if call.shift is None else torch.zeros_like
    )  # no tile contains the padding before the first key
    shape = (call.B, call.H, call.S, call.D)
    dk, dv = (new(k.new_empty(shape, dtype=torch.float32) if grouped else x) for x in (k, call.v))
    tiling = KEY_TILINGS.choose(call.q, call.zones)
    tiles = call.key_tiles(tiling.BN)
    near = transposed(call.bias.near) if call.zones.by_distance else call.bias.near
    key_grad[(call.programs(tiles),)](
        dOut=heads(dout),
        dK=heads(dk),
        dV=heads(dv),
        Lse=lse,
        Delta=delta,
        tiles=tiles,
        EVEN=call.has_whole_tiles(tiling.BM),
        **{**call.arguments, "Near": PerHead(near, near.shape[1])},
        **call.nodes,
        **tiling.zones(),
        **tiling.launch(),
    )
    if grouped:
        dk, dv = (x.unflatten(1, (-1, call.group)).sum(2).to(k.dtype) for x in (dk, dv))
    return dk, dv


def _sample_grad(call: Call, dout: Tensor, lse: Tensor, delta: Tensor, dmiddle: Tensor, dfar: Tensor) -> Tensor:
    """The gradient of the samples (A, H, E), from those of nodes and of near biases, a few heads at a time.

    Those of nodes are (B, H, …) or, in segments, (H, …); H is of both sides, each with later positions down.
    """
    g, H = call.zones, call.zones.sides * call.H
    turns = Turns.of(g, H)
    if call.segments is not None:
        dmiddle, dfar = (
            over_segments(found, call.segments.table, column, size)
            for found, column, size in zip((dmiddle, dfar), (MIDDLE_COLUMN, FAR_COLUMN), g.node_grads, strict=True)
        )
    dsamples = call.q.new_empty(g.row_nodes, H, g.distance_nodes, dtype=torch.float32)
    dnear = dsamples.new_empty(turns.heads * turns.groups * g.near * zones.BLOCK**2)
    for first_head in range(0, H, turns.heads):
        count = min(turns.heads, H - first_head)
        near_grad[g.near * 4, turns.groups, count](
            dOut=heads(dout),
            Lse=lse,
            Delta=delta,
            dNear=dnear,
            first_head=first_head,
            groups=turns.groups,
            rows_per_group=turns.rows_per_group,
            last_block=g.last_block,
            sequences=call.sequences,
            **call.arguments,
            **NEAR_TILINGS.choose(call.q, call.zones).launch(),
        )
        rows = call.S if call.segments is None else g.keys
        collect_near(dnear, turns.groups, dmiddle, dsamples, g, rows, first_head, count)
    if g.by_distance:
        collect_nodes(dmiddle, dfar, dsamples, g)
    elif dfar.numel():
        collect_far(dfar, dsamples, g)
    return dsamples


# --- queries --------------------------------------------------------------------------------------------------------


@triton.jit
def logit_grad(
    q, do, k, v,  # [BM, DP] and [BN, DP]
    lse, delta,  # [BM]
    keys, zone, dropout, i, j, row0, start, query0,
    BM: tl.constexpr, NODES: tl.constexpr, DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    TABLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dS of a tile: [BM, BN]."""
    s, unit, reference = scores(q, k, zone, tl.maximum(row0, 0), start, BM, NODES, DIAGONAL, CAUSAL, TABLE, PRECISION)
    p = tl.exp2(s * unit - (lse - reference)[:, None])
    if DIAGONAL or not WHOLE or keys.Mask is not None or keys.window is not None:
        p = tl.where(visible(i[:, None], j[None, :], keys, DIAGONAL, CAUSAL, WHOLE), p, 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)  # [BM, DP] · [DP, BN]
    if dropout.seed is not None:
        keep = kept(dropout, (i - query0)[:, None], (j + keys.shift)[None, :])
        dp = tl.where(keep, dp / (1 - dropout.p), 0.0)
    return p * (dp - delta[:, None])


@triton.jit
def walk_keys(
    dq, q, do,  # [BM, DP]
    lse, delta,  # [BM]
    keys, zone, dNodes, dnodes_after, dropout, row0, query0, reach,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, NODES: tl.constexpr,
    DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, TABLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the keys in reach to dq; store the gradients of their nodes unless dNodes is None."""
    i = row0 + tl.arange(0, BM)
    for start in range(reach.lo, reach.hi, BN):
        if not CAUSAL:
            start += tl.where(start < reach.gap, 0, reach.skip)
        start = tl.multiple_of(start, BN)
        j = start + tl.arange(0, BN)
        k = load_rows(keys.K, j + keys.shift, keys.k_stride, keys.S, D, DP, DIAGONAL or not WHOLE)  # [BN, DP]
        v = load_rows(keys.V, j + keys.shift, keys.v_stride, keys.S, D, DP, DIAGONAL or not WHOLE)  # [BN, DP]
        ds = logit_grad(
            q, do, k, v, lse, delta, keys, zone, dropout, i, j, row0, start, query0,
            BM, NODES, DIAGONAL, CAUSAL, WHOLE, TABLE, PRECISION,
        )  # fmt: skip
        low = ds.to(k.dtype)
        dq = tl.dot(low, k, dq, input_precision=PRECISION)  # [BM, BN] · [BN, DP]
        if dNodes is not None:
            across = tl.trans(zone.columns).to(k.dtype)
            columns = tl.dot(low, across, input_precision=PRECISION)  # [BM, BN] · [BN, 16]
            rows = tl.trans(zone.rows).to(k.dtype)  # divided by the scale
            total = tl.dot(rows, columns.to(k.dtype), input_precision=PRECISION) * zone.scale  # [≥16, BM] · [BM, 16]
            at, there = node_grad_at(dNodes, dnodes_after, zone.blocks, tl.maximum(row0, 0), start, BM, NODES, CAUSAL)
            tl.store(at, total.to(dNodes.dtype.element_ty), mask=there)  # [≥16, 16]
    return dq


@triton.jit
def node_grad_at(dNodes, after, blocks, row0, start, BM: tl.constexpr, NODES: tl.constexpr, CAUSAL: tl.constexpr):
    """Where the gradients of a tile's nodes are stored [≥16, 16]: with later positions down, as they are collected."""
    offsets, there = node_offsets(blocks, row0, start, BM, NODES, CAUSAL)
    if not CAUSAL:
        row = tl.arange(0, offsets.shape[0])[:, None] % NODES
        column = tl.arange(0, 16)[None, :]
        turned = offsets + (column - row) * (NODES - 1)
        offsets = tl.where(start > row0, after + turned, offsets.to(tl.int64))
    return dNodes + offsets, there


@triton.jit(do_not_specialize=LENGTHS)
def query_grad(
    Q, K, V, Out, dOut, dQ,  # Heads: (B, H, T, D); K and V (B, G, S, D)
    Lse, Delta,  # (B, H, T); Delta is the sum of Out · dOut
    KeyMask, Shift, Seed,  # (B, S), (B,), (1,), or None
    Segments,  # or None
    Near, Middle, Far,  # PerHead; Middle and Far may be None
    dMiddle, dFar,  # PerHead: (B, H, …) or, in segments, (H, …); or None
    Reference,  # (H, references_per_head), or None
    B, H, T, S, group, window, tiles, scale, dropout_p,
    references_per_head, first_block, near_blocks, middle_blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WHOLE: tl.constexpr, TABLE: tl.constexpr, PRECISION: tl.constexpr,
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
    rows = row0 + tl.arange(0, BM) - query0

    head = b * H + h
    q_at = head_at(Q, b, h)
    k_at, v_at = head_at(K, b, h, group), head_at(V, b, h, group)
    out_at, do_at, dq_at = head_at(Out, b, h), head_at(dOut, b, h), head_at(dQ, b, h)
    lse_at, delta_at = Lse + head.to(tl.int64) * T, Delta + head.to(tl.int64) * T
    mask = KeyMask + b.to(tl.int64) * S if KeyMask is not None else None
    near = Near.at + h.to(tl.int64) * Near.h
    middle = Middle.at + h.to(tl.int64) * Middle.h if Middle is not None else None
    far = Far.at + h.to(tl.int64) * Far.h if Far is not None else None
    sides: tl.constexpr = 1 if CAUSAL else 2
    owner = b * (sides * H) + h if Segments is None else h
    dmiddle = dMiddle.at + owner.to(tl.int64) * dMiddle.h + place.middle if dMiddle is not None else None
    dfar = dFar.at + owner.to(tl.int64) * dFar.h + place.far if dFar is not None else None
    middle_after = H.to(tl.int64) * dMiddle.h if dMiddle is not None else None
    far_after = H.to(tl.int64) * dFar.h if dFar is not None else None
    reference = Reference + h * references_per_head if Reference is not None else None
    keys = Keys(k_at, v_at, K.row, V.row, mask, shift, place.end, window)
    dropout = Dropout(tl.load(Seed) if Seed is not None else None, dropout_p, head)  # []
    blocks = Blocks(first_block, near_blocks, middle_blocks)

    q = load_rows(q_at, rows, Q.row, place.limit, D, DP, True)  # [BM, DP]
    do = load_rows(do_at, rows, dOut.row, place.limit, D, DP, True)  # [BM, DP]
    out = load_rows(out_at, rows, Out.row, place.limit, D, DP, True)  # [BM, DP]
    inside = (rows >= 0) & (rows < place.limit)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_at + rows, delta, mask=inside)  # [BM]
    lse = tl.load(lse_at + rows, mask=inside, other=float("inf"))  # [BM]

    in_far, in_middle, in_near, on_diagonal = zone_reaches(row0, place.end, shift, window, blocks, BM, BN, CAUSAL)
    dq = tl.zeros([BM, DP], tl.float32)
    if Far is not None:
        w, c = node_weights(scale, BM, BN, 4, Far.at.dtype.element_ty)
        zone = Zone(near, far, w, c, reference, blocks, scale, after_of(H, Near, Far, references_per_head))
        dq = walk_keys(
            dq, q, do, lse, delta, keys, zone, dfar, far_after, dropout, row0, query0, in_far,
            D, DP, BM, BN, 4, False, CAUSAL, WHOLE, TABLE, PRECISION,
        )  # fmt: skip
    if Middle is not None:
        w, c = node_weights(scale, BM, BN, 16, Middle.at.dtype.element_ty)
        zone = Zone(near, middle, w, c, reference, blocks, scale, after_of(H, Near, Middle, references_per_head))
        dq = walk_keys(
            dq, q, do, lse, delta, keys, zone, dmiddle, middle_after, dropout, row0, query0, in_middle,
            D, DP, BM, BN, 16, False, CAUSAL, WHOLE, TABLE, PRECISION,
        )  # fmt: skip
    zone = Zone(near, None, None, None, reference, blocks, scale, after_of(H, Near, None, references_per_head))
    dq = walk_keys(
        dq, q, do, lse, delta, keys, zone, None, None, dropout, row0, query0, in_near,
        D, DP, BM, BN, 0, False, CAUSAL, WHOLE, TABLE, PRECISION,
    )  # fmt: skip
    dq = walk_keys(
        dq, q, do, lse, delta, keys, zone, None, None, dropout, row0, query0, on_diagonal,
        D, DP, BM, BN, 0, True, CAUSAL, WHOLE, TABLE, PRECISION,
    )  # fmt: skip
    store_rows(dq_at, (dq * scale).to(dQ.at.dtype.element_ty), rows, dQ.row, place.limit, D, DP)  # [BM, DP]


# --- keys: tiles are [BN, BM], keys down and queries across ---------------------------------------------------------


@triton.jit
def key_near_bias(at, down, across, BM: tl.constexpr, BN: tl.constexpr, TABLE: tl.constexpr):
    """Near biases [BN, BM] of a tile of the block at `at`: its number down the keys and across the queries."""
    if TABLE:
        return load_near(at + (down * 2 + across) * (TILE * TILE), BN).to(tl.float32)
    return tl.trans(load_near(at + (across * 2 + down) * (TILE * TILE), BM)).to(tl.float32)


@triton.jit
def key_scores(
    q, k, zone, row0, key0,
    BM: tl.constexpr, BN: tl.constexpr, NODES: tl.constexpr, DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr,
    TABLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`forward.scores` transposed: [BN, BM]. If TABLE, near biases are already transposed."""
    block, key_block = row0 // BLOCK, key0 // BLOCK
    tile, key_tile = row0 // TILE, key0 // TILE
    if not CAUSAL:
        block, key_block = tl.maximum(block, key_block), tl.minimum(block, key_block)
    logits = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [BN, DP] · [DP, BM]
    if NODES == 0:
        near = zone.Near + near_index(zone.blocks, block, key_block, TABLE)
        reference_at = zone.Reference + block - key_block if zone.Reference is not None else None
        down, across = key0 % BLOCK // TILE, row0 % BLOCK // TILE
        if not CAUSAL and not DIAGONAL:
            near += tl.where(row0 < key0, zone.after.near, 0)
            if zone.Reference is not None:
                reference_at += tl.where(row0 < key0, zone.after.reference, 0)
        bias = key_near_bias(near, down, across, BM, BN, TABLE)
        reference = tl.load(reference_at) * LOG2E if zone.Reference is not None else 0.0  # []
        if not CAUSAL and DIAGONAL:
            after = key_near_bias(near + zone.after.near, down, across, BM, BN, TABLE)
            if zone.Reference is not None:
                after += tl.load(reference_at + zone.after.reference) * LOG2E - reference  # []
            later = (key0 + tl.arange(0, BN))[:, None] > (row0 + tl.arange(0, BM))[None, :]
            bias = tl.where(later, after, bias)
        logits = logits * (zone.scale * LOG2E) + bias
        unit = 1.0
    else:
        N: tl.constexpr = 16 if BN // TILE * NODES < 16 else BN // TILE * NODES
        column = tl.arange(0, N)[:, None]
        row = tl.arange(0, 16)[None, :]
        if CAUSAL:
            index = tile_index(zone.blocks, tile, key_tile + column // NODES, NODES != 16, TABLE)
        else:
            key_tile += column // NODES
            index = tile_index(zone.blocks, tl.maximum(tile, key_tile), tl.minimum(tile, key_tile), NODES != 16, TABLE)
        offsets = index * (NODES * NODES) + row * NODES + column % NODES
        there = (row < NODES) & (column < BN // TILE * NODES)
        at = zone.Nodes + offsets
        if not CAUSAL:
            at += tl.where(row0 < key0, zone.after.nodes, 0)
        nodes = tl.load(at, mask=there, other=0.0)  # [≥16, 16]
        mixed = tl.dot(zone.rows, nodes, input_precision=PRECISION).to(nodes.dtype)  # [BN, ≥16] · [≥16, 16]
        logits = tl.dot(mixed, zone.columns, logits, input_precision=PRECISION)  # [BN, 16] · [16, BM]
        unit = zone.scale * LOG2E
        reference = 0.0
    return logits, unit, reference


@triton.jit
def walk_queries(
    dk, dv, k, v,  # [BN, DP]
    Q, dOut, q_stride, do_stride, Lse, Delta, T,  # of one sequence and head
    keys, zone, dropout, key0, query0, reach,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, NODES: tl.constexpr,
    DIAGONAL: tl.constexpr, CAUSAL: tl.constexpr, TABLE: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the queries in reach to dk and dv."""
    j = key0 + tl.arange(0, BN)
    for row0 in tl.range(reach.lo, reach.hi, BM, num_stages=STAGES):
        if not CAUSAL:
            row0 += tl.where(row0 < reach.gap, 0, reach.skip)
        row0 = tl.multiple_of(row0, BM)
        i = row0 + tl.arange(0, BM)
        rows = i - query0
        if EVEN:
            rows = tl.multiple_of(row0 - query0, BM) + tl.arange(0, BM)
        q = load_rows(Q, rows, q_stride, T, D, DP, not EVEN)  # [BM, DP]
        do = load_rows(dOut, rows, do_stride, T, D, DP, not EVEN)  # [BM, DP]
        if EVEN:
            lse, delta = tl.load(Lse + rows), tl.load(Delta + rows)  # [BM]
        else:
            inside = (rows >= 0) & (rows < T)
            lse = tl.load(Lse + rows, mask=inside, other=float("inf"))  # [BM]
            delta = tl.load(Delta + rows, mask=inside, other=0.0)  # [BM]
        s, unit, reference = key_scores(
            q, k, zone, tl.maximum(row0, 0), key0, BM, BN, NODES, DIAGONAL, CAUSAL, TABLE, PRECISION
        )  # [BN, BM]
        p = tl.exp2(s * unit - (lse - reference)[None, :])  # [BN, BM]
        if DIAGONAL or keys.Mask is not None or keys.window is not None:
            p = tl.where(visible(i[None, :], j[:, None], keys, DIAGONAL, CAUSAL, True), p, 0.0)
        weight = p
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)  # [BN, DP] · [DP, BM]
        if dropout.seed is not None:
            keep = kept(dropout, rows[None, :], (j + keys.shift)[:, None])
            weight = tl.where(keep, p / (1 - dropout.p), 0.0)
            dp = tl.where(keep, dp / (1 - dropout.p), 0.0)
        dv = tl.dot(weight.to(do.dtype), do, dv, input_precision=PRECISION)  # [BN, BM] · [BM, DP]
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)  # [BN, BM] · [BM, DP]
    return dk, dv


@triton.jit(do_not_specialize=LENGTHS)
def key_grad(
    Q, K, V, dOut, dK, dV,  # Heads: (B, H, T, D), (B, G, S, D) twice, (B, H, T, D), (B, H, S, D) twice
    Lse, Delta,  # (B, H, T)
    KeyMask, Shift, Seed,  # (B, S), (B,), (1,), or None
    Segments,  # or None
    Near, Middle, Far,  # PerHead; Middle and Far may be None
    Reference,  # (H, references_per_head), or None
    B, H, T, S, group, window, tiles, scale, dropout_p,
    references_per_head, first_block, near_blocks, middle_blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WHOLE: tl.constexpr, TABLE: tl.constexpr, EVEN: tl.constexpr,
    NEAR_STAGES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of keys for one query head. (Looping over the query heads that share a key head spills registers.)"""
    place, tile = tile_place(Shift, Segments, B, T, S, tiles, False)
    b, h, shift, query0 = place.b, place.h, place.shift, place.query0
    g = h // group
    key0 = tl.multiple_of(tile * BN, BN)
    j = key0 + tl.arange(0, BN)

    mask = KeyMask + b.to(tl.int64) * S if KeyMask is not None else None
    keys = Keys(head_at(K, b, g), head_at(V, b, g), K.row, V.row, mask, shift, place.end, window)
    seed = tl.load(Seed) if Seed is not None else None  # []
    k = load_rows(keys.K, j + shift, K.row, place.end, D, DP, True)  # [BN, DP]
    v = load_rows(keys.V, j + shift, V.row, place.end, D, DP, True)  # [BN, DP]
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)

    key_block = key0 // BLOCK
    first = floor_to(tl.maximum(query0, place.first), BM)
    last = place.end - shift
    if window is not None:
        last = tl.minimum(last, key0 + BN + window - 1)
    diagonal = first if key0 == 0 else tl.maximum(first, key0)  # padding sees the first key
    diagonal_end = tl.minimum(tl.maximum(key0 + BN, diagonal), last)
    full = tl.minimum(tl.maximum(first, key0 + BN), last)
    middle_start = tl.minimum(tl.maximum(full, (key_block + near_blocks) * BLOCK), last)
    far_start = tl.minimum(tl.maximum(full, (key_block + middle_blocks) * BLOCK), last)
    if CAUSAL:
        on_diagonal = reach_of(diagonal, diagonal_end, 0, 0, CAUSAL)
        in_near = reach_of(full, middle_start, 0, 0, CAUSAL)
        in_middle = reach_of(middle_start, far_start, 0, 0, CAUSAL)
        in_far = reach_of(far_start, last, 0, 0, CAUSAL)
    else:
        if window is not None:
            first = tl.maximum(first, floor_to(key0 - window + 1, BM))
        near_first = tl.minimum(tl.maximum(first, (key_block - near_blocks + 1) * BLOCK), tl.maximum(first, key0))
        middle_first = tl.maximum(first, (key_block - middle_blocks + 1) * BLOCK)
        on_diagonal = reach_of(tl.maximum(first, key0), diagonal_end, 0, 0, CAUSAL)
        in_near = reach_of(near_first, tl.maximum(first, key0), full, middle_start, CAUSAL)
        in_middle = reach_of(middle_first, near_first, middle_start, far_start, CAUSAL)
        in_far = reach_of(first, middle_first, far_start, last, CAUSAL)
    head = b * H + h
    q, do = head_at(Q, b, h), head_at(dOut, b, h)
    first_row = head.to(tl.int64) * T
    if EVEN:
        first_row = tl.multiple_of(first_row, BM)
    lse, delta = Lse + first_row, Delta + first_row
    near = Near.at + h.to(tl.int64) * Near.h
    middle = Middle.at + h.to(tl.int64) * Middle.h if Middle is not None else None
    far = Far.at + h.to(tl.int64) * Far.h if Far is not None else None
    reference = Reference + h * references_per_head if Reference is not None else None
    dropout = Dropout(seed, dropout_p, head)
    blocks = Blocks(first_block, near_blocks, middle_blocks)
    zone = Zone(near, None, None, None, reference, blocks, scale, after_of(H, Near, None, references_per_head))
    dk, dv = walk_queries(
        dk, dv, k, v, q, do, Q.row, dOut.row, lse, delta, place.limit, keys, zone, dropout, key0, query0,
        on_diagonal, D, DP, BM, BN, 0, True, CAUSAL, TABLE, False, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    dk, dv = walk_queries(
        dk, dv, k, v, q, do, Q.row, dOut.row, lse, delta, place.limit, keys, zone, dropout, key0, query0,
        in_near, D, DP, BM, BN, 0, False, CAUSAL, TABLE, EVEN, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    if Middle is not None:
        w, r = node_weights(scale, BN, BM, 16, Middle.at.dtype.element_ty)
        zone = Zone(near, middle, w, r, reference, blocks, scale, after_of(H, Near, Middle, references_per_head))
        dk, dv = walk_queries(
            dk, dv, k, v, q, do, Q.row, dOut.row, lse, delta, place.limit, keys, zone, dropout, key0, query0,
            in_middle, D, DP, BM, BN, 16, False, CAUSAL, TABLE, EVEN, STAGES, PRECISION,
        )  # fmt: skip
    if Far is not None:
        w, r = node_weights(scale, BN, BM, 4, Far.at.dtype.element_ty)
        zone = Zone(near, far, w, r, reference, blocks, scale, after_of(H, Near, Far, references_per_head))
        dk, dv = walk_queries(
            dk, dv, k, v, q, do, Q.row, dOut.row, lse, delta, place.limit, keys, zone, dropout, key0, query0,
            in_far, D, DP, BM, BN, 4, False, CAUSAL, TABLE, EVEN, STAGES, PRECISION,
        )  # fmt: skip
    dk_at, dv_at = head_at(dK, b, h), head_at(dV, b, h)
    store_rows(dk_at, (dk * scale).to(dK.at.dtype.element_ty), j + shift, dK.row, place.end, D, DP)  # [BN, DP]
    store_rows(dv_at, dv.to(dV.at.dtype.element_ty), j + shift, dV.row, place.end, D, DP)  # [BN, DP]


# --- near biases ----------------------------------------------------------------------------------------------------


@triton.jit
def near_logit_grad(
    Q, K, V, dOut,  # Heads, from this head on
    Lse, Delta, KeyMask, seed, place, zone, i, j, row0, start, H, T, S, window, dropout_p,
    D: tl.constexpr, DP: tl.constexpr, CAUSAL: tl.constexpr, TABLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dS of one tile of one sequence and head: [TILE, TILE]."""
    rows = i - place.query0
    inside = (rows >= 0) & (rows < place.limit)
    head = place.b * H + place.h
    b = (head // H).to(tl.int64)
    q = load_rows(Q.at + b * Q.b, rows, Q.row, place.limit, D, DP, True)  # [TILE, DP]
    do = load_rows(dOut.at + b * dOut.b, rows, dOut.row, place.limit, D, DP, True)  # [TILE, DP]
    k = load_rows(K.at + b * K.b, j + place.shift, K.row, place.end, D, DP, True)  # [TILE, DP]
    v = load_rows(V.at + b * V.b, j + place.shift, V.row, place.end, D, DP, True)  # [TILE, DP]
    lse = tl.load(Lse + head.to(tl.int64) * T + rows, mask=inside, other=float("inf"))  # [TILE]
    delta = tl.load(Delta + head.to(tl.int64) * T + rows, mask=inside, other=0.0)  # [TILE]
    mask = KeyMask + b * S if KeyMask is not None else None
    keys = Keys(K.at, V.at, K.row, V.row, mask, place.shift, place.end, window)
    return logit_grad(
        q, do, k, v, lse, delta, keys, zone, Dropout(seed, dropout_p, head), i, j, row0, start, place.query0,
        TILE, 0, True, CAUSAL, True, TABLE, PRECISION,
    )  # fmt: skip


@triton.jit
def segments_longer_than(Segments, length, sequences, N: tl.constexpr = 128):
    """How many segments have more keys than this: the first ones, since the longest come first."""
    longer = 0
    for start in range(0, sequences, N):
        n = start + tl.arange(0, N)
        first = tl.load(Segments.table + n * 5 + 1, mask=n < sequences, other=0)  # [N]
        end = tl.load(Segments.table + n * 5 + 2, mask=n < sequences, other=0)  # [N]
        longer += tl.sum((end - first > length).to(tl.int32), 0)
    return longer


@triton.jit(do_not_specialize=LENGTHS)
def near_grad(
    Q, K, V, dOut,  # Heads: (B, H, T, D), (B, G, S, D) twice, (B, H, T, D)
    Lse, Delta,  # (B, H, T)
    dNear,  # (heads, groups of rows of blocks, blocks apart, 128, 128)
    KeyMask, Shift, Seed,  # (B, S), (B,), (1,), or None
    Segments,  # or None
    Near,  # PerHead
    Reference,  # (H, references_per_head), or None
    B, H, T, S, group, window, sequences, first_head, groups, scale, dropout_p,
    first_block, references_per_head, last_block, near_blocks, rows_per_group,
    D: tl.constexpr, DP: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, TABLE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One 64 × 64 tile of dNear, with later positions down."""
    apart = tl.program_id(0) // 4
    part = tl.program_id(0) % 4
    down, across = part // 2, part % 2
    chunk = tl.program_id(1)
    owner = tl.program_id(2) + first_head
    if (apart == 0) & (across > down):
        return
    h = owner
    if not CAUSAL:
        h = owner % H
    g = (h // group).to(tl.int64)
    Qh = Heads(Q.at + h.to(tl.int64) * Q.h, Q.b, Q.h, Q.row)
    Kh, Vh = Heads(K.at + g * K.h, K.b, K.h, K.row), Heads(V.at + g * V.h, V.b, V.h, V.row)
    dOh = Heads(dOut.at + h.to(tl.int64) * dOut.h, dOut.b, dOut.h, dOut.row)
    near = Near.at + h.to(tl.int64) * Near.h
    reference = Reference + h * references_per_head if Reference is not None else None
    seed = tl.load(Seed) if Seed is not None else None  # []
    after = after_of(H, Near, None, references_per_head)
    zone = Zone(near, None, None, None, reference, Blocks(first_block, near_blocks, near_blocks), scale, after)
    if Segments is not None:
        sequences = tl.load(Segments.table + sequences * 5)  # []
    total = tl.zeros([TILE, TILE], tl.float32)
    first = tl.maximum(first_block + chunk * rows_per_group, apart)
    last = tl.minimum(first_block + (chunk + 1) * rows_per_group, last_block)
    for block in range(first, last):
        later = block * BLOCK + down * TILE
        earlier = (block - apart) * BLOCK + across * TILE
        row0, start = later, earlier
        if not CAUSAL:
            row0, start = tl.where(owner < H, later, earlier), tl.where(owner < H, earlier, later)
        i = row0 + tl.arange(0, TILE)
        j = start + tl.arange(0, TILE)
        if Segments is None:
            for n in range(sequences):
                place = row_place(Shift, n, h, T, S)
                total += near_logit_grad(
                    Qh, Kh, Vh, dOh, Lse, Delta, KeyMask, seed, place, zone, i, j, row0, start,
                    H, T, S, window, dropout_p, D, DP, CAUSAL, TABLE, PRECISION,
                )  # fmt: skip
        else:
            place = segment_place(Segments.table, h, T, S)
            for n in range(segments_longer_than(Segments, later, sequences)):
                following = segment_place(Segments.table + (n + 1) * 5, h, T, S)  # ahead of its use
                total += near_logit_grad(
                    Qh, Kh, Vh, dOh, Lse, Delta, KeyMask, seed, place, zone, i, j, row0, start,
                    H, T, S, window, dropout_p, D, DP, CAUSAL, TABLE, PRECISION,
                )  # fmt: skip
                place = following
    at = ((owner - first_head) * groups + chunk).to(tl.int64) * near_blocks + apart
    r = tl.arange(0, TILE)[:, None]
    c = tl.arange(0, TILE)[None, :]
    if CAUSAL:
        offset = (down * TILE + r) * BLOCK + across * TILE + c
    else:
        own = (apart > 0) | ((r < c) == (owner >= H))  # a tile on the diagonal has pairs of both sides
        total = tl.where(own | (down != across), total, 0.0)
        offset = tl.where(owner < H, r * BLOCK + c, c * BLOCK + r) + down * TILE * BLOCK + across * TILE
    tl.store(dNear + at * (BLOCK * BLOCK) + offset, total)  # [TILE, TILE]
