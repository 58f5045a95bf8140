"""Samples expanded into what attention reads, element by element."""

import pytest
import torch

from longfire import T5
from longfire.engines.fused.bias_kernels import expand, transposed
from longfire.engines.fused.reference import interpolated
from longfire.engines.fused.zones import BLOCK, MIDDLE, TILE, Zones
from tests.engines.fused.cases import device, kinked

LOG2E = 1.4426950408889634


def fragment(row, column):
    """Offset of an element of a 64 × 64 tile in tensor core order."""
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    return column // 16 * 1024 + thread * 8 + column // 8 % 2 * 4 + row // 8 % 2 * 2 + column % 2


def near_block(near):
    """A 128 × 128 block stored as 2 × 2 tiles of fragments: (H, 128, 128)."""
    row, column = torch.meshgrid(torch.arange(BLOCK), torch.arange(BLOCK), indexing="ij")
    tile = row // TILE * 2 + column // TILE
    return near[:, (tile * TILE**2 + fragment(row % TILE, column % TILE)).to(near.device)]


@pytest.mark.parametrize("relative", [False, True])
def test_near_biases_and_middle_nodes(relative):
    """Equal up to a constant per row of blocks, which does not change the softmax."""
    fire, zones = kinked(2), Zones(512, 300, 64)
    samples = fire.bias(*zones.positions(torch.device(device)))[:, :, 0].detach().contiguous()
    bias = expand(samples, zones, relative, 0.25)
    rows = torch.arange(256, 512, device=device)  # blocks 2 and 3
    exact = interpolated(samples.double(), zones, rows)  # (H, rows, S)
    near = bias.near.unflatten(1, (zones.blocks, zones.near, -1))[:, 0, zones.near - 2]  # queries 2, keys 1
    at = (torch.arange(MIDDLE) * (TILE - 1) + (MIDDLE - 1) // 2) // (MIDDLE - 1)
    middle = bias.middle.unflatten(1, (2 * zones.blocks, zones.middle_tiles, MIDDLE, MIDDLE))
    middle = middle[:, 2, -2 * (3 - zones.middle + 1)]  # the first tiles of queries 3 and keys 0
    for found, expected in [
        (near_block(near) / LOG2E, exact[:, :BLOCK, BLOCK : 2 * BLOCK]),
        (middle, exact[:, BLOCK + at][:, :, at]),
    ]:
        difference = found.double() - expected
        off = difference.amin((1, 2)) if relative else 0.0
        assert ((difference.amax((1, 2)) - off).abs() < (5e-3 if relative else 1e-5)).all()


def test_a_table_is_transposed_by_tiles():
    t5, zones = T5(1).to(device), Zones(200, 0, None)
    samples = t5.bias(*zones.positions(torch.device(device)))[:, :, 0].detach().contiguous()
    bias = expand(samples, zones, False, 0.25)
    for apart in range(zones.near):
        part = slice(apart * BLOCK**2, (apart + 1) * BLOCK**2)
        block = near_block(bias.near[:, part])
        i, j = torch.arange(BLOCK, device=device)[:, None] + apart * BLOCK, torch.arange(BLOCK, device=device)
        expected = samples[0][:, (i - j).clamp(0, 199)] * LOG2E
        torch.testing.assert_close(block, expected)
        torch.testing.assert_close(near_block(transposed(bias.near)[:, part]), block.mT)
