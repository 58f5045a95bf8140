"""The bias of single queries as decoding takes it: made at nodes of the distance, where they are fewer than the keys.

Between nodes straight lines are drawn, along the distance alone. Several encodings, one for each layer, make theirs at
once: each kernel is over in microseconds, and starting it takes as long.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longfire.custom_ops import HAS_TRITON
from longfire.encodings import FIRE, PositionEncoding
from longfire.engines.fused.geometry import node_index, node_position, smoothness

FARTHEST = 1 << 24
"""Distances below it are served; what is longer has no float32 of its own."""


def nodes_of(encoding: PositionEncoding) -> int | None:
    """How many nodes a row of its bias has. None: its bias cannot be interpolated, or need not be."""
    if encoding.distance_only or encoding.smooth_beyond is None or not encoding.has_bias:
        return None
    return node_index(FARTHEST - 1, _per_octave(encoding)) + 2


def row_biases(
    encodings: Sequence[PositionEncoding], q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None = None
) -> list[Tensor]:
    """Of each encoding, for queries at (1,) or (B, 1): (1 or B, H, S), −inf where nothing is seen."""
    from longfire.engines.fused.lines import draw_lines

    parts = {_per_octave(encoding) for encoding in encodings}
    if len(parts) > 1:
        return [row for encoding in encodings for row in row_biases([encoding], q_positions, k_positions, key_mask)]
    values = node_values(encodings, q_positions)
    mask = None if key_mask is None else key_mask.to(torch.uint8).contiguous()
    positions = (torch.atleast_2d(p).contiguous() for p in (q_positions, k_positions))
    drawn: Tensor = draw_lines(values, *positions, mask, parts.pop())
    return list(drawn.chunk(len(encodings), dim=1))


def node_values(encodings: Sequence[PositionEncoding], q_positions: Tensor) -> Tensor:
    """The biases at nodes, the heads of one encoding after those of another: (1 or B, heads of all, E)."""
    per_octave = _per_octave(encodings[0])
    nodes = torch.arange(node_index(FARTHEST - 1, per_octave) + 2, device=q_positions.device)
    q_positions = torch.atleast_2d(q_positions)
    k_positions = (q_positions - node_position(nodes, per_octave)).clamp(min=0)  # (B, E)
    biases = _together(encodings, q_positions, k_positions)
    if biases is None:
        each = [encoding(q_positions, k_positions) for encoding in encodings]
        biases = torch.cat([bias for bias in each if bias is not None], dim=1)
    return biases[:, :, 0].float().contiguous()


def _together(encodings: Sequence[PositionEncoding], q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
    """In one launch, where they are FIREs of a kind."""
    fires = [encoding for encoding in encodings if isinstance(encoding, FIRE)]
    if not HAS_TRITON or len(fires) < len(encodings):
        return None
    from longfire.encodings.kernels.fire import fire_biases, serves_together

    return fire_biases(fires, q_positions, k_positions) if serves_together(fires, q_positions) else None


def interpolated_row(values: Tensor, per_octave: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """What is drawn where keys are seen, (1 or B, H, S), from values at nodes: the kernel's specification."""
    i, j = torch.atleast_2d(q_positions), torch.atleast_2d(k_positions)
    distance = (i - j).clamp(min=0)
    octave = torch.zeros_like(distance)
    while bool((distance >> octave >= 2 * per_octave).any()):
        octave += (distance >> octave >= 2 * per_octave).long()
    left = distance >> octave << octave
    right = torch.minimum(left + (1 << octave), i)
    u = (distance - left).double() / (right - left).clamp(min=1)
    node = (octave * per_octave + (distance >> octave))[:, None].expand(-1, values.shape[1], -1)
    values = values.double().expand(len(node), -1, -1)
    low, high = (values.gather(2, index.clamp(max=values.shape[2] - 1)) for index in (node, node + 1))
    return torch.where(u[:, None] > 0, low + u[:, None] * (high - low), low)


def _per_octave(encoding: PositionEncoding) -> int:
    return smoothness(encoding.smooth_beyond or 0) // 2
