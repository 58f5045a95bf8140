"""Attention, backward: walks none of which adds where another does, so that every run gives the same.

    queries     owns a tile of queries: their gradients, and for each sequence those of nodes
    keys        owns a tile of keys: gradients of keys and values
    near_biases owns near biases: sums over the batch (and, where the bias is of the distance alone, along the diagonal)

Each computes the weights anew from the logits and the logarithms of the sums.
"""

import triton
import triton.language as tl

from longfire.engines.fused.forward import node_offsets, row_scores, visible, zone_weights
from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    LOG2E,
    TILE,
    floor_to,
    kept,
    load_near,
    load_rows,
    near_index,
    store_rows,
    tile_index,
)


@triton.jit
def walk_keys(
    dq, q, do, lse, delta, K, V, KeyMask, Near, Nodes, dNodes, Reference, weights, column_weights, seed, row0,
    query0, head,
    shift, lo, hi, T, S, k_stride, v_stride, scale, dropout_p, first_block, near, middle,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, DIAGONAL: tl.constexpr,
    EXACT: tl.constexpr, REFERENCE: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, LEARNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of queries from the keys from lo to hi. LEARNED: those of nodes are stored."""
    i = row0 + tl.arange(0, BM)
    for start in range(lo, hi, BN):
        start = tl.multiple_of(start, BN)
        j = start + tl.arange(0, BN)
        k = load_rows(K, j + shift, k_stride, S, D, DP, DIAGONAL)
        v = load_rows(V, j + shift, v_stride, S, D, DP, DIAGONAL)
        ds = row_gradient(
            q, do, k, v, lse, delta, KeyMask, Near, Nodes, Reference, weights, column_weights, seed, i, j, row0, start,
            query0, head, shift, S, scale, dropout_p, first_block, near, middle,
            BM, BN, ZONE, DIAGONAL, EXACT, REFERENCE, MASK, DROPOUT, PRECISION,
        )  # fmt: skip
        low = ds.to(k.dtype)
        dq = tl.dot(low, k, dq, input_precision=PRECISION)
        if LEARNED:
            columns = tl.dot(low, tl.trans(column_weights).to(k.dtype), input_precision=PRECISION)  # [BM, 16]
            rows = tl.trans(weights).to(k.dtype)  # [≥16, BM], divided by the scale
            total = tl.dot(rows, columns.to(k.dtype), input_precision=PRECISION) * scale  # [≥16, 16]
            offsets, there = node_offsets(tl.maximum(row0, 0), start, first_block, near, middle, BM, ZONE)
            tl.store(dNodes + offsets, total.to(dNodes.dtype.element_ty), mask=there)
    return dq


@triton.jit
def row_gradient(
    q, do, k, v, lse, delta, KeyMask, Near, Nodes, Reference, weights, column_weights, seed, i, j, row0, start,
    query0, head,
    shift, S, scale, dropout_p, first_block, near, middle,
    BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, DIAGONAL: tl.constexpr, EXACT: tl.constexpr,
    REFERENCE: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile's logits [BM, BN]."""
    scores, unit, reference = row_scores(
        q, k, weights, column_weights, Near, Nodes, Reference, tl.maximum(row0, 0), start, scale, first_block, near,
        middle,
        BM, BN, ZONE, EXACT, REFERENCE, PRECISION,
    )  # fmt: skip
    p = tl.exp2(scores * unit - (lse - reference)[:, None])
    if DIAGONAL or MASK:
        p = tl.where(visible(i[:, None], j[None, :], shift, S, KeyMask, DIAGONAL, MASK), p, 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    if DROPOUT:
        keep = kept(seed, (i - query0)[:, None], (j + shift)[None, :], head, dropout_p)
        dp = tl.where(keep, dp / (1 - dropout_p), 0.0)
    return p * (dp - delta[:, None])


@triton.jit(do_not_specialize=LENGTHS)
def queries(
    Q, K, V, Out, dOut, Lse, Delta, dQ, KeyMask, Shift, Near, Middle, Far, Reference, dMiddle, dFar, Seed,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, o_b, o_h, o_t, do_b, do_h, do_t, dq_b, dq_h, dq_t,
    B, H, T, S, group, tiles, scale, dropout_p,
    near_per_head, middle_per_head, far_per_head, references_per_head, first_block, near, middle,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EXACT: tl.constexpr, REFERENCE: tl.constexpr,
    HAS_MIDDLE: tl.constexpr, HAS_FAR: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, DROPOUT: tl.constexpr,
    LEARNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ; Delta, the sum of out · dOut for each query; dMiddle and dFar (B, H, …) for each sequence."""
    pid = tl.program_id(0)
    tile = tiles - 1 - pid % tiles
    b = pid // tiles % B
    h = pid // tiles // B
    shift = tl.load(Shift + b) if SHIFT else 0
    query0 = S - T - shift
    row0 = tl.multiple_of(floor_to(query0, BM) + tile * BM, BM)
    if row0 >= query0 + T:
        return
    i = row0 + tl.arange(0, BM)
    rows = i - query0

    head = b * H + h
    Q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    K += b.to(tl.int64) * k_b + (h // group).to(tl.int64) * k_h
    V += b.to(tl.int64) * v_b + (h // group).to(tl.int64) * v_h
    Out += b.to(tl.int64) * o_b + h.to(tl.int64) * o_h
    dOut += b.to(tl.int64) * do_b + h.to(tl.int64) * do_h
    dQ += b.to(tl.int64) * dq_b + h.to(tl.int64) * dq_h
    Lse += head.to(tl.int64) * T
    Delta += head.to(tl.int64) * T
    KeyMask += b.to(tl.int64) * S
    Near += h.to(tl.int64) * near_per_head
    Middle += h.to(tl.int64) * middle_per_head
    Far += h.to(tl.int64) * far_per_head
    dMiddle += head.to(tl.int64) * middle_per_head
    dFar += head.to(tl.int64) * far_per_head
    Reference += h * references_per_head
    seed = tl.load(Seed) if DROPOUT else 0

    q = load_rows(Q, rows, q_t, T, D, DP, True)
    do = load_rows(dOut, rows, do_t, T, D, DP, True)
    out = load_rows(Out, rows, o_t, T, D, DP, True)
    inside = (rows >= 0) & (rows < T)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(Delta + rows, delta, mask=inside)
    lse = tl.load(Lse + rows, mask=inside, other=float("inf"))

    block = tl.maximum(row0, 0) // BLOCK
    far_end = tl.maximum(block - middle + 1, 0) * BLOCK
    middle_end = tl.maximum(block - near + 1, 0) * BLOCK
    diagonal = tl.maximum(row0, 0) // BN * BN
    end = tl.minimum(tl.maximum(row0 + BM, BN), S - shift)
    dq = tl.zeros([BM, DP], tl.float32)
    if HAS_FAR:
        w, c = zone_weights(scale, BM, BN, 4, Far.dtype.element_ty)
        dq = walk_keys(
            dq, q, do, lse, delta, K, V, KeyMask, Near, Far, dFar, Reference, w, c, seed, row0, query0, head, shift,
            0, far_end, T, S, k_s, v_s, scale, dropout_p, first_block, near, middle,
            D, DP, BM, BN, 4, False, EXACT, REFERENCE, MASK, DROPOUT, LEARNED, PRECISION,
        )  # fmt: skip
    if HAS_MIDDLE:
        w, c = zone_weights(scale, BM, BN, 16, Middle.dtype.element_ty)
        dq = walk_keys(
            dq, q, do, lse, delta, K, V, KeyMask, Near, Middle, dMiddle, Reference, w, c, seed, row0, query0, head,
            shift,
            far_end, middle_end, T, S, k_s, v_s, scale, dropout_p, first_block, near, middle,
            D, DP, BM, BN, 16, False, EXACT, REFERENCE, MASK, DROPOUT, LEARNED, PRECISION,
        )  # fmt: skip
    dq = walk_keys(
        dq, q, do, lse, delta, K, V, KeyMask, Near, Near, Near, Reference, 0, 0, seed, row0, query0, head, shift,
        middle_end, diagonal, T, S, k_s, v_s, scale, dropout_p, first_block, near, middle,
        D, DP, BM, BN, 0, False, EXACT, REFERENCE, MASK, DROPOUT, False, PRECISION,
    )  # fmt: skip
    dq = walk_keys(
        dq, q, do, lse, delta, K, V, KeyMask, Near, Near, Near, Reference, 0, 0, seed, row0, query0, head, shift,
        diagonal, end, T, S, k_s, v_s, scale, dropout_p, first_block, near, middle,
        D, DP, BM, BN, 0, True, EXACT, REFERENCE, MASK, DROPOUT, False, PRECISION,
    )  # fmt: skip
    store_rows(dQ, (dq * scale).to(dQ.dtype.element_ty), rows, dq_t, T, D, DP)


@triton.jit
def walk_queries(
    dk, dv, k, v, Q, dOut, Lse, Delta, KeyMask, Near, Nodes, Reference, weights, row_weights, seed, key0, query0,
    head, shift,
    lo, hi, T, S, q_stride, do_stride, scale, dropout_p, first_block, near, middle,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, DIAGONAL: tl.constexpr,
    EXACT: tl.constexpr, REFERENCE: tl.constexpr, MASK: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles are [BN, BM] here: keys down, queries across."""
    j = key0 + tl.arange(0, BN)
    for row0 in tl.range(lo, hi, BM, num_stages=STAGES):
        row0 = tl.multiple_of(row0, BM)
        i = row0 + tl.arange(0, BM)
        rows = i - query0
        q = load_rows(Q, rows, q_stride, T, D, DP, not EVEN)
        do = load_rows(dOut, rows, do_stride, T, D, DP, not EVEN)
        if EVEN:
            lse, delta = tl.load(Lse + rows), tl.load(Delta + rows)
        else:
            inside = (rows >= 0) & (rows < T)
            lse = tl.load(Lse + rows, mask=inside, other=float("inf"))
            delta = tl.load(Delta + rows, mask=inside, other=0.0)
        scores, unit, reference = column_scores(
            q, k, weights, row_weights, Near, Nodes, Reference, tl.maximum(row0, 0), key0, scale, first_block, near,
            middle,
            BM, BN, ZONE, EXACT, REFERENCE, PRECISION,
        )  # fmt: skip
        p = tl.exp2(scores * unit - (lse - reference)[None, :])
        if DIAGONAL or MASK:
            p = tl.where(visible(i[None, :], j[:, None], shift, S, KeyMask, DIAGONAL, MASK), p, 0.0)
        weight = p
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        if DROPOUT:
            keep = kept(seed, rows[None, :], (j + shift)[:, None], head, dropout_p)
            weight = tl.where(keep, p / (1 - dropout_p), 0.0)
            dp = tl.where(keep, dp / (1 - dropout_p), 0.0)
        dv = tl.dot(weight.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def column_scores(
    q, k, weights, row_weights, Near, Nodes, Reference, row0, key0, scale, first_block, near, middle,
    BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, EXACT: tl.constexpr, REFERENCE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """As `row_scores`, with keys down and queries across: [BN, BM]. If EXACT, so are near biases already."""
    block, key_block = row0 // BLOCK, key0 // BLOCK
    logits = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    if ZONE == 0:
        Near += near_index(block, key_block, first_block, near, EXACT)
        down, across = key0 % BLOCK // TILE, row0 % BLOCK // TILE
        if EXACT:
            bias = load_near(Near + (down * 2 + across) * (TILE * TILE), BN)
        else:
            bias = tl.trans(load_near(Near + (across * 2 + down) * (TILE * TILE), BM))
        logits = logits * (scale * LOG2E) + bias.to(tl.float32)
        unit = 1.0
    else:
        N: tl.constexpr = 16 if BN // TILE * ZONE < 16 else BN // TILE * ZONE
        column = tl.arange(0, N)[:, None]
        row = tl.arange(0, 16)[None, :]
        index = tile_index(row0 // TILE, key0 // TILE + column // ZONE, first_block, near, middle, ZONE != 16)
        offsets = index * (ZONE * ZONE) + row * ZONE + column % ZONE
        nodes = tl.load(Nodes + offsets, mask=(row < ZONE) & (column < BN // TILE * ZONE), other=0.0)  # [≥16, 16]
        mixed = tl.dot(weights, nodes, input_precision=PRECISION).to(nodes.dtype)  # [BN, 16]
        logits = tl.dot(mixed, row_weights, logits, input_precision=PRECISION)
        unit = scale * LOG2E
    reference = tl.load(Reference + block - key_block) * LOG2E if REFERENCE else 0.0
    return logits, unit, reference


@triton.jit(do_not_specialize=LENGTHS)
def keys(
    Q, K, V, dOut, Lse, Delta, dK, dV, KeyMask, Shift, Near, Middle, Far, Reference, Seed,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, do_b, do_h, do_t, dk_b, dk_h, dk_s, dv_b, dv_h, dv_s,
    B, H, T, S, group, tiles, scale, dropout_p,
    near_per_head, middle_per_head, far_per_head, references_per_head, first_block, near, middle,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EXACT: tl.constexpr, REFERENCE: tl.constexpr,
    HAS_MIDDLE: tl.constexpr, HAS_FAR: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, EVEN: tl.constexpr,
    DROPOUT: tl.constexpr, NEAR_STAGES: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV (B, H, S, D), for each query head. (A loop over those that share a key head would spill registers.)"""
    pid = tl.program_id(0)
    tile = pid % tiles  # the longest first
    b = pid // tiles % B
    h = pid // tiles // B
    g = h // group
    shift = tl.load(Shift + b) if SHIFT else 0
    query0 = S - T - shift
    key0 = tl.multiple_of(tile * BN, BN)
    j = key0 + tl.arange(0, BN)

    K += b.to(tl.int64) * k_b + g.to(tl.int64) * k_h
    V += b.to(tl.int64) * v_b + g.to(tl.int64) * v_h
    KeyMask += b.to(tl.int64) * S
    seed = tl.load(Seed) if DROPOUT else 0
    k = load_rows(K, j + shift, k_s, S, D, DP, True)
    v = load_rows(V, j + shift, v_s, S, D, DP, True)
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)

    key_block = key0 // BLOCK
    first = floor_to(query0, BM)
    last = query0 + T
    diagonal = first if key0 == 0 else tl.maximum(first, key0)  # padding sees the first key
    full = tl.minimum(tl.maximum(first, key0 + BN), last)
    middle_start = tl.minimum(tl.maximum(full, (key_block + near) * BLOCK), last)
    far_start = tl.minimum(tl.maximum(full, (key_block + middle) * BLOCK), last)
    head = b * H + h
    q = Q + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    do = dOut + b.to(tl.int64) * do_b + h.to(tl.int64) * do_h
    lse = Lse + head.to(tl.int64) * T
    delta = Delta + head.to(tl.int64) * T
    biases = Near + h.to(tl.int64) * near_per_head
    middles = Middle + h.to(tl.int64) * middle_per_head
    fars = Far + h.to(tl.int64) * far_per_head
    references = Reference + h * references_per_head
    dk, dv = walk_queries(
        dk, dv, k, v, q, do, lse, delta, KeyMask, biases, biases, references, 0, 0, seed, key0, query0, head, shift,
        diagonal, tl.minimum(tl.maximum(key0 + BN, diagonal), last), T, S, q_t, do_t, scale, dropout_p, first_block,
        near,
        middle, D, DP, BM, BN, 0, True, EXACT, REFERENCE, MASK, False, DROPOUT, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    dk, dv = walk_queries(
        dk, dv, k, v, q, do, lse, delta, KeyMask, biases, biases, references, 0, 0, seed, key0, query0, head, shift,
        full, middle_start, T, S, q_t, do_t, scale, dropout_p, first_block, near, middle,
        D, DP, BM, BN, 0, False, EXACT, REFERENCE, MASK, EVEN, DROPOUT, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    if HAS_MIDDLE:
        w, r = zone_weights(scale, BN, BM, 16, Middle.dtype.element_ty)
        dk, dv = walk_queries(
            dk, dv, k, v, q, do, lse, delta, KeyMask, biases, middles, references, w, r, seed, key0, query0, head,
            shift, middle_start, far_start, T, S, q_t, do_t, scale, dropout_p, first_block, near, middle,
            D, DP, BM, BN, 16, False, EXACT, REFERENCE, MASK, EVEN, DROPOUT, STAGES, PRECISION,
        )  # fmt: skip
    if HAS_FAR:
        w, r = zone_weights(scale, BN, BM, 4, Far.dtype.element_ty)
        dk, dv = walk_queries(
            dk, dv, k, v, q, do, lse, delta, KeyMask, biases, fars, references, w, r, seed, key0, query0, head,
            shift, far_start, last, T, S, q_t, do_t, scale, dropout_p, first_block, near, middle,
            D, DP, BM, BN, 4, False, EXACT, REFERENCE, MASK, EVEN, DROPOUT, STAGES, PRECISION,
        )  # fmt: skip
    dK += b.to(tl.int64) * dk_b + h.to(tl.int64) * dk_h
    dV += b.to(tl.int64) * dv_b + h.to(tl.int64) * dv_h
    store_rows(dK, (dk * scale).to(dK.dtype.element_ty), j + shift, dk_s, S, D, DP)
    store_rows(dV, dv.to(dV.dtype.element_ty), j + shift, dv_s, S, D, DP)


@triton.jit(do_not_specialize=LENGTHS)
def near_biases(
    Q, K, V, dOut, Lse, Delta, dNear, KeyMask, Shift, Near, Reference, Seed,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, do_b, do_h, do_t,
    B, H, T, S, group, first_head, groups, scale, dropout_p,
    near_per_head, references_per_head, first_block, last_block, near, rows_per_group,
    D: tl.constexpr, DP: tl.constexpr, EXACT: tl.constexpr, REFERENCE: tl.constexpr, MASK: tl.constexpr,
    SHIFT: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dNear (heads, groups of rows of blocks, blocks apart, 128, 128): a tile of 64 × 64 of it."""
    apart = tl.program_id(0) // 4
    part = tl.program_id(0) % 4
    part_i, part_j = part // 2, part % 2
    chunk = tl.program_id(1)
    h = tl.program_id(2) + first_head
    if (apart == 0) & (part_j > part_i):
        return
    Q += h.to(tl.int64) * q_h
    K += (h // group).to(tl.int64) * k_h
    V += (h // group).to(tl.int64) * v_h
    dOut += h.to(tl.int64) * do_h
    Near += h.to(tl.int64) * near_per_head
    Reference += h * references_per_head
    seed = tl.load(Seed) if DROPOUT else 0
    total = tl.zeros([TILE, TILE], tl.float32)
    first = tl.maximum(first_block + chunk * rows_per_group, apart)
    last = tl.minimum(first_block + (chunk + 1) * rows_per_group, last_block)
    for block in range(first, last):
        row0 = block * BLOCK + part_i * TILE
        start = (block - apart) * BLOCK + part_j * TILE
        i = row0 + tl.arange(0, TILE)
        j = start + tl.arange(0, TILE)
        for b in range(B):
            shift = tl.load(Shift + b) if SHIFT else 0
            query0 = S - T - shift
            rows = i - query0
            inside = (rows >= 0) & (rows < T)
            head = b * H + h
            at = (head // H).to(tl.int64)
            q = load_rows(Q + at * q_b, rows, q_t, T, D, DP, True)
            do = load_rows(dOut + at * do_b, rows, do_t, T, D, DP, True)
            k = load_rows(K + at * k_b, j + shift, k_s, S, D, DP, True)
            v = load_rows(V + at * v_b, j + shift, v_s, S, D, DP, True)
            lse = tl.load(Lse + head.to(tl.int64) * T + rows, mask=inside, other=float("inf"))
            delta = tl.load(Delta + head.to(tl.int64) * T + rows, mask=inside, other=0.0)
            total += row_gradient(
                q, do, k, v, lse, delta, KeyMask + at * S, Near, Near, Reference, 0, 0, seed, i, j, row0, start, query0,
                head, shift, S, scale, dropout_p, first_block, near, near,
                TILE, TILE, 0, True, EXACT, REFERENCE, MASK, DROPOUT, PRECISION,
            )  # fmt: skip
    at = ((h - first_head) * groups + chunk).to(tl.int64) * near + apart
    r = part_i * TILE + tl.arange(0, TILE)[:, None]
    c = part_j * TILE + tl.arange(0, TILE)[None, :]
    tl.store(dNear + at * (BLOCK * BLOCK) + r * BLOCK + c, total)
