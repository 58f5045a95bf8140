"""Randomised positions: sorted, unique, within the range, uniform, and reproducible."""

import pytest
import torch

from longfire import random_positions


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("length", "limit"), [(0, 5), (1, 1), (7, 7), (7, 30), (100, 2048)])
def test_sorted_unique_and_within_the_range(length, limit):
    drawn = random_positions(4, length, limit, generator=seeded())
    assert drawn.shape == (4, length)
    assert drawn.dtype == torch.int64
    assert (drawn.diff() > 0).all()
    assert (drawn >= 0).all()
    assert (drawn < limit).all()
    if length == limit:
        assert torch.equal(drawn, torch.arange(limit).expand(4, -1))


def test_every_sample_is_equally_likely():
    """χ² of 10 subsets with 9 degrees of freedom: above 27.9 once in a thousand seeds."""
    drawn = random_positions(20_000, 3, 5, generator=seeded())
    counts = torch.bincount((1 << drawn).sum(-1), minlength=32)
    counts = counts[counts > 0].double()
    assert len(counts) == 10
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9


def test_sequences_differ_and_seeds_reproduce():
    drawn = random_positions(8, 20, 500, generator=seeded(1))
    assert len({tuple(row) for row in drawn.tolist()}) == 8
    assert torch.equal(drawn, random_positions(8, 20, 500, generator=seeded(1)))
    torch.manual_seed(1)
    assert torch.equal(drawn, random_positions(8, 20, 500))
    assert not torch.equal(drawn, random_positions(8, 20, 500))


def test_padding_takes_no_positions():
    """A sequence has the same positions alone, and padded on either side or in the middle."""
    alone = random_positions(3, 4, 1000, generator=seeded())
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1]]).bool()
    padded = random_positions(3, 6, 1000, mask=mask, generator=seeded())
    assert torch.equal(padded[mask].view(3, 4), alone)
    nothing = random_positions(1, 4, 9, mask=torch.zeros(1, 4, dtype=torch.bool))
    assert (nothing < 9).all()


def test_the_range_must_have_room():
    with pytest.raises(ValueError, match="limit=4 positions are too few for length=5 tokens"):
        random_positions(1, 5, 4)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        random_positions(1, 0, 0)
    with pytest.raises(TypeError, match="whole number"):
        random_positions(1, 5, 8.0)
