"""Samples of a bias, and the error of interpolating them."""

import pytest
import torch

from longfire import FIRE, T5, KerpleLog, KerplePower, Sandwich, attention, attention_plan
from longfire.engines import PreparedBias
from longfire.engines.fused import bias as bias_module
from longfire.engines.fused.bias import interpolates, interpolation_error, refuses, sample_bias
from longfire.engines.fused.reference import interpolated
from tests.engines.fused.cases import both, close, device, kinked, stepped


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


def limited(keys):
    t5 = T5(1)
    t5.max_length = keys
    return t5


@pytest.mark.parametrize(
    ("encoding", "keys", "window", "dtype", "expected"),
    [
        (FIRE(1), 10, None, torch.float32, True),
        (T5(1), 4096, None, torch.bfloat16, True),
        (KerpleLog(1), 9999, 5000, torch.float16, True),
        (KerplePower(1), 9999, None, torch.float16, False),
        (T5(1), 4095, None, torch.bfloat16, False),
        (T5(1), 9999, 1024, torch.bfloat16, False),
        (T5(1), 9999, None, torch.float32, False),
        (T5(1).requires_grad_(False), 9999, None, torch.bfloat16, False),
        (Sandwich(1, head_dim=16), 9999, None, torch.bfloat16, False),
        (T5(1), 300_000, None, torch.bfloat16, False),
        (limited(4224), 4100, None, torch.bfloat16, True),
        (limited(4223), 4100, None, torch.bfloat16, False),
    ],
)
def test_a_bias_of_the_distance_is_interpolated_where_that_is_faster(encoding, keys, window, dtype, expected):
    assert interpolates(encoding, keys, window, dtype) == expected


def test_more_keys_than_offsets_reach_are_refused():
    assert refuses(FIRE(1), 1 << 20) is None
    assert refuses(FIRE(1), (1 << 20) + 1) == "it interpolates FIRE's bias for up to 1,048,576 keys, not 1,048,577"
    assert refuses(T5(1), 1 << 21) is None


@pytest.mark.parametrize(("make", "most"), [(T5, 0.0), (KerpleLog, 1e-4)])
def test_interpolating_by_distance_is_nearly_exact(make, most):
    """T5 is constant from `smooth_beyond` on."""
    encoding = make(4).to(device)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.linspace(0.3, 1, parameter.numel(), device=device).view_as(parameter))
    bias = sample_bias(encoding, 5000, 0, torch.device(device), tabulate=False)
    assert bias.zones.has_far
    assert interpolation_error(encoding, bias)[0] <= most


@pytest.mark.parametrize("layout", [{}, {"window": 200}, {"segment_ids": [0] * 130 + [1] * 60}, {"causal": False}])
def test_long_attention_by_distance(layout, monkeypatch):
    """Through every step, with the threshold at 128 keys. Segments and small windows still read a table."""
    monkeypatch.setattr(bias_module, "LONG", 128)
    if "segment_ids" in layout:
        layout = {"segment_ids": torch.tensor([layout["segment_ids"]], device=device)}
    t5 = stepped(1)
    q, k, v = torch.randn(3, 1, 1, 190, 16, device=device, dtype=torch.float16)
    plan = attention_plan(q, k, v, t5, impl="fused", **layout)
    assert ("is interpolated" in str(plan)) == ("segment_ids" not in layout)
    assert plan.error == 0.0
    close(*both(t5, q, k, v, **layout), tolerance=5e-3)


def test_a_prepared_bias_is_used_as_it_was_sampled():
    t5, positions = stepped(1), torch.arange(300, device=device)
    q, k, v = torch.randn(3, 1, 1, 300, 16, device=device)
    where = {"q_positions": positions, "k_positions": positions, "in_order": True}
    sampled = sample_bias(t5, 300, 0, torch.device(device), tabulate=False)
    prepared = PreparedBias(encoding=t5, **where, fused=sampled)
    assert "is interpolated" in str(attention_plan(q, k, v, prepared, impl="fused"))
    expected = attention(q, k, v, t5, impl="reference")
    torch.testing.assert_close(attention(q, k, v, prepared, impl="fused"), expected, rtol=1e-4, atol=1e-4)
