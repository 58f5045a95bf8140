"""The bias that the kernels add, in plain PyTorch: the specification of the interpolation.

Slow; used to measure the interpolation error and to test the kernels.
"""

import torch
from torch import Tensor

from longfire.engines.fused.zones import BLOCK, FAR, MIDDLE, TILE, Zones


def interpolated(samples: Tensor, zones: Zones, rows: Tensor) -> Tensor:
    """The bias for query positions (T,) and all keys: (H, T, S), undefined at keys after the query.

    `samples` (A, H, E) are the encoding's biases at `zones.positions`.
    """
    keys = torch.arange(zones.keys, device=rows.device)
    exact = _pairs(samples, zones, rows[:, None].expand(-1, zones.keys), keys.expand(len(rows), -1))
    apart = rows[:, None] // BLOCK - keys[None, :] // BLOCK
    middle = _bilinear(samples, zones, rows, keys, MIDDLE) if zones.has_middle else exact
    far = _bilinear(samples, zones, rows, keys, FAR) if zones.has_far else middle
    return torch.where(apart < zones.near, exact, torch.where(apart < zones.middle, middle, far))


def interpolated_row(samples: Tensor, per_octave: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """A single query's bias at the keys it sees, (1 or B, H, S), from samples (1 or B, H, E) at distance nodes."""
    i, j = torch.atleast_2d(q_positions), torch.atleast_2d(k_positions)
    node, _, _, u = _cell((i - j).clamp(min=0), per_octave, i)
    node = node[:, None].expand(-1, samples.shape[1], -1)
    samples = samples.double().expand(len(node), -1, -1)
    low, high = (samples.gather(2, index.clamp(max=samples.shape[2] - 1)) for index in (node, node + 1))
    return torch.where(u[:, None] > 0, low + u[:, None] * (high - low), low)


def _pairs(samples: Tensor, zones: Zones, i: Tensor, j: Tensor) -> Tensor:
    """The bias of pairs (…) → (H, …). Pairs with j > i get that of j = i."""
    d = (i - j).clamp(min=0)
    if zones.by_distance:
        return samples[0][:, d]
    row, left, right, t = _cell(i, zones.rows_per_octave, torch.full_like(i, zones.last))
    row = row - zones.first_node
    slide = 2 * d > i  # towards the first key, interpolate between rows at the same key, otherwise at the same distance
    below = _along_row(samples, zones, row, torch.where(slide, left - j, d), left)
    above = _along_row(samples, zones, row + 1, torch.where(slide, right - j, d), right)
    return torch.where(t > 0, below + t * (above - below), below)


def _along_row(samples: Tensor, zones: Zones, row: Tensor, d: Tensor, last: Tensor) -> Tensor:
    node, _, _, u = _cell(d, zones.distances_per_octave, last)
    row = row.clamp(max=samples.shape[0] - 1)
    here = samples[row, :, node].movedim(-1, 0)
    after = samples[row, :, (node + 1).clamp(max=samples.shape[2] - 1)].movedim(-1, 0)
    return torch.where(u > 0, here + u * (after - here), here)


def _cell(x: Tensor, per_octave: int, last: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nodes around x: the left one's index, both positions (at most `last`), and where x is between (0 to 1)."""
    octave = torch.zeros_like(x)
    for o in range(40):
        octave = torch.where(x >= (2 * per_octave << o), o + 1, octave)
    left = x >> octave << octave
    right = torch.minimum(left + (1 << octave), last)
    t = (x - left).double() / (right - left).clamp(min=1)
    return octave * per_octave + (x >> octave), left, right, t


def _bilinear(samples: Tensor, zones: Zones, rows: Tensor, keys: Tensor, nodes: int) -> Tensor:
    i0, i1, t = _nodes_around(rows, nodes)
    j0, j1, u = _nodes_around(keys, nodes)
    t, u = t[:, None], u[None, :]

    def at(i: Tensor, j: Tensor) -> Tensor:
        return _pairs(samples, zones, i[:, None].expand(-1, len(j)), j[None, :].expand(len(i), -1))

    below = at(i0, j0) * (1 - u) + at(i0, j1) * u
    above = at(i1, j0) * (1 - u) + at(i1, j1) * u
    return below * (1 - t) + above * t


def _nodes_around(x: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """A tile's nodes on either side of each position, and where it is between them, 0 to 1."""
    at = (torch.arange(nodes, device=x.device) * (TILE - 1) + (nodes - 1) // 2) // (nodes - 1)
    tile, inside = x // TILE, x % TILE
    left = (torch.searchsorted(at, inside, right=True) - 1).clamp(max=nodes - 2)
    t = (inside - at[left]) / (at[left + 1] - at[left])
    return tile * TILE + at[left], tile * TILE + at[left + 1], t.double()
