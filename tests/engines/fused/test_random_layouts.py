"""The fused engine against the reference in layouts drawn at random."""

import random

import pytest
import torch

from longfire import KerpleLog
from tests.engines.fused.cases import both, device, sloped, small_t5, two_sided_t5
from tests.engines.test_layouts import segments

ENCODINGS = {
    True: [small_t5, lambda heads: KerpleLog(heads).to(device), sloped],
    False: [two_sided_t5, lambda heads: KerpleLog(heads).to(device)],
}
"""By `causal`: tables of distances, and one that is interpolated, but exactly."""


@pytest.mark.parametrize("seed", range(100 if device == "cuda" else 12))
def test_random_layout(seed):
    """Segments × window × causal × grouped heads × mask × positions × lengths."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    S = draw.choice([1, 63, 111, 257])
    T = draw.choice([S, S, max(1, S // 3)])
    causal = draw.random() < 0.6
    slow = device == "cpu" and S > 111  # to collect the gradients of samples in the interpreter
    make = draw.choice(ENCODINGS[causal][: 2 if slow else None])
    options = {"causal": causal, "window": draw.choice([None, 1, 2, 30, 1000])}
    if draw.random() < 0.5:
        options["segment_ids"] = segments(S, draw.randint(1, 1 + S // 10)).to(device)
    if draw.random() < 0.5:
        options["key_mask"] = torch.rand(2, S, device=device) < 0.8
    if draw.random() < 0.3 and make(1).distance_only:
        positions = torch.randint(1, 4, (2, S), device=device).cumsum(1)
        options |= {"q_positions": positions[:, S - T :], "k_positions": positions}
    q, k, v = torch.randn(2, 2, T, 16, device=device), *torch.randn(2, 2, draw.choice([1, 2]), S, 16, device=device)
    found, expected = both(make(2), q, k, v, **options)
    largest = [out.abs().max().clamp(min=0.1) for out in (expected[0], torch.cat([x.flatten() for x in expected]))]
    for number, (got, exact) in enumerate(zip(found, expected, strict=True)):
        assert (got - exact).abs().max() <= 1e-5 * largest[number > 0]
