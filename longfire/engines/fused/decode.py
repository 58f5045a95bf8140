"""One query per sequence, as in cached decoding: the keys are split among programs, and each is read once.

A single query's bias is one row (H, S), at any positions. If there are more keys than sampled distances, the encoding
is sampled and a small kernel interpolates along the distance, for all layers at once: these kernels take microseconds,
no longer than launching them.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.encodings import FIRE, PositionEncoding
from longfire.engines.fused.bias_kernels import LOWEST, cell
from longfire.engines.fused.tiles import LENGTHS, LOG2E, load_rows
from longfire.engines.fused.zones import decode_nodes, node_position, smooth_width

# --- the bias -------------------------------------------------------------------------------------------------------

ROW_KEYS, ROW_HEADS = 256, 4
"""Keys and heads per program."""


def decode_biases(
    encodings: Sequence[PositionEncoding], q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None = None
) -> list[Tensor]:
    """Each encoding's bias for queries at (1,) or (B, 1): (1 or B, H, S), −inf at keys that are not seen."""
    per_octave = {smooth_width(encoding) // 2 for encoding in encodings}
    if len(per_octave) > 1:
        return [row for one in encodings for row in decode_biases([one], q_positions, k_positions, key_mask)]
    samples = sample_distances(encodings, q_positions)
    mask = None if key_mask is None else key_mask.to(torch.uint8).contiguous()
    positions = (torch.atleast_2d(p).contiguous() for p in (q_positions, k_positions))
    rows: Tensor = interpolate_rows(samples, *positions, mask, per_octave.pop())
    return list(rows.chunk(len(encodings), dim=1))


def sample_distances(encodings: Sequence[PositionEncoding], q_positions: Tensor) -> Tensor:
    """The biases at distance nodes, concatenated along the heads: (1 or B, H of all, E)."""
    nodes = torch.arange(decode_nodes(encodings[0]) or 0, device=q_positions.device)
    q_positions = torch.atleast_2d(q_positions)
    k_positions = (q_positions - node_position(nodes, smooth_width(encodings[0]) // 2)).clamp(min=0)  # (B, E)
    biases = _fire_biases(encodings, q_positions, k_positions)
    if biases is None:
        each = [encoding(q_positions, k_positions) for encoding in encodings]
        biases = torch.cat([bias for bias in each if bias is not None], dim=1)
    return biases[:, :, 0].float().contiguous()


def _fire_biases(encodings: Sequence[PositionEncoding], q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
    """The biases in one launch if all are FIREs of one architecture, otherwise None."""
    from longfire.encodings.kernels.fire import fire_biases, serves_together

    fires = [encoding for encoding in encodings if isinstance(encoding, FIRE)]
    if len(fires) < len(encodings) or not serves_together(fires, q_positions):
        return None
    return fire_biases(fires, q_positions, k_positions)


@triton.jit(do_not_specialize=["S", "E", "H"])
def interpolate_row(
    Samples,  # (1 or B, H, E)
    QPositions,  # (1 or B, 1)
    KPositions,  # (1 or B, S)
    Mask,  # (B, S), or None
    Out,  # (B, H, S)
    samples_b, samples_h, qp_b, kp_b, H, S, E,
    PER_OCTAVE: tl.constexpr, HEADS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N keys of HEADS heads: linear between nodes, −inf at keys that are not seen."""
    b = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * N + tl.arange(0, N)
    inside = j < S
    i = tl.load(QPositions + b * qp_b).to(tl.int32)  # []
    position = tl.load(KPositions + b * kp_b + j, mask=inside, other=0).to(tl.int32)  # [N]
    seen = inside & (position <= i)
    if Mask is not None:
        seen &= tl.load(Mask + b * S + j, mask=inside, other=0) != 0  # [N]
    node, _left, _right, u = cell(tl.maximum(i - position, 0), i, PER_OCTAVE)  # [N]
    after = tl.minimum(node + 1, E - 1)
    for member in range(HEADS):
        h = tl.program_id(1) * HEADS + member
        if h < H:
            at = Samples + b * samples_b + h * samples_h
            low = tl.maximum(tl.load(at + node), LOWEST)  # [N]
            high = tl.maximum(tl.load(at + after), LOWEST)  # [N]
            line = tl.where(u > 0, low + u * (high - low), low)
            tl.store(Out + (b * H + h) * S + j, tl.where(seen, line, float("-inf")), mask=inside)  # [N]


def _interpolate(
    samples: Tensor, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None, per_octave: int
) -> Tensor:
    """samples (1 or B, H, E), positions (1 or B, 1) and (1 or B, S), mask (B, S) in uint8 → (1 or B, H, S)."""
    out = _interpolate_fake(samples, q_positions, k_positions, mask)
    B, H, S = out.shape
    with torch.cuda.device_of(out):
        interpolate_row[triton.cdiv(S, ROW_KEYS), triton.cdiv(H, ROW_HEADS), B](
            Samples=samples, QPositions=q_positions, KPositions=k_positions, Mask=mask, Out=out,
            samples_b=_batch_stride(samples), samples_h=samples.stride(1),
            qp_b=_batch_stride(q_positions), kp_b=_batch_stride(k_positions),
            H=H, S=S, E=samples.shape[2], PER_OCTAVE=per_octave, HEADS=ROW_HEADS, N=ROW_KEYS, num_warps=4,
        )  # fmt: skip
    return out


def _interpolate_fake(
    samples: Tensor, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None, *_: object
) -> Tensor:
    sizes = (len(tensor) for tensor in (samples, q_positions, k_positions, mask) if tensor is not None)
    B = next((size for size in sizes if size != 1), 1)
    return samples.new_empty(B, samples.shape[1], k_positions.shape[1])


def _batch_stride(tensor: Tensor) -> int:
    """0 where one row serves the whole batch."""
    return 0 if len(tensor) == 1 else tensor.stride(0)


interpolate_rows = Operator("longfire::interpolate_rows", _interpolate, _interpolate_fake)


# --- attention ------------------------------------------------------------------------------------------------------

PROGRAMS = 4 * 132
"""About enough to keep a large GPU busy."""
KEYS = 64
"""Keys per tile."""
STAGES = 3
"""Pipeline stages."""


@triton.jit
def load_bias(Bias, Mask, j, S, heads, SINGLE: tl.constexpr):
    """The bias of keys j, −inf where masked: [M, BN], or [1, BN] if all heads share it or there is only one."""
    inside = j < S
    addend = tl.zeros_like(j).to(tl.float32)[None, :]
    if Bias is not None:
        seen = inside[None, :] if SINGLE else heads & inside[None, :]
        addend = tl.load(Bias + j[None, :], mask=seen, other=0.0)  # [M or 1, BN]
    if Mask is not None:
        inside &= tl.load(Mask + j, mask=inside, other=0) != 0  # [BN]
    return tl.where(inside[None, :], addend, float("-inf"))


@triton.jit(do_not_specialize=LENGTHS)
def decode_split(
    Q,  # (B, H, 1, D)
    K, V,  # (B, G, S, D)
    Bias,  # (1 or B, H, S), or None
    Mask,  # (B, S), or None
    Out,  # (B, H, splits, D)
    Lse,  # (B, H, splits)
    q_b, q_h, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, H, S, group, length, scale,
    D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, SINGLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`length` keys for the query heads that share a key head: weighted values, and the log-sum-exp of the scores."""
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
    if Bias is not None:
        Bias += at * bias_b + (g * bias_h if SINGLE else h[:, None] * bias_h)
    if Mask is not None:
        Mask += at * S
    first = split * length
    addend = load_bias(Bias, Mask, first + tl.arange(0, BN), S, heads, SINGLE)
    for step in range(first, tl.minimum(first + length, S), BN):
        j = step + tl.arange(0, BN)
        k = load_rows(K, j, k_s, S, D, DP, True)  # [BN, DP]
        scores = (tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + addend) * LOG2E  # [M, DP] · [DP, BN]
        addend = load_bias(Bias, Mask, j + BN, S, heads, SINGLE)  # prefetch the next tile's
        highest = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp2(scores - finite[:, None])
        rescale = tl.exp2(top - finite)
        total = total * rescale + tl.sum(p, 1)
        v = load_rows(V, j, v_s, S, D, DP, True)  # [BN, DP]
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)  # [M, BN] · [BN, DP]
        top = highest
    row = (at * H + h) * tl.num_programs(0) + split
    divisor = tl.where(total == 0.0, 1.0, total)  # if no key is seen, top is −inf
    tl.store(Out + row[:, None] * D + d[None, :], acc / divisor[:, None], mask=heads & (d < D)[None, :])  # [M, DP]
    tl.store(Lse + row, top + tl.log2(divisor), mask=member < group)  # [M]


@triton.jit(do_not_specialize=["splits"])
def combine_splits(
    Splits,  # (B, H, splits, D)
    Lse,  # (B, H, splits)
    Out,  # (B, H, 1, D)
    o_b, o_h, H, splits,
    D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Combine one query's splits."""
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b.to(tl.int64) * H + h) * splits
    d = tl.arange(0, DP)
    n = tl.arange(0, N)
    lse = tl.load(Lse + row + n, mask=n < splits, other=float("-inf"))  # [N]
    top = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    there = (n < splits)[:, None] & (d < D)[None, :]
    parts = tl.load(Splits + (row + n)[:, None] * D + d[None, :], mask=there, other=0.0)  # [N, DP]
    total = tl.sum(weight, 0)
    out = tl.sum(parts * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(Out + b.to(tl.int64) * o_b + h * o_h + d, out.to(Out.dtype.element_ty), mask=d < D)  # [DP]


def _decode(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float) -> Tensor:
    """One query per sequence: q (B, H, 1, D) → (B, H, 1, D).

    bias: (1 or B, H, S) in float32 with contiguous rows, or None. mask: (B, S) in uint8, 0 for hidden, or None.
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
    full = q.dtype == torch.float32
    (q_b, q_h), (k_b, k_h, k_s), (v_b, v_h, v_s) = q.stride()[:2], k.stride()[:3], v.stride()[:3]
    bias_b, bias_h = (0, 0) if bias is None else (_batch_stride(bias), bias.stride(1))
    with torch.cuda.device_of(q):
        decode_split[splits, G, B](
            Q=q, K=k, V=v, Bias=bias, Mask=mask, Out=parts, Lse=lse,
            q_b=q_b, q_h=q_h, k_b=k_b, k_h=k_h, k_s=k_s, v_b=v_b, v_h=v_h, v_s=v_s, bias_b=bias_b, bias_h=bias_h,
            H=H, S=S, group=H // G, length=length, scale=scale, D=D, DP=DP, M=M, BN=KEYS, SINGLE=H == G,
            PRECISION="ieee" if full else "tf32", num_warps=4, num_stages=1 if full else STAGES,
        )  # fmt: skip
        combine_splits[B, H](
            Splits=parts, Lse=lse, Out=out, o_b=out.stride(0), o_h=out.stride(1), H=H, splits=splits,
            D=D, DP=DP, N=triton.next_power_of_2(splits),
        )  # fmt: skip
    return out


def _decode_fake(q: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q)


decode_attention = Operator("longfire::decode_attention", _decode, _decode_fake)
