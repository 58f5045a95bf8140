"""ALiBi against the code of Bloom and MPT."""

import pytest
import torch

from longfire.encodings import ALiBi

LENGTH = 50


def from_first_key(bias):
    """The bias relative to the first key's: constants in a row, which Bloom and MPT omit, do not change the softmax."""
    return bias - bias[..., :1]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 71])
def test_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, LENGTH, dtype=torch.long), heads, torch.float32)  # (H, 1, S)
    ours = ALiBi(heads).bias(torch.tensor([LENGTH - 1]), torch.arange(LENGTH))
    ours, theirs = from_first_key(ours), from_first_key(theirs)
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 16, 20])
@pytest.mark.parametrize("max_bias", [8, 5])
def test_mpt(heads, max_bias):
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    theirs = build_mpt_alibi_tensor(heads, LENGTH, alibi_bias_max=max_bias)  # (H, 1, S)
    ours = ALiBi(heads, max_bias=max_bias).bias(torch.tensor([LENGTH - 1]), torch.arange(LENGTH))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_slopes_of_twelve_heads():
    expected = [2.0**-h for h in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    torch.testing.assert_close(ALiBi(12).slopes, torch.tensor(expected))


def test_custom_slopes():
    bias = ALiBi(2, slopes=[0.25, 3.0]).bias(torch.tensor([4]), torch.arange(5))
    assert bias.tolist() == [[[-1.0, -0.75, -0.5, -0.25, 0.0]], [[-12.0, -9.0, -6.0, -3.0, 0.0]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slopes": [1.0]}, "2 finite numbers, one per head"),
        ({"slopes": [1.0, float("inf")]}, "2 finite numbers"),
        ({"max_bias": -8}, "max_bias must be above 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ALiBi(2, **options)
