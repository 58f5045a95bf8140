"""Rows of a bias from its values at nodes: what is added to the scores of single queries, for all layers at once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.engines.fused.expand import LOWEST, cell

KEYS, HEADS = 256, 4
"""Of one program."""


@triton.jit(do_not_specialize=["S", "E", "H"])
def lines(
    Nodes, QPositions, KPositions, Mask, Out, nodes_b, nodes_h, qp_b, kp_b, H, S, E,
    PER_OCTAVE: tl.constexpr, MASK: tl.constexpr, HEADS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """What is added to the scores of N keys, for HEADS heads: lines between nodes, and −inf where nothing is seen."""
    b = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * N + tl.arange(0, N)
    inside = j < S
    i = tl.load(QPositions + b * qp_b).to(tl.int32)
    position = tl.load(KPositions + b * kp_b + j, mask=inside, other=0).to(tl.int32)
    seen = inside & (position <= i)
    if MASK:
        seen &= tl.load(Mask + b * S + j, mask=inside, other=0) != 0
    node, _left, _right, u = cell(tl.maximum(i - position, 0), i, PER_OCTAVE)  # [N]
    after = tl.minimum(node + 1, E - 1)
    for member in range(HEADS):
        h = tl.program_id(1) * HEADS + member
        if h < H:
            at = Nodes + b * nodes_b + h * nodes_h
            low = tl.maximum(tl.load(at + node), LOWEST)
            high = tl.maximum(tl.load(at + after), LOWEST)
            line = tl.where(u > 0, low + u * (high - low), low)
            tl.store(Out + (b * H + h) * S + j, tl.where(seen, line, float("-inf")), mask=inside)


def _draw(nodes: Tensor, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None, per_octave: int) -> Tensor:
    """nodes (1 or B, H, E), positions (1 or B, 1) and (1 or B, S), mask (B, S) in uint8 → (1 or B, H, S)."""
    out = _draw_fake(nodes, q_positions, k_positions, mask)
    B, H, S = out.shape
    with torch.cuda.device_of(out):
        lines[triton.cdiv(S, KEYS), triton.cdiv(H, HEADS), B](
            nodes, q_positions, k_positions, nodes if mask is None else mask, out, row_stride(nodes), nodes.stride(1),
            row_stride(q_positions), row_stride(k_positions), H, S, nodes.shape[2], PER_OCTAVE=per_octave,
            MASK=mask is not None, HEADS=HEADS, N=KEYS, num_warps=4,
        )  # fmt: skip
    return out


def _draw_fake(nodes: Tensor, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None, *_: object) -> Tensor:
    sizes = (len(tensor) for tensor in (nodes, q_positions, k_positions, mask) if tensor is not None)
    B = next((size for size in sizes if size != 1), 1)
    return nodes.new_empty(B, nodes.shape[1], k_positions.shape[1])


def row_stride(tensor: Tensor) -> int:
    """0 where one row serves the whole batch."""
    return 0 if len(tensor) == 1 else tensor.stride(0)


draw_lines = Operator("longfire::draw_lines", _draw, _draw_fake)
