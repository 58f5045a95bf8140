"""What the engine serves, refuses and shares between calls."""

import pytest
import torch

from longfire import FIRE, T5, attention, attention_plan, prepare_bias
from longfire.engines import PreparedBias
from longfire.engines.fused.bias import sample_bias
from tests.engines.fused.cases import Sloped, Wave, both, close, device, kinked, padded, small_t5


def test_a_users_encoding():
    """Exact if it depends only on the distance, interpolated if it declares smooth_beyond, otherwise refused."""
    q, k, v = torch.randn(3, 1, 1, 70, 16, device=device)
    close(*both(Wave(1).to(device), q, k, v), tolerance=1e-4)
    close(*both(Sloped(1).to(device), q, k, v, gradients=False))
    undeclared = type("Undeclared", (Sloped,), {"smooth_beyond": None})
    for encoding in (undeclared(1), FIRE(1, smooth_beyond=None)):
        with pytest.raises(ValueError, match=r"neither distance_only nor smooth_beyond.*smooth_beyond=128"):
            attention(q, k, v, encoding.to(device), impl="fused")


LEFT_PADDING = {"positions": torch.tensor([0, *range(8)]), "key_mask": torch.tensor([[False] + 8 * [True]])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"causal": False, "bias": FIRE(1, bidirectional=True), **LEFT_PADDING},
            "with causal=False, it supports padding on the right",
        ),
        ({"bias": None}, "no bias; sdpa has faster kernels"),
        ({"bias": torch.zeros(9, 9)}, "a tensor is already dense"),
        ({"scale": 1e-5}, "scale must be at least 2e-05, not 1e-05"),
        ({"q": torch.zeros(1, 1, 9, 16, dtype=torch.float64)}, "q is torch.float64"),
        ({"q": torch.zeros(1, 1, 9, 160)}, "largest head size is 128, but q has 160"),
        ({"positions": torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4])}, "must strictly increase"),
        ({"positions": torch.arange(9) * 2}, "do not go up one by one from 0"),
        ({"positions": torch.arange(9) + 5}, "do not go up one by one from 0"),
        ({"q_positions": torch.arange(8, -1, -1)}, "not the last of the keys in order"),
    ],
)
def test_refusals(change, message):
    change = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in change.items()}
    q = change.pop("q", torch.zeros(1, 1, 9, 16, device=device))
    if "positions" in change:
        change["q_positions"] = change["k_positions"] = change.pop("positions")
    if "q_positions" in change:
        change.setdefault("k_positions", torch.arange(9, device=device))
    bias = change.pop("bias", FIRE(1).to(device))
    with pytest.raises(ValueError, match=message):
        attention(q, q, q, bias, impl="fused", **change)


def test_heads_are_checked():
    class Headless(Wave):
        def __init__(self, heads):
            super().__init__(heads)
            del self.num_heads

    x = torch.randn(1, 3, 9, 16, device=device)
    with pytest.raises(ValueError, match="Headless has 1 head, but q"):
        attention(x, x, x, Headless(1).to(device), impl="fused")


@pytest.mark.gpu
def test_auto_uses_an_exact_engine_for_float32():
    x = torch.zeros(1, 1, 9, 16, device=device)
    assert attention_plan(x, x, x, T5(1).to(device)).engine == "fused"
    assert attention_plan(x, x, x, kinked(1)).engine == "sdpa"
    half = x.half()
    assert attention_plan(half, half, half, kinked(1)).engine == "fused"


def test_hooks_on_the_encoding_take_effect():
    calls, (q, k, v) = [], torch.randn(3, 1, 2, 40, 16, device=device)
    encoding = Sloped(2).to(device)
    encoding.register_forward_hook(lambda _, given, bias: calls.append(given) or 3 * bias)
    close(*both(encoding, q, k, v, gradients=False))
    assert len(calls) == 2  # one by the reference


def test_prepared_padding():
    """Same result as padding that the engine detects."""
    encoding, (q, k, v) = kinked(2), torch.randn(3, 2, 2, 40, 16, device=device)
    positions, key_mask = padded(40, [0, 17])
    padding = torch.tensor([0, 17], device=device)
    bias = prepare_bias(encoding, positions, positions, in_order=True, padding=padding)
    found = attention(q, k, v, bias, key_mask=key_mask, impl="fused")
    where = {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}
    assert torch.equal(found, attention(q, k, v, encoding, impl="fused", **where))
    with pytest.raises(ValueError, match="padding needs in_order=True"):
        prepare_bias(encoding, positions, positions, padding=padding)


def test_training_after_inference():
    """Both can use what is cached between calls."""
    encoding = small_t5()
    q, k, v = torch.randn(3, 2, 1, 41, 16, device=device)
    positions, key_mask = padded(41, [0, 5])
    for where in ({}, {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}):
        with torch.inference_mode():
            attention(q, k, v, encoding, impl="fused", **where)
            inside = {name: tensor.clone() for name, tensor in where.items()}
            attention(q, k, v, encoding, impl="fused", **inside)
        close(*both(encoding, q, k, v, **where))


def test_positions_written_to_are_read_again():
    encoding, positions = FIRE(1).to(device), torch.arange(9, device=device)
    q = torch.zeros(1, 1, 9, 16, device=device)
    attention(q, q, q, encoding, q_positions=positions, k_positions=positions, impl="fused")
    positions[4:] += 1
    with pytest.raises(ValueError, match="do not go up one by one"):
        attention(q, q, q, encoding, q_positions=positions, k_positions=positions, impl="fused")


def test_a_shared_bias():
    """Prepared once, its gradient is the sum over layers; other engines accept it."""
    t5, positions = small_t5(), torch.arange(40, device=device)
    q, k, v = torch.randn(3, 1, 1, 40, 16, device=device)
    where = {"q_positions": positions, "k_positions": positions, "in_order": True}
    prepared = PreparedBias(encoding=t5, **where, fused=sample_bias(t5, 40, 0, torch.device(device)))  # on a CPU, too
    shared, apart = (
        sum(attention(q * s, k, v, bias, impl="fused").square().sum() for s in (1, 2)) for bias in (prepared, t5)
    )
    torch.testing.assert_close(shared, apart)
    for a, b in zip(*(torch.autograd.grad(x, list(t5.parameters())) for x in (shared, apart)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for impl in ("reference", "sdpa", "chunked"):
        torch.testing.assert_close(attention(q, k, v, prepared, impl=impl), attention(q, k, v, t5, impl="reference"))
