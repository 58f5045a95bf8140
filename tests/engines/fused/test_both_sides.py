"""Attention that is not causal, in awkward layouts. The kernels themselves are tested in test_kernels.py."""

import pytest
import torch

from longfire import ALiBi, KerpleLog, attention, prepare_bias
from longfire.engines import PreparedBias
from longfire.engines.fused.bias import interpolation_error, sample_bias
from tests.engines.fused.cases import both, close, device, kinked, two_sided, two_sided_t5
from tests.engines.fused.test_segments import packed


@pytest.mark.parametrize(
    ("make", "T", "S", "options"),
    [
        (two_sided_t5, 129, 129, {"window": 70}),
        (two_sided_t5, 40, 130, {"window": 2, "mask": 0.7}),
        (lambda heads: ALiBi(heads).to(device), 65, 65, {"window": 1000, "mask": 0.2}),
        (lambda heads: KerpleLog(heads).to(device), 1, 1, {}),
        (two_sided_t5, 138, 138, {"rows": ([1, 67, 5, 65], [138])}),
        (two_sided_t5, 30, 40, {"rows": ([3, 37], [30, 10]), "window": 6, "mask": 0.8}),
    ],
)
def test_layouts(make, T, S, options):
    """Windows, masks, packed documents, fewer queries than keys, and heads that share keys."""
    options = dict(options)
    if "mask" in options:
        options["key_mask"] = torch.rand(2, S, device=device) < options.pop("mask")
    if "rows" in options:
        options["segment_ids"] = packed(*options.pop("rows"))
    q, k, v = torch.randn(2, 2, T, 16, device=device), *torch.randn(2, 2, 1, S, 16, device=device)
    close(*both(make(2), q, k, v, causal=False, **options), tolerance=2e-5)


def test_windows_and_documents_of_an_interpolated_bias():
    """Short, so that hardly anything is interpolated."""
    fire = two_sided(1)
    q, k, v = torch.randn(3, 1, 1, 140, 16, device=device)
    for options in ({"window": 33}, {"segment_ids": packed([9, 70, 61])}):
        close(*both(fire, q, k, v, gradients=False, causal=False, **options), tolerance=1e-2)


def test_reaching_into_the_middle_zone_of_a_document():
    fire = two_sided(1)
    q, k, v = torch.randn(3, 1, 1, 300, 16, device=device)
    ids = packed([7, 293])
    found = attention(q, k, v, fire, causal=False, segment_ids=ids, impl="fused")
    alone = attention(q[:, :, 7:], k[:, :, 7:], v[:, :, 7:], fire, causal=False, impl="fused")
    torch.testing.assert_close(found[:, :, 7:], alone, rtol=1e-5, atol=1e-5)


def test_each_side_has_its_own_bias():
    """Mirrored, a bias that tells directions apart gives something else; a symmetric one does not."""
    q, k, v = torch.randn(3, 1, 1, 70, 16, device=device)
    for encoding, symmetric in ((two_sided_t5(1), False), (ALiBi(1).to(device), True)):
        out = attention(q, k, v, encoding, causal=False, impl="fused")
        mirrored = attention(*(tensor.flip(2) for tensor in (q, k, v)), encoding, causal=False, impl="fused").flip(2)
        assert torch.allclose(out, mirrored, atol=1e-5) == symmetric


def test_padding_on_the_right():
    fire, key_mask = two_sided(1), torch.arange(70, device=device) < torch.tensor([[70], [41]], device=device)
    q, k, v = torch.randn(3, 2, 1, 70, 16, device=device)
    with torch.no_grad():
        found = attention(q, k, v, fire, causal=False, key_mask=key_mask, impl="fused")
        alone = attention(*(tensor[1:, :, :41] for tensor in (q, k, v)), fire, causal=False, impl="fused")
    torch.testing.assert_close(found[1:, :, :41], alone, rtol=1e-5, atol=1e-5)


def test_a_prepared_bias_serves_causal_attention_too():
    encoding, positions = two_sided_t5(2), torch.arange(40, device=device)
    q, k, v = torch.randn(3, 1, 2, 40, 16, device=device)
    where = {"q_positions": positions, "k_positions": positions, "in_order": True, "causal": False}
    for causal in (True, False):
        sampled = sample_bias(encoding, 40, 0, torch.device(device), causal=False)
        prepared = PreparedBias(encoding=encoding, **where, fused=sampled)
        results = []
        for bias in (prepared, encoding):
            out = attention(q, k, v, bias, causal=causal, impl="fused")
            results.append((out, *torch.autograd.grad(out.square().sum(), list(encoding.parameters()))))
        close(*results)
    assert prepared.heads == 2
    with pytest.raises(ValueError, match="prepare it with causal=False"):
        attention(q, k, v, prepare_bias(encoding, positions, positions), causal=False, impl="fused")


def test_the_interpolation_error_is_of_both_sides():
    """FIRE's own, with one side flat: the other has the error."""
    errors = []
    for flat in (slice(0, 2), slice(2, 4), slice(0, 4)):
        torch.manual_seed(0)
        fire = kinked(2, bidirectional=True)
        with torch.no_grad():
            fire.linears[-1].weight[flat] = 0
        errors.append(interpolation_error(fire, sample_bias(fire, 1000, 0, torch.device(device), False))[0])
    assert errors[0] > 1e-3
    assert errors[1] > 1e-3
    assert errors[2] < 1e-5
