"""Sinusoidal and learned vectors."""

import math

import pytest
import torch

from longfire.encodings import Learned, Sinusoidal


def test_sinusoidal_formula():
    vectors = Sinusoidal(6).embed(torch.zeros(1, 4, 6), torch.tensor([0, 1, 7, 9_999_999]))[0]
    for row, position in enumerate([0, 1, 7, 9_999_999]):
        for k in range(3):
            angle = position / 10000 ** (2 * k / 6)
            assert vectors[row, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert vectors[row, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoidal_float64():
    vectors = Sinusoidal(6).embed(torch.zeros(1, 1, 6, dtype=torch.float64), torch.tensor([123_457]))[0, 0]
    assert vectors[2].item() == pytest.approx(math.sin(123_457 / 10000 ** (1 / 3)), abs=1e-10)


def test_learned_packed_documents_on_the_meta_device():
    """Positions restart with every document, so there may be more tokens than positions."""
    encoding, x = Learned(4, 8).to("meta"), torch.zeros(1, 16, 4, device="meta")
    assert encoding.embed(x, torch.arange(8, device="meta").repeat(2)).shape == (1, 16, 4)


def test_learned_adds_its_rows():
    encoding, x = Learned(4, 10), torch.randn(2, 3, 4)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    torch.testing.assert_close(encoding.embed(x, positions), x + encoding.table[positions])


def test_learned_refuses_positions_beyond_max_length():
    encoding = Learned(4, 10)
    with pytest.raises(ValueError, match=r"end at 9 .* at 10.*'fire'"):
        encoding.embed(torch.zeros(1, 1, 4), torch.tensor([10]))


def test_embeddings_keep_their_dtype():
    for encoding in (Sinusoidal(4), Learned(4, 10)):
        assert encoding.embed(torch.zeros(1, 2, 4, dtype=torch.bfloat16), torch.arange(2)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sinusoidal(5), "width must be even"),
        (lambda: Learned(4, 0), "max_length must be at least 1"),
        (lambda: Learned(4, 8).embed(torch.zeros(1, 2, 6), torch.arange(2)), "width 6, but Learned has 4"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
