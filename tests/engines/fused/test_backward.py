"""Gradients of every input in awkward layouts. test_kernels.py compares the kernels with the specification."""

import pytest
import torch

from longfire import KerpleLog, attention
from tests.engines.fused.cases import both, close, device, kinked, padded, sloped, small_t5


def test_keys_hidden_anywhere():
    key_mask = torch.rand(2, 70, device=device) < 0.7
    key_mask[0, :20] = False  # the first queries see no key
    q, k, v = torch.randn(3, 2, 1, 70, 16, device=device)
    found, expected = both(KerpleLog(1).to(device), q, k, v, key_mask=key_mask)
    assert (found[0][0, :, :20] == 0).all()
    close(found, expected)


@pytest.mark.parametrize(
    ("make", "queries", "keys", "window"),
    [
        (small_t5, 70, 70, 2),
        (small_t5, 70, 150, 65),  # one tile, and a key of the next
        (small_t5, 40, 40, 1000),
        (sloped, 20, 300, 200),  # to the middle zone
        (sloped, 10, 430, 330),  # to the far zone
    ],
)
def test_windows(make, queries, keys, window):
    q = torch.randn(1, 1, queries, 16, device=device)
    k, v = torch.randn(2, 1, 1, keys, 16, device=device)
    close(*both(make(1), q, k, v, window=window), tolerance=2e-5)


def test_a_window_after_left_padding():
    positions, key_mask = padded(90, [0, 37])
    q, k, v = torch.randn(3, 2, 1, 90, 16, device=device)
    where = {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}
    close(*both(small_t5(), q, k, v, window=30, **where))


def test_a_short_sequence_is_exact():
    """Up to half of smooth_beyond every query and distance is sampled: the parameters' gradients are exact as well."""
    q, k, v = torch.randn(3, 1, 1, 30, 16, device=device)
    close(*both(kinked(1), q, k, v), tolerance=1e-4)


def test_dropout():
    q, k, v = torch.randn(3, 1, 1, 40, 16, device=device)
    encoding = small_t5()
    wanted = [tensor.requires_grad_() for tensor in (q, k)] + list(encoding.parameters())

    def out():
        torch.manual_seed(1)
        return attention(q, k, v, encoding, dropout_p=0.3, impl="fused")

    torch.manual_seed(2)
    do = torch.randn_like(q)
    gradients = torch.autograd.grad(out(), wanted, do)
    for tensor, gradient in zip(wanted, gradients, strict=True):
        direction = torch.randn_like(tensor)
        with torch.no_grad():
            tensor += 1e-2 * direction
            above = (out() * do).sum()
            tensor -= 2e-2 * direction
            below = (out() * do).sum()
            tensor += 1e-2 * direction
        torch.testing.assert_close((above - below) / 2e-2, (gradient * direction).sum(), rtol=2e-2, atol=2e-2)


def test_second_derivatives_are_refused():
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 1, 9, 16, device=device))
    out = attention(q, k, v, small_t5(), impl="fused").square().sum()
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(out, q, create_graph=True)
