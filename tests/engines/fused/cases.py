"""Encodings, layouts and comparisons for the tests of the fused kernels.

Without a CUDA device the kernels run in Triton's interpreter, at sizes that are feasible there.
"""

import torch

from longfire import FIRE, T5, PositionEncoding, attention
from longfire.encodings import DistanceBias

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


def two_sided_t5(heads):
    return T5(heads, bidirectional=True).to(device)
