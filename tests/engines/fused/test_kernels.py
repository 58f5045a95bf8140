"""The kernels' output and gradients against the specification in float64, in every zone and on both sides."""

import pytest
import torch
import torch.nn.functional as F

from longfire import T5, KerpleLog, attention
from longfire.engines.fused.backward import backward
from longfire.engines.fused.bias import sample_bias
from longfire.engines.fused.bias_kernels import expand
from longfire.engines.fused.forward import forward
from longfire.engines.fused.reference import interpolated
from longfire.engines.fused.tiles import Call
from tests.engines.fused.cases import device, kinked, smooth, stepped, two_sided, two_sided_t5

CASES = {
    # encoding, keys, queries, heads, dtype; two_sided ones are not causal
    "near": (kinked, 70, 70, 1, torch.float32),
    "middle": (kinked, 300, 30, 1, torch.float32),
    "middle, half precision": (kinked, 300, 30, 1, torch.float16),
    "far": (kinked, 800, 20, 1, torch.float32),
    "far, a row node before the first block": (kinked, 4226, 2, 1, torch.float32),
    "table": (lambda heads: T5(heads).to(device), 150, 111, 2, torch.float32),
    "by distance, far": (lambda heads: smooth(KerpleLog(heads)), 900, 40, 2, torch.float32),
    "by distance, far on both sides": (stepped, 400, 400, 1, torch.float16),
    "both sides, near": (two_sided, 70, 60, 1, torch.float32),
    "both sides, half precision": (two_sided, 300, 300, 1, torch.float16),
    "both sides, far": (lambda heads: smooth(two_sided(heads)), 400, 400, 1, torch.float32),
    "both sides, table": (two_sided_t5, 150, 111, 2, torch.float32),
    "both sides, table in half precision": (two_sided_t5, 150, 111, 1, torch.float16),
}
SLOW_TO_COLLECT = ("both sides, half precision", "both sides, far")
"""Cases whose gradients of the samples take long in the interpreter; they are compared on a GPU alone."""


@pytest.mark.parametrize("case", CASES)
def test_as_specified(case):
    make, keys, queries, heads, dtype = CASES[case]
    encoding, D = make(heads), 16
    causal = not encoding.bidirectional
    sampled = sample_bias(encoding, keys, keys - queries, torch.device(device), causal, tabulate="table" in case)
    zones, samples = sampled.zones, sampled.samples.detach()
    assert zones.has_far == ("far" in case)
    q, do = torch.randn(2, 2 if keys < 100 else 1, heads, queries, D, device=device).to(dtype)
    k, v = torch.randn(2, q.shape[0], 1, keys, D, device=device).to(dtype)
    bias = expand(samples, zones, dtype != torch.float32, D**-0.5)
    call = Call(q, k, v, bias, None, None, None, None, zones, D**-0.5, 0.0)
    out, lse = forward(call)
    learned = device == "cuda" or case not in SLOW_TO_COLLECT
    found = (out, *backward(call, do, out, lse, learned))
    inputs = [tensor.double().detach().requires_grad_() for tensor in (q, k, v, samples)]
    rows = torch.arange(zones.first, zones.keys, device=device)
    sides = [interpolated(side, zones, rows) for side in inputs[3].chunk(zones.sides, 1)]  # (H, later, earlier)
    if not causal:
        later = torch.arange(zones.keys, device=device) > rows[:, None]
        sides[0] = torch.where(later, F.pad(sides[1][:, :, rows].mT, (zones.first, 0)), sides[0])
    exact = attention(*inputs[:3], sides[0], impl="reference", causal=causal)
    expected = (exact, *torch.autograd.grad(exact, inputs, do.double()))
    tolerance = 3e-6 if dtype == torch.float32 else 2e-3
    results = list(zip(("out", "q", "k", "v", "samples"), found, expected, strict=True))
    for name, got, truth in results[: 5 if learned else 4]:
        assert (got.double() - truth).abs().max() <= tolerance * truth.abs().max(), name
