"""Where a bias is sampled."""

import pytest
import torch

from longfire import FIRE
from longfire.engines.fused.zones import BLOCK, Zones, node_index, node_position, smooth_width


@pytest.mark.parametrize("per_octave", [16, 32, 64])
def test_nodes(per_octave):
    positions = node_position(torch.arange(600), per_octave)
    assert positions[: 2 * per_octave + 1].tolist() == list(range(2 * per_octave + 1))
    assert (positions.diff() * per_octave <= positions[:-1].clamp(min=per_octave)).all()
    for position in (0, 1, 31, 32, 63, 64, 100, 127, 128, 1000, 4097):
        index = node_index(position, per_octave)
        assert positions[index] <= position < positions[index + 1]


def test_the_smooth_width_is_a_power_of_two():
    assert [smooth_width(FIRE(1, smooth_beyond=w)) for w in (64, 65, 128, 1000)] == [64, 128, 128, 1024]


def test_everything_is_near_if_smooth_beyond_is_large():
    assert Zones(300, 0, 4096).near == 3


@pytest.mark.parametrize("window", [1, 2, 128, 129, 130, 257, 1000])
def test_a_window_reaches_the_blocks_it_sees_and_no_more(window):
    blocks = 1 + max(i // BLOCK - max(i - window + 1, 0) // BLOCK for i in range(2000))
    zones, near = Zones(2000, 0, 64, window), Zones(2000, 0, 64).near
    assert (zones.reach, zones.near) == (blocks, min(near, blocks))
    assert (zones.has_middle, zones.has_far) == (blocks > near, blocks > zones.middle)
