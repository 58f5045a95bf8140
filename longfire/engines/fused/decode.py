"""One query a sequence, as in cached decoding: the keys are split among programs, and each is read once.

With a single query the bias is one row, for any positions: a tensor (H, S), which `row` makes where S is long.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.engines.fused.lines import row_stride
from longfire.engines.fused.tiles import LENGTHS, LOG2E, load_rows

PROGRAMS = 4 * 132
"""About as many as keep a large GPU busy."""
KEYS = 64
"""In a tile."""
STAGES = 3
"""Of the pipeline."""


@triton.jit
def added(Bias, Mask, j, S, heads, BIAS: tl.constexpr, MASK: tl.constexpr, SINGLE: tl.constexpr):
    """What is added to the scores of keys j, [M, BN], or [1, BN] where all heads have the same or there is one."""
    inside = j < S
    addend = tl.zeros_like(j).to(tl.float32)[None, :]
    if BIAS:
        seen = inside[None, :] if SINGLE else heads & inside[None, :]
        addend = tl.load(Bias + j[None, :], mask=seen, other=0.0)
    if MASK:
        inside &= tl.load(Mask + j, mask=inside, other=0) != 0
    return tl.where(inside[None, :], addend, float("-inf"))


@triton.jit(do_not_specialize=[*LENGTHS, "length"])
def part(
    Q, K, V, Bias, Mask, Out, Lse, q_b, q_h, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, H, S, group, length, scale,
    D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr, MASK: tl.constexpr,
    SINGLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`length` keys for the query heads that share a key head: their values, weighted, and the weights' sum."""
    split, g, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    member = tl.arange(0, M)
    h = g * group + member
    d = tl.arange(0, DP)
    at = b.to(tl.int64)
    heads = (member < group)[:, None]
    q = tl.load(Q + at * q_b + h[:, None] * q_h + d[None, :], mask=heads & (d < D)[None, :], other=0.0)  # [M, DP]
    K += at * k_b + g.to(tl.int64) * k_h
    V += at * v_b + g.to(tl.int64) * v_h
    acc = tl.zeros([M, DP], tl.float32)
    total = tl.zeros([M], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    Bias += at * bias_b + (g * bias_h if SINGLE else h[:, None] * bias_h)
    Mask += at * S
    first = split * length
    addend = added(Bias, Mask, first + tl.arange(0, BN), S, heads, BIAS, MASK, SINGLE)
    for step in range(first, tl.minimum(first + length, S), BN):
        j = step + tl.arange(0, BN)
        k = load_rows(K, j, k_s, S, D, DP, True)  # [BN, DP]
        scores = (tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + addend) * LOG2E
        addend = added(Bias, Mask, j + BN, S, heads, BIAS, MASK, SINGLE)  # of the next tile: it takes a while to come
        highest = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp2(scores - finite[:, None])
        rescale = tl.exp2(top - finite)
        total = total * rescale + tl.sum(p, 1)
        v = load_rows(V, j, v_s, S, D, DP, True)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        top = highest
    row = (at * H + h) * tl.num_programs(0) + split
    divisor = tl.where(total == 0.0, 1.0, total)  # nothing to see: top is −inf
    tl.store(Out + row[:, None] * D + d[None, :], acc / divisor[:, None], mask=heads & (d < D)[None, :])
    tl.store(Lse + row, top + tl.log2(divisor), mask=member < group)


@triton.jit(do_not_specialize=["splits"])
def combine(Parts, Lse, Out, o_b, o_h, H, splits, D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr):
    """The parts of one query, weighted."""
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b.to(tl.int64) * H + h) * splits
    d = tl.arange(0, DP)
    n = tl.arange(0, N)
    lse = tl.load(Lse + row + n, mask=n < splits, other=float("-inf"))
    top = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    there = (n < splits)[:, None] & (d < D)[None, :]
    parts = tl.load(Parts + (row + n)[:, None] * D + d[None, :], mask=there, other=0.0)
    total = tl.sum(weight, 0)
    out = tl.sum(parts * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(Out + b.to(tl.int64) * o_b + h * o_h + d, out.to(Out.dtype.element_ty), mask=d < D)


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """One query a sequence: q (B, H, 1, D) → (B, H, 1, D).

    bias (1 or B, H, S) in float32 or None, the elements of a row next to each other; mask (B, S) in uint8: 0 is hidden.
    """
    B, H, _, D = q.shape
    G, S = k.shape[1:3]
    DP, M = max(16, triton.next_power_of_2(D)), max(16, triton.next_power_of_2(H // G))
    splits = max(1, min(PROGRAMS // (B * G), triton.cdiv(S, 2 * KEYS)))
    length = triton.cdiv(triton.cdiv(S, splits), KEYS) * KEYS
    splits = triton.cdiv(S, length)
    parts = q.new_empty(B, H, splits, D, dtype=torch.float32)
    lse = q.new_empty(B, H, splits, dtype=torch.float32)
    out = torch.empty_like(q)
    with torch.cuda.device_of(q):
        bias_b, bias_h = (0, 0) if bias is None else (row_stride(bias), bias.stride(1))
        part[splits, G, B](
            q, k, v, q if bias is None else bias, q if mask is None else mask, parts, lse, *q.stride()[:2],
            *k.stride()[:3], *v.stride()[:3], bias_b, bias_h, H, S, H // G, length, scale, D=D, DP=DP, M=M, BN=KEYS,
            BIAS=bias is not None, MASK=mask is not None, SINGLE=H == G,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=4,
            num_stages=STAGES if q.dtype != torch.float32 else 1,
        )  # fmt: skip
        combine[B, H](parts, lse, out, *out.stride()[:2], H, splits, D=D, DP=DP, N=triton.next_power_of_2(splits))
    return out


def _decode_fake(q: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q)


decode_attention = Operator("longfire::decode_attention", _decode, _decode_fake)
