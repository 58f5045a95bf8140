"""Sandwich: the sum of cosines."""

import math

import pytest
import torch

from longfire.encodings import Sandwich, Sinusoidal


@pytest.mark.parametrize("first", [0, 9_999_000])
def test_formula(first):
    encoding = Sandwich(3, 8)
    bias = encoding.bias(torch.tensor([first + 900]), first + torch.arange(901))
    for h in range(3):
        expected = [
            3 / (8 * (h + 1)) * sum(math.cos((900 - j) / 10000 ** (k / 4)) for k in range(1, 5)) for j in range(901)
        ]
        torch.testing.assert_close(bias[h, 0], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_options():
    encoding = Sandwich(2, 8, terms=2, scales=[1.0, -2.0])
    bias = encoding.bias(torch.tensor([5]), torch.tensor([2]))
    waves = math.cos(3 / 100) + math.cos(3 / 10000)
    torch.testing.assert_close(bias.flatten(), torch.tensor([waves, -2 * waves]))


def test_it_is_an_inner_product_of_sinusoidal_vectors():
    """Its origin: sinusoidal vectors with wavelengths shifted by one step."""
    vectors = Sinusoidal(16).vectors(torch.arange(50)).double()
    encoding = Sandwich(1, 16, scales=[1.0]).double()
    ours = encoding.bias(torch.arange(50), torch.arange(50))[0]
    first, last = torch.cos((torch.arange(50)[:, None] - torch.arange(50)).double()), 1e-4
    last = torch.cos((torch.arange(50)[:, None] - torch.arange(50)).double() * last)
    torch.testing.assert_close(ours, vectors @ vectors.T - first + last, rtol=1e-5, atol=1e-5)


def test_bad_options():
    with pytest.raises(ValueError, match="scales must be 2 finite numbers"):
        Sandwich(2, 8, scales=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="terms must be at least 1"):
        Sandwich(2, 8, terms=0)
