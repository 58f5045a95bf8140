"""The forward kernel with masks, dropout and extreme biases. test_kernels.py compares it with the specification."""

import pytest
import torch

from longfire import T5, attention
from longfire.encodings import DistanceBias
from tests.engines.fused.cases import both, close, device, kinked, padded, sloped


def test_left_padding_changes_nothing():
    """A padded sequence has the same result as without padding."""
    fire, (positions, key_mask) = kinked(1), padded(90, [13])
    q, k, v = torch.randn(3, 1, 1, 90, 16, device=device)
    with torch.no_grad():
        found = attention(q, k, v, fire, q_positions=positions, k_positions=positions, key_mask=key_mask, impl="fused")
        alone = attention(q[:, :, 13:], k[:, :, 13:], v[:, :, 13:], fire, impl="fused")
    torch.testing.assert_close(found[:, :, 13:], alone, rtol=1e-5, atol=1e-6)


def test_dropout():
    """Weights of 0 or 1 / (T · (1 − p)), the same for the same seed, and the same in backward."""
    T = 64
    q, v = torch.zeros(1, 1, T, 16, device=device), torch.randn(1, 1, T, 16, device=device)
    flat = T5(1).to(device)
    torch.nn.init.zeros_(flat.table)
    weights = []
    for columns in torch.eye(T, device=device)[None, None].split(16, dim=-1):  # a few columns of the weights at a time
        torch.manual_seed(5)
        weights.append(attention(q, q, columns, flat, dropout_p=0.25, impl="fused"))
    weights = torch.cat(weights, -1)[0, 0]
    scaled = (weights * torch.arange(1, T + 1, device=device)[:, None] * 0.75).tril()
    assert ((scaled - scaled.round()).abs() < 1e-5).all()
    assert 0.2 < 1 - scaled.sum() / (T * (T + 1) / 2) < 0.3
    assert (weights[32:48] != weights[48:64]).any()
    torch.manual_seed(5)
    v.requires_grad_()
    out = attention(q, q, v, flat, dropout_p=0.25, impl="fused")
    torch.testing.assert_close(out[0, 0], weights @ v[0, 0])
    do = torch.randn_like(out)
    (dv,) = torch.autograd.grad(out, v, do)
    torch.testing.assert_close(dv[0, 0], weights.mT @ do[0, 0])


class Cliff(DistanceBias):
    """−inf beyond a distance."""

    num_heads = 1

    def of_distance(self, distance):
        return torch.where(distance < 20, 0.0, -torch.inf)


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 150), (torch.float16, 300)])
def test_a_bias_of_minus_infinity(dtype, length):
    q = torch.randn(1, 1, 8, 16, device=device).to(dtype)
    k, v = torch.randn(2, 1, 1, length, 16, device=device).to(dtype)
    close(*both(Cliff(), q, k, v, gradients=False), tolerance=3e-3)


@pytest.mark.parametrize("scale", [None, 1e-3])
def test_a_bias_too_large_for_half_precision(scale):
    """In the middle zone, where it is divided by the scale."""
    encoding = sloped()
    encoding.slopes.data.copy_(torch.tensor([[-1e4, 0.0]]))
    q = torch.randn(1, 1, 8, 16, device=device).half()
    k, v = torch.randn(2, 1, 1, 300, 16, device=device).half()
    close(*both(encoding, q, k, v, gradients=False, scale=scale), tolerance=3e-3)
