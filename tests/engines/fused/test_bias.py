"""Samples of a bias, and the error of interpolating them."""

import pytest
import torch

from longfire import FIRE, T5, attention_plan
from longfire.engines.fused.bias import interpolation_error, sample_bias
from longfire.engines.fused.reference import interpolated
from tests.engines.fused.cases import device, kinked


@pytest.mark.parametrize("keys", [300, 2048])
def test_a_larger_smooth_beyond_is_more_exact(keys):
    errors = []
    for W in (64, 128, 512):
        fire = kinked(4, W)
        errors.append(interpolation_error(fire, sample_bias(fire, keys, 0, torch.device(device)))[0])
    assert errors[2] < errors[1] < errors[0] < 0.5
    assert errors[2] < 0.2 * errors[0] + 1e-6


def test_the_reported_error_is_the_bias_error():
    """Recomputed from the dense bias, over all queries."""
    fire, n = kinked(2), 400
    bias = sample_bias(fire, n, 0, torch.device(device))
    largest, typical = interpolation_error(fire, bias, rows=n)
    rows = torch.arange(n, device=device)
    error = (interpolated(bias.samples.double(), bias.zones, rows) - fire.bias(rows, rows)).tril().abs()
    assert largest == pytest.approx(error.max().item(), rel=1e-6)
    assert typical == pytest.approx((error.square().sum() / (2 * n * (n + 1) / 2)).sqrt().item(), rel=1e-4)
    x = torch.zeros(1, 2, n, 16, device=device)
    plan = attention_plan(x, x, x, fire, impl="fused")
    assert 0 < plan.error <= largest  # measured on 64 of the queries
    assert f"by at most {plan.error:.2g}" in str(plan)
    assert attention_plan(x, x, x, T5(2).to(device), impl="fused").error == 0.0


def test_the_plan_suggests_a_larger_smooth_beyond():
    q, k, v = torch.randn(3, 1, 2, 700, 16, device=device)
    fire = kinked(2)
    plan = attention_plan(q, k, v, fire, impl="fused")
    assert "smooth_beyond=64; 128 would be more exact" in str(plan)
    better = FIRE(2, init_L=64.0, smooth_beyond=128).to(device)
    better.load_state_dict(fire.state_dict())
    assert attention_plan(q, k, v, better, impl="fused").error < plan.error
