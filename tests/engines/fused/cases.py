"""Encodings, layouts and comparisons for the tests of the fused kernels.

Without a CUDA device the kernels run in Triton's interpreter, at sizes that are feasible there.
"""

from functools import cache

import torch
import torch.nn.functional as F

from longfire import FIRE, T5, KerpleLog, PositionEncoding, attention
from longfire.encodings import DistanceBias
from longfire.engines.fused.backward import backward
from longfire.engines.fused.bias import sample_bias
from longfire.engines.fused.bias_kernels import expand
from longfire.engines.fused.forward import forward
from longfire.engines.fused.reference import interpolated
from longfire.engines.fused.tiles import Call

device = "cuda" if torch.cuda.is_available() else "cpu"


class Sloped(PositionEncoding):
    """Linear in query and key, so that interpolation is exact, but not a function of the distance alone."""

    smooth_beyond = 64

    def __init__(self, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.slopes = torch.nn.Parameter(torch.randn(num_heads, 2))

    def bias(self, q_positions, k_positions):
        i, j = q_positions[..., None, :, None], k_positions[..., None, None, :]
        slope, tilt = (self.slopes.mT / 100)[..., None, None]
        return slope * (i - j).float() + tilt * i.float()


def smooth(encoding):
    """With W = 16, so that few keys and few samples reach the far zone."""
    encoding.smooth_beyond = 16
    return encoding.to(device)


def sloped(heads=1):
    return smooth(Sloped(heads))


class Wave(DistanceBias):
    def __init__(self, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.frequency = torch.nn.Parameter(torch.rand(num_heads))

    def of_distance(self, distance):
        return torch.sin(self.frequency[:, None, None] * distance)


def kinked(heads, W=64, **options):
    """A FIRE with large slopes and sharp kinks."""
    fire = FIRE(heads, **{"init_L": 64.0, "smooth_beyond": W, **options})
    with torch.no_grad():
        for layer in fire.linears:
            layer.weight *= 2
            layer.bias.normal_()
    return fire.to(device)


def stepped(heads):
    """Constant from a distance of 16 on, on both sides."""
    return smooth(T5(heads, num_buckets=8, max_distance=16, bidirectional=True))


def small_t5(heads=1):
    return T5(heads, num_buckets=8, max_distance=20).to(device)


def padded(T, padding):
    """Positions and key mask of sequences with this much padding on the left."""
    key_mask = torch.arange(T, device=device) >= torch.tensor(padding, device=device)[:, None]
    return (key_mask.cumsum(1) - 1).clamp(min=0), key_mask


def both(encoding, q, k, v, gradients=True, **options):
    """Output and gradients of the fused engine and of the reference."""
    found = []
    for impl in ("fused", "reference"):
        tensors = [tensor.detach().clone().requires_grad_(gradients) for tensor in (q, k, v)]
        out = attention(*tensors, encoding, impl=impl, **options)
        wanted = [*tensors, *encoding.parameters()]
        found.append((out, *(torch.autograd.grad(out.square().sum(), wanted) if gradients else ())))
    return found


def close(found, expected, tolerance=1e-5):
    """Assert closeness relative to the largest value; for gradients, to the largest of their kind.

    If all parameters' gradients should vanish, those of q, k and v say how large rounding errors are.
    """
    kinds = slice(0, 1), slice(1, 4), slice(4, None)
    out, qkv, parameters = (max((one.abs().max().item() for one in expected[kind]), default=0.0) for kind in kinds)
    for kind, scale in zip(kinds, (out, qkv, parameters or qkv), strict=True):
        for got, exact in zip(found[kind], expected[kind], strict=True):
            assert torch.isfinite(got).all()
            assert (got - exact).abs().max() <= tolerance * scale


def two_sided(heads):
    return kinked(heads, bidirectional=True)


def two_sided_early(heads):
    return smooth(two_sided(heads))


def two_sided_t5(heads):
    return T5(heads, bidirectional=True).to(device)


KERNEL_CASES = {
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
    "both sides, far": (two_sided_early, 400, 400, 1, torch.float32),
    "both sides, table": (two_sided_t5, 150, 111, 2, torch.float32),
    "both sides, table in half precision": (two_sided_t5, 150, 111, 1, torch.float16),
}
SLOW_TO_COLLECT = ("both sides, half precision", "both sides, far")
"""Cases whose gradients of the samples take long in the interpreter."""


@cache
def kernel_results(case):
    """By name: the kernels' result, the reference in float64, and the tolerance."""
    torch.manual_seed(0)
    make, keys, queries, heads, dtype = KERNEL_CASES[case]
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
    names = ("out", "q", "k", "v", "samples")[: 5 if learned else 4]
    found, expected = found[: len(names)], expected[: len(names)]
    return dict(zip(names, zip(found, expected, strict=True), strict=True)), 3e-6 if dtype == torch.float32 else 2e-3


def assert_as_specified(case, *names):
    """Assert that the kernels agree with the reference on these quantities."""
    results, tolerance = kernel_results(case)
    for name in names:
        got, exact = results[name]
        assert (got.double() - exact).abs().max() <= tolerance * exact.abs().max(), name
