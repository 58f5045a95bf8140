"""The bias of one query as decoding takes it: at nodes of the distance, where they are fewer than the keys."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.engines.fused.geometry import node_index, node_position, smoothness

FARTHEST = 1 << 24
"""Distances below it are served; what is longer has no float32 of its own."""


@dataclass(frozen=True, eq=False)
class RowBias:
    """Of one query in each sequence. Between nodes straight lines are drawn, along the distance alone."""

    values: Tensor  # (1 or B, H, E)
    per_octave: int


def nodes_of(encoding: PositionEncoding) -> int | None:
    """How many nodes a row of its bias has. None: its bias cannot be interpolated, or need not be."""
    if encoding.distance_only or encoding.smooth_beyond is None or not encoding.has_bias:
        return None
    return node_index(FARTHEST - 1, _per_octave(encoding)) + 2


def row_bias(encoding: PositionEncoding, q_positions: Tensor) -> RowBias:
    """For queries at (1,) or (B, 1)."""
    per_octave = _per_octave(encoding)
    nodes = torch.arange(node_index(FARTHEST - 1, per_octave) + 2, device=q_positions.device)
    q_positions = torch.atleast_2d(q_positions)
    k_positions = (q_positions - node_position(nodes, per_octave)).clamp(min=0)  # (B, E)
    bias = encoding.bias(q_positions, k_positions)
    assert bias is not None
    return RowBias(bias[:, :, 0].float().contiguous(), per_octave)


def interpolated_row(row: RowBias, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """What the kernel adds, (1 or B, H, S): its specification."""
    i, j = torch.atleast_2d(q_positions), torch.atleast_2d(k_positions)
    distance = (i - j).clamp(min=0)
    octave = torch.zeros_like(distance)
    while bool((distance >> octave >= 2 * row.per_octave).any()):
        octave += (distance >> octave >= 2 * row.per_octave).long()
    left = distance >> octave << octave
    right = torch.minimum(left + (1 << octave), i)
    u = (distance - left).double() / (right - left).clamp(min=1)
    node = (octave * row.per_octave + (distance >> octave))[:, None].expand(-1, row.values.shape[1], -1)
    values = row.values.double().expand(len(node), -1, -1)
    low, high = (values.gather(2, index.clamp(max=values.shape[2] - 1)) for index in (node, node + 1))
    return torch.where(u[:, None] > 0, low + u[:, None] * (high - low), low)


def _per_octave(encoding: PositionEncoding) -> int:
    return smoothness(encoding.smooth_beyond or 0) // 2
