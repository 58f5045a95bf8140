"""The specification of the interpolation."""

import pytest
import torch

from longfire.engines.fused.reference import interpolated
from longfire.engines.fused.zones import Zones
from tests.engines.fused.cases import Sloped, device


@pytest.mark.parametrize(("keys", "first"), [(1, 0), (63, 0), (257, 0), (900, 0), (900, 880), (2049, 1100)])
def test_interpolating_a_linear_bias_is_exact(keys, first):
    encoding, zones = Sloped(2).to(device).double(), Zones(keys, first, 64)
    samples = encoding.bias(*zones.positions(torch.device(device)))[:, :, 0].double()
    rows = torch.arange(first, keys, device=device)[::7]
    expected = encoding.bias(rows, torch.arange(keys, device=device)).double()
    seen = torch.arange(keys, device=device) <= rows[:, None]
    assert (interpolated(samples, zones, rows) - expected)[:, seen].abs().max() < 1e-5
    assert zones.has_far == (keys > 768)
