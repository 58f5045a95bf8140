"""Attention, forward: one program owns a tile of queries and walks over the keys, from far to near."""

import triton
import triton.language as tl

from longfire.engines.fused.tiles import (
    BLOCK,
    LENGTHS,
    LOG2E,
    TILE,
    floor_to,
    hats,
    kept,
    load_near,
    load_rows,
    near_index,
    store_rows,
    tile_index,
)


@triton.jit
def row_scores(
    q, k, weights, column_weights, Near, Nodes, Reference, row0, start, scale, first_block, near, middle,
    BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, EXACT: tl.constexpr, REFERENCE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits of a tile [BM, BN] and what to multiply them by: units of log 2 then. Third, what was left out of them.

    ZONE is how many nodes a tile has, 0 for near.
    """
    block, key_block = row0 // BLOCK, start // BLOCK
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if ZONE == 0:
        tile = row0 % BLOCK // TILE * 2 + start % BLOCK // TILE
        bias = load_near(Near + near_index(block, key_block, first_block, near, EXACT) + tile * (TILE * TILE), BM)
        logits = logits * (scale * LOG2E) + bias.to(tl.float32)
        unit = 1.0
    else:
        nodes = load_nodes(Nodes, row0, start, first_block, near, middle, BM, ZONE)  # [≥16, 16]
        mixed = tl.dot(weights, nodes, input_precision=PRECISION).to(nodes.dtype)  # [BM, 16]
        logits = tl.dot(mixed, column_weights, logits, input_precision=PRECISION)
        unit = scale * LOG2E
    reference = tl.load(Reference + block - key_block) * LOG2E if REFERENCE else 0.0
    return logits, unit, reference


@triton.jit
def node_offsets(row0, start, first_block, near, middle, BM: tl.constexpr, ZONE: tl.constexpr):
    """Where the nodes of a tile [BM, 64] are: offsets [≥16, 16] and which of them there are."""
    N: tl.constexpr = 16 if BM // TILE * ZONE < 16 else BM // TILE * ZONE
    row = tl.arange(0, N)[:, None]
    column = tl.arange(0, 16)[None, :]
    there = (row < BM // TILE * ZONE) & (column < ZONE)
    tile = row0 // TILE + row // ZONE
    index = tile_index(tile, start // TILE, first_block, near, middle, ZONE != 16)
    return index * (ZONE * ZONE) + row % ZONE * ZONE + column, there


@triton.jit
def load_nodes(Nodes, row0, start, first_block, near, middle, BM: tl.constexpr, ZONE: tl.constexpr):
    """The nodes of a tile [BM, 64]: [≥16, 16]."""
    offsets, there = node_offsets(row0, start, first_block, near, middle, BM, ZONE)
    if ZONE == 16:
        return tl.load(Nodes + offsets)
    return tl.load(Nodes + offsets, mask=there, other=0.0)


@triton.jit
def visible(i, j, shift, S, KeyMask, DIAGONAL: tl.constexpr, MASK: tl.constexpr):
    """Which pairs count. Queries before the first key (padding) see that key alone. [rows, columns]"""
    seen = (i >= -(1 << 24)) & (j >= 0)
    if DIAGONAL:
        seen &= (j <= tl.maximum(i, 0)) & (j + shift < S)
    if MASK:
        seen &= tl.load(KeyMask + j + shift, mask=j + shift < S, other=0) != 0
    return seen


@triton.jit
def walk(
    acc, total, top, q, K, V, KeyMask, Near, Nodes, Reference, weights, column_weights, seed, row0, query0, head,
    shift, lo, hi, T, S,
    k_stride, v_stride, scale, dropout_p, first_block, near, middle,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, DIAGONAL: tl.constexpr,
    EXACT: tl.constexpr, REFERENCE: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Softmax over the keys from lo to hi, on line."""
    i = row0 + tl.arange(0, BM)
    for start in tl.range(lo, hi, BN, num_stages=STAGES):
        start = tl.multiple_of(start, BN)
        j = start + tl.arange(0, BN)
        k = load_rows(K, j + shift, k_stride, S, D, DP, DIAGONAL)
        scores, unit, reference = row_scores(
            q, k, weights, column_weights, Near, Nodes, Reference, tl.maximum(row0, 0), start, scale, first_block, near,
            middle, BM, BN, ZONE, EXACT, REFERENCE, PRECISION,
        )  # fmt: skip
        if DIAGONAL or MASK:
            seen = visible(i[:, None], j[None, :], shift, S, KeyMask, DIAGONAL, MASK)
            scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1) * unit + reference)
        finite = tl.where(highest == float("-inf"), 0.0, highest) if DIAGONAL or MASK else highest
        p = tl.exp2(scores * unit - (finite - reference)[:, None])
        rescale = tl.exp2(top - finite)
        total = total * rescale + tl.sum(p, 1)
        if DROPOUT:
            keep = kept(seed, (i - query0)[:, None], (j + shift)[None, :], head, dropout_p)
            p = tl.where(keep, p / (1 - dropout_p), 0.0)
        acc = acc * rescale[:, None]
        v = load_rows(V, j + shift, v_stride, S, D, DP, DIAGONAL)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        top = highest
    return acc, total, top


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    Q, K, V, Out, Lse, KeyMask, Shift, Near, Middle, Far, Reference, Seed,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, o_b, o_h, o_t,
    B, H, T, S, group, tiles, scale, dropout_p,
    near_per_head, middle_per_head, far_per_head, references_per_head, first_block, near, middle,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EXACT: tl.constexpr, REFERENCE: tl.constexpr,
    HAS_MIDDLE: tl.constexpr, HAS_FAR: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, DROPOUT: tl.constexpr,
    NEAR_STAGES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Out (B, H, T, D) and Lse (B, H, T), the logarithm to base 2 of each query's sum."""
    pid = tl.program_id(0)
    tile = tiles - 1 - pid % tiles  # the longest first
    b = pid // tiles % B
    h = pid // tiles // B
    shift = tl.load(Shift + b) if SHIFT else 0
    query0 = S - T - shift  # the first query's position
    row0 = tl.multiple_of(floor_to(query0, BM) + tile * BM, BM)
    if row0 >= query0 + T:
        return
    i = row0 + tl.arange(0, BM)

    Q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    K += b.to(tl.int64) * k_b + (h // group).to(tl.int64) * k_h
    V += b.to(tl.int64) * v_b + (h // group).to(tl.int64) * v_h
    Out += b.to(tl.int64) * o_b + h.to(tl.int64) * o_h
    Lse += (b * H + h).to(tl.int64) * T
    KeyMask += b.to(tl.int64) * S
    Near += h.to(tl.int64) * near_per_head
    Middle += h.to(tl.int64) * middle_per_head
    Far += h.to(tl.int64) * far_per_head
    Reference += h * references_per_head
    seed = tl.load(Seed) if DROPOUT else 0
    q = load_rows(Q, i - query0, q_t, T, D, DP, True)  # [BM, DP]

    block = tl.maximum(row0, 0) // BLOCK
    far_end = tl.maximum(block - middle + 1, 0) * BLOCK
    middle_end = tl.maximum(block - near + 1, 0) * BLOCK
    diagonal = tl.maximum(row0, 0) // BN * BN
    end = tl.minimum(tl.maximum(row0 + BM, BN), S - shift)
    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    if HAS_FAR:
        w, c = zone_weights(scale, BM, BN, 4, Far.dtype.element_ty)
        acc, total, top = walk(
            acc, total, top, q, K, V, KeyMask, Near, Far, Reference, w, c, seed, row0, query0, b * H + h, shift, 0,
            far_end, T, S,
            k_s, v_s, scale, dropout_p, first_block, near, middle,
            D, DP, BM, BN, 4, False, EXACT, REFERENCE, MASK, DROPOUT, STAGES, PRECISION,
        )  # fmt: skip
    if HAS_MIDDLE:
        w, c = zone_weights(scale, BM, BN, 16, Middle.dtype.element_ty)
        acc, total, top = walk(
            acc, total, top, q, K, V, KeyMask, Near, Middle, Reference, w, c, seed, row0, query0, b * H + h, shift,
            far_end,
            middle_end, T, S, k_s, v_s, scale, dropout_p, first_block, near, middle,
            D, DP, BM, BN, 16, False, EXACT, REFERENCE, MASK, DROPOUT, STAGES, PRECISION,
        )  # fmt: skip
    acc, total, top = walk(
        acc, total, top, q, K, V, KeyMask, Near, Near, Reference, 0, 0, seed, row0, query0, b * H + h, shift,
        middle_end, diagonal,
        T, S, k_s, v_s, scale, dropout_p, first_block, near, middle,
        D, DP, BM, BN, 0, False, EXACT, REFERENCE, MASK, DROPOUT, NEAR_STAGES, PRECISION,
    )  # fmt: skip
    acc, total, top = walk(
        acc, total, top, q, K, V, KeyMask, Near, Near, Reference, 0, 0, seed, row0, query0, b * H + h, shift,
        diagonal, end, T, S,
        k_s, v_s, scale, dropout_p, first_block, near, middle,
        D, DP, BM, BN, 0, True, EXACT, REFERENCE, MASK, DROPOUT, NEAR_STAGES, PRECISION,
    )  # fmt: skip

    blind = total == 0.0
    acc = acc / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, float("inf"), top + tl.log2(tl.where(blind, 1.0, total)))  # inf: no weight in backward
    store_rows(Out, acc.to(Out.dtype.element_ty), i - query0, o_t, T, D, DP)
    rows = i - query0
    tl.store(Lse + rows, lse, mask=(rows >= 0) & (rows < T))


@triton.jit
def zone_weights(scale, BM: tl.constexpr, BN: tl.constexpr, ZONE: tl.constexpr, DTYPE: tl.constexpr):
    """How nodes are mixed into a tile's biases: over rows [BM, ≥16], divided by the scale; over columns [16, BN]."""
    N: tl.constexpr = 16 if BM // TILE * ZONE < 16 else BM // TILE * ZONE
    rows = (hats(BM, ZONE, N) / scale).to(DTYPE)
    columns = tl.trans(hats(BN, ZONE, 16)).to(DTYPE)
    return rows, columns
