"""Gradients of the samples, a few heads at a time. test_kernels.py compares them with the specification."""

import pytest
import torch

from longfire.engines.fused import bias_grad
from longfire.engines.fused.backward import backward
from longfire.engines.fused.bias_grad import Turns
from longfire.engines.fused.bias_kernels import expand
from longfire.engines.fused.forward import forward
from longfire.engines.fused.tiles import Call
from longfire.engines.fused.zones import Zones, evaluated
from tests.engines.fused.cases import device, padded

NEAR_CASES = {
    # smooth, keys, queries, sequences, key heads, padding of each sequence, dropout
    "padding, hidden keys, dropout": (16, 70, 70, 2, 1, [0, 33], 0.2),
    "of the distance alone": (None, 140, 140, 1, 2, None, 0.0),
    "the last queries, and middle nodes": (16, 270, 10, 1, 2, None, 0.0),
}


def poisoned(self, *size, **options):
    """`new_empty` filled with NaN: uninitialised memory may contain anything."""
    found = torch.empty(*size, **{"dtype": self.dtype, "device": self.device, **options})
    return found.fill_(torch.nan) if found.is_floating_point() else found


@pytest.mark.parametrize("case", NEAR_CASES)
def test_a_few_heads_at_a_time_have_the_same_gradients(case, monkeypatch):
    smooth, keys, queries, B, key_heads, padding, dropout_p = NEAR_CASES[case]
    H, D, scale = 2, 16, 0.25
    zones = Zones(keys, keys - queries, smooth)
    samples = torch.randn(zones.row_nodes, H, zones.distance_nodes, device=device)
    q, do = torch.randn(2, B, H, queries, D, device=device)
    k, v = torch.randn(2, B, key_heads, keys, D, device=device)
    shift = key_mask = seed = None
    if padding is not None:
        key_mask = (padded(keys, padding)[1] & (torch.rand(B, keys, device=device) < 0.8)).to(torch.uint8)
        shift = torch.tensor(padding, device=device, dtype=torch.int32)
        seed = torch.tensor([5], device=device)
    call = Call(q, k, v, expand(samples, zones, False, scale), key_mask, shift, seed, None, zones, scale, dropout_p)
    out, lse = forward(call)
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(bias_grad, "DISTANCES", 128)
    together = backward(call, do, out, lse, learned=True)
    assert Turns.of(call.zones, H).heads == H
    monkeypatch.setattr(bias_grad, "NEAR_BYTES", 1)
    assert Turns.of(call.zones, H).heads == 1
    for got, expected in zip(backward(call, do, out, lse, learned=True), together, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize(("at_most", "expected"), [(1, 1), (5, 4), (7, 6), (11, 6), (12, 12), (99, 12)])
def test_turns_are_even(at_most, expected, monkeypatch):
    zones = evaluated(Zones(32768, 0, None))
    assert 1 < Turns.of(zones, 12).heads < 12
    groups = Turns.of(zones, 12).groups
    monkeypatch.setattr(bias_grad, "NEAR_BYTES", at_most * 4 * groups * zones.near * 128**2)
    assert Turns.of(zones, 12).heads == expected
