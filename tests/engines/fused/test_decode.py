"""Single queries: the bias is exact for few keys and interpolated along the distance for many."""

import pytest
import torch

from longfire import KerpleLog, NoPE, Sandwich, attention, attention_plan
from longfire.encodings.kernels import fire as fire_kernel
from longfire.engines import PreparedBias
from longfire.engines.fused.bias import sample_bias
from longfire.engines.fused.decode import decode_biases, sample_distances
from longfire.engines.fused.reference import interpolated_row
from longfire.engines.fused.zones import decode_nodes
from tests.engines.fused.cases import both, close, device, kinked, padded
from tests.samples import increasing


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("make", [kinked, lambda heads: Sandwich(heads, 16).to(device), lambda heads: NoPE()])
@pytest.mark.parametrize("groups", [1, 2])
def test_exact(make, groups):
    encoding = make(2)
    q = torch.randn(2, 2, 1, 16, device=device)
    k, v = torch.randn(2, 2, 2 // groups, 111, 16, device=device)
    positions, key_mask = padded(111, [0, 40])
    where = {"q_positions": positions[:, -1:], "k_positions": positions, "key_mask": key_mask}
    for options in ({}, where, {"key_mask": key_mask}):
        close(*both(encoding, q, k, v, gradients=False, **options), tolerance=2e-6)
    other = make(2, bidirectional=True) if make is kinked else encoding
    close(*both(other, q, k, v, gradients=False, causal=False), tolerance=2e-6)


def test_any_positions():
    q, k, v = (torch.randn(1, 2, n, 16, device=device) for n in (1, 50, 50))
    where = {"q_positions": torch.tensor([999], device=device), "k_positions": increasing(1200, (50,), device)}
    close(*both(kinked(2), q, k, v, gradients=False, **where), tolerance=2e-6)
    nothing = {**where, "k_positions": torch.arange(1000, 1050, device=device)}
    assert (attention(q, k, v, kinked(2), impl="fused", **nothing) == 0).all()


@pytest.mark.parametrize("make", [kinked, lambda heads: Sandwich(heads, 16).to(device), lambda heads: NoPE()])
def test_a_window(make):
    """Keys before the window are not read; with padding, they are masked."""
    encoding = make(2)
    q = torch.randn(2, 2, 1, 16, device=device)
    k, v = torch.randn(2, 2, 1, 111, 16, device=device)
    positions, key_mask = padded(111, [0, 95])
    where = {"q_positions": positions[:, -1:], "k_positions": positions, "key_mask": key_mask}
    close(*both(encoding, q, k, v, gradients=False, window=30, **where), tolerance=2e-6)
    for window in (1, 30, 500):
        found, expected = both(encoding, q, k, v, gradients=False, window=window)
        close(found, expected, tolerance=2e-6)
        old = torch.arange(max(0, 111 - window), device=device)
        spoiled = [tensor.index_fill(2, old, torch.nan) for tensor in (k, v)]
        close([attention(q, *spoiled, encoding, window=window, impl="fused")], expected, tolerance=2e-6)


def test_a_window_of_a_bias_prepared_for_training():
    """In the form for several queries, which single queries without gradients do not use."""
    encoding, positions = kinked(2), torch.arange(50, device=device)
    q, k, v = (torch.randn(1, 2, n, 16, device=device) for n in (1, 50, 50))
    where = {"q_positions": positions[-1:], "k_positions": positions, "in_order": True}
    prepared = PreparedBias(encoding=encoding, fused=sample_bias(encoding, 50, 49, q.device), **where)
    with torch.no_grad():
        for window in (None, 9):
            out = attention(q, k, v, prepared, window=window, impl="fused")
            close([out], [attention(q, k, v, encoding, window=window, impl="reference")], tolerance=2e-6)


def more_keys_than_nodes():
    """An encoding, q, k and v, and where they are after padding."""
    encoding = kinked(2)
    S = decode_nodes(encoding) + 60
    q, k, v = (torch.randn(2, heads, n, 16, device=device).half() for heads, n in ((2, 1), (1, S), (1, S)))
    positions, key_mask = padded(S, [0, 333])
    where = {"q_positions": positions[:, -1:], "k_positions": positions, "key_mask": key_mask}
    return encoding, S, (q, k, v), where


def test_a_window_over_more_keys_than_nodes():
    encoding, S, (q, k, v), where = more_keys_than_nodes()
    (row,) = decode_biases([encoding], *where.values())
    prepared = PreparedBias(encoding=encoding, **where, tensor=row[:, :, None], interpolated_row=True)
    expected = [attention(q, k, v, encoding, window=S - 40, impl="reference", **where)]
    for bias in (encoding, prepared):
        close([attention(q, k, v, bias, window=S - 40, impl="fused", **where)], expected, tolerance=5e-3)


def test_more_keys_than_nodes():
    """In low precision the bias is interpolated along the distance, and the plan reports its error."""
    encoding, S, (q, k, v), with_padding = more_keys_than_nodes()
    far = {"q_positions": torch.tensor([99_999], device=device), "k_positions": increasing(100_000, (S,), device)}
    for options in ({}, with_padding, far):
        plan = attention_plan(q, k, v, encoding, impl="fused", **options)
        assert "interpolated along the distance" in plan.why
        assert 0 < plan.error < 0.02
        close(*both(encoding, q, k, v, gradients=False, **options), tolerance=5e-3)
        q_positions = options.get("q_positions", torch.tensor([S - 1], device=device))
        k_positions = options.get("k_positions", torch.arange(S, device=device))
        nodes = sample_distances([encoding], q_positions)
        row = interpolated_row(nodes, encoding.smooth_beyond // 2, q_positions, k_positions)[:, :, None]
        seen = (torch.atleast_2d(k_positions) <= torch.atleast_2d(q_positions))[:, None, None]
        mask = {"key_mask": options["key_mask"]} if "key_mask" in options else {}
        dense = row.float().masked_fill(~seen, -torch.inf)
        expected = attention(q, k, v, dense, causal=False, impl="reference", **mask)
        close([attention(q, k, v, encoding, impl="fused", **options)], [expected], tolerance=1e-3)


def test_keys_after_the_query_are_not_interpolated():
    """Without causality they are visible and have different biases, so the row is computed for each key."""
    encoding = kinked(1, bidirectional=True)
    S = decode_nodes(encoding) + 60
    q, k, v = (torch.randn(1, 1, n, 16, device=device).half() for n in (1, S, S))
    where = {"q_positions": torch.tensor([100], device=device), "k_positions": torch.arange(S, device=device)}
    close(*both(encoding, q, k, v, gradients=False, causal=False, **where), tolerance=3e-3)


@pytest.mark.parametrize("kind", ["same architecture", "another width", "another encoding", "hooked"])
def test_all_layers_at_once(kind, monkeypatch):
    """Each encoding gets its own row, with masked keys at −inf."""
    monkeypatch.setattr(fire_kernel, "serve_cpu", True)
    encodings = [kinked(2), kinked(2), kinked(2)]
    encodings[1].L_multiplier.data.fill_(-1.5)
    if kind == "another width":
        encodings[1].smooth_beyond = 128
    if kind == "another encoding":
        encodings[1] = KerpleLog(2).to(device)
        encodings[1].distance_only, encodings[1].smooth_beyond = False, encodings[0].smooth_beyond
    if kind == "hooked":
        encodings[1].register_forward_hook(lambda _, positions, bias: bias + 1)
    positions, key_mask = padded(1000, [0, 333])
    positions = positions + 5000
    rows = decode_biases(encodings, positions[:, -9:-8], positions, key_mask)
    for encoding, row in zip(encodings, rows, strict=True):
        own = encoding(positions[:, -9:-8], positions)[:, :, 0]
        seen = (key_mask & (positions <= positions[:, -9:-8]))[:, None].expand_as(own)
        assert row.shape == own.shape
        assert (row[~seen] == -torch.inf).all()
        assert (row - own)[seen].abs().max() < 0.02
        (alone,) = decode_biases([encoding], positions[:, -9:-8], positions, key_mask)
        torch.testing.assert_close(row, alone, rtol=1e-6, atol=1e-6)


def test_a_prepared_row():
    """Used as is, by the kernel without reading the mask again and by other engines."""
    encoding, S = kinked(2), 700
    q, k, v = (torch.randn(2, 2, n, 16, device=device).half() for n in (1, S, S))
    positions, key_mask = padded(S, [0, 333])
    where = {"q_positions": positions[:, -1:], "k_positions": positions}
    expected = attention(q, k, v, encoding, key_mask=key_mask, impl="reference", **where)
    for mask in (None, key_mask):
        (row,) = decode_biases([encoding], *where.values(), mask)
        form = {"tensor": row[:, :, None], "interpolated_row": True, "key_mask": mask}
        prepared = PreparedBias(encoding=encoding, **where, **form)
        for impl in ("fused", "sdpa", "reference"):
            close([attention(q, k, v, prepared, key_mask=key_mask, impl=impl)], [expected], tolerance=5e-3)
        plan = attention_plan(q, k, v, prepared, key_mask=key_mask, impl="fused")
        assert "interpolated" in plan.why
        assert 0 < plan.error < 0.02
    prepared.check_same(None, None, key_mask.clone())
    with pytest.raises(ValueError, match="prepared for another key_mask"):
        prepared.check_same(None, None, torch.ones(2, S, dtype=torch.bool, device=device))
    with pytest.raises(ValueError, match="prepared for other k_positions"):
        prepared.check_same(None, positions + 1, key_mask)
