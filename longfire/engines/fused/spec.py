"""What the kernels compute of a bias, in plain PyTorch: the specification of the interpolation, in float64 if asked.

Used to measure the interpolation error and to test the kernels; nothing fast.
"""

import torch
from torch import Tensor

from longfire.engines.fused.geometry import BLOCK, FAR, MIDDLE, TILE, Geometry


def interpolated(values: Tensor, geometry: Geometry, rows: Tensor) -> Tensor:
    """The bias that the kernels add for these query positions (T,) and all keys: (H, T, S). Keys after the query: any.

    `values` (A, H, E) are the encoding's biases at `geometry.positions`.
    """
    keys = torch.arange(geometry.keys, device=rows.device)
    exact = looked_up(values, geometry, rows[:, None].expand(-1, geometry.keys), keys.expand(len(rows), -1))
    apart = rows[:, None] // BLOCK - keys[None, :] // BLOCK  # in blocks
    middle = _bilinear(values, geometry, rows, keys, MIDDLE) if geometry.has_middle else exact
    far = _bilinear(values, geometry, rows, keys, FAR) if geometry.has_far else middle
    return torch.where(apart < geometry.near, exact, torch.where(apart < geometry.middle, middle, far))


def looked_up(values: Tensor, geometry: Geometry, i: Tensor, j: Tensor) -> Tensor:
    """The bias of pairs (…) from the values → (H, …). Pairs with j > i: those of j = i."""
    d = (i - j).clamp(min=0)
    if geometry.exact:
        return values[0][:, d]
    row, left, right, t = _cell(i, geometry.rows_per_octave, torch.full_like(i, geometry.last))
    row = row - geometry.first_node
    slide = 2 * d > i  # towards the first key rows are compared at the same key, otherwise at the same distance
    below = _along_row(values, geometry, row, torch.where(slide, left - j, d), left)
    above = _along_row(values, geometry, row + 1, torch.where(slide, right - j, d), right)
    return torch.where(t > 0, below + t * (above - below), below)


def _along_row(values: Tensor, geometry: Geometry, row: Tensor, d: Tensor, last: Tensor) -> Tensor:
    node, _, _, u = _cell(d, geometry.distances_per_octave, last)
    row = row.clamp(max=values.shape[0] - 1)
    here = values[row, :, node].movedim(-1, 0)
    after = values[row, :, (node + 1).clamp(max=values.shape[2] - 1)].movedim(-1, 0)
    return torch.where(u > 0, here + u * (after - here), here)


def _cell(x: Tensor, per_octave: int, last: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nodes around x: index of the left one, both positions (none beyond `last`), and how far x is between them."""
    octave = torch.zeros_like(x)
    for o in range(40):
        octave = torch.where(x >= (2 * per_octave << o), o + 1, octave)
    left = x >> octave << octave
    right = torch.minimum(left + (1 << octave), last)
    t = (x - left) / (right - left).clamp(min=1)
    return octave * per_octave + (x >> octave), left, right, t.double()


def _bilinear(values: Tensor, geometry: Geometry, rows: Tensor, keys: Tensor, nodes: int) -> Tensor:
    i0, i1, t = _nodes_around(rows, nodes)
    j0, j1, u = _nodes_around(keys, nodes)
    t, u = t[:, None], u[None, :]

    def at(i: Tensor, j: Tensor) -> Tensor:
        return looked_up(values, geometry, i[:, None].expand(-1, len(j)), j[None, :].expand(len(i), -1))

    below = at(i0, j0) * (1 - u) + at(i0, j1) * u
    above = at(i1, j0) * (1 - u) + at(i1, j1) * u
    return below * (1 - t) + above * t


def _nodes_around(x: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """A tile's nodes on either side of each position, and how far it is between them."""
    at = tile_nodes(nodes).to(x.device)
    tile, inside = x // TILE, x % TILE
    left = (torch.searchsorted(at, inside, right=True) - 1).clamp(max=nodes - 2)
    t = (inside - at[left]) / (at[left + 1] - at[left])
    return tile * TILE + at[left], tile * TILE + at[left + 1], t.double()


def tile_nodes(nodes: int) -> Tensor:
    """Where a tile's nodes are, from its first position to its last."""
    return (torch.arange(nodes) * (TILE - 1) + (nodes - 1) // 2) // (nodes - 1)
