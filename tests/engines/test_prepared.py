"""A bias that several layers share."""

import pytest
import torch

from longfire import FIRE, attention, prepare_bias
from longfire.engines import PreparedBias
from tests.engines.oracle import random
from tests.samples import make


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_a_prepared_bias_is_computed_once_and_accumulates_gradients(impl, monkeypatch):
    q, k, v = random()
    fire, positions = make("fire", torch.float64), torch.arange(7)
    separate = sum(attention(q * layer, k, v, fire, impl=impl).sum() for layer in (1, 2, 3))
    expected = torch.autograd.grad(separate, list(fire.parameters()))
    calls = []
    bias = FIRE.bias
    monkeypatch.setattr(FIRE, "bias", lambda *args: calls.append(1) or bias(*args))
    prepared = prepare_bias(fire, positions, positions)
    shared = sum(attention(q * layer, k, v, prepared, impl=impl).sum() for layer in (1, 2, 3))
    torch.testing.assert_close(shared, separate)
    torch.testing.assert_close(torch.autograd.grad(shared, list(fire.parameters())), expected)
    assert len(calls) == 1


def test_prepared_for_other_positions():
    q, k, v = random()
    prepared = prepare_bias(make("fire"), torch.arange(7), torch.arange(7))
    same = {"q_positions": torch.arange(7), "k_positions": torch.arange(7)}
    attention(q, k, v, prepared, **same)
    with pytest.raises(ValueError, match="prepared for other k_positions"):
        attention(q, k, v, prepared, **{**same, "k_positions": torch.arange(7) + 1})
    with pytest.raises(ValueError, match="the prepared bias's q_positions must have shape"):
        attention(*random(T=3), prepared)
    with pytest.raises(ValueError, match="the prepared bias has 3 heads"):
        attention(*random(H=6), prepared)
    assert repr(prepared) == "PreparedBias((3, 7, 7): 7 queries, 7 keys)"
    with pytest.raises(TypeError, match="positional"):  # its fields are easily confused
        PreparedBias(prepared.encoding, torch.arange(7), torch.arange(7))
    with pytest.raises(TypeError, match="must be a PositionEncoding, not Tensor"):
        prepare_bias(torch.zeros(3), torch.arange(7), torch.arange(7))


def test_in_order_is_checked():
    fire, order = make("fire"), torch.arange(7)
    prepare_bias(fire, order[2:], order, in_order=True)
    padded = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    prepare_bias(fire, padded, padded, in_order=True, padding=torch.tensor([2, 0]))
    for q_positions, k_positions, padding in [
        (order, order + 1, None),
        (order[:3], order, None),
        (torch.cat([order, order]), order, None),
        (padded, padded, torch.tensor([1, 0])),
    ]:
        with pytest.raises(ValueError, match="in_order=True needs keys at 0…6"):
            prepare_bias(fire, q_positions, k_positions, in_order=True, padding=padding)


def test_prepared_padding_needs_a_key_mask():
    padded = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    prepared = prepare_bias(make("fire"), padded, padded, in_order=True, padding=torch.tensor([2, 0]))
    key_mask = torch.arange(7) >= torch.tensor([[2], [0]])
    attention(*random(), prepared, key_mask=key_mask)
    with pytest.raises(ValueError, match="pass the key_mask"):
        attention(*random(), prepared)
    with pytest.raises(ValueError, match="in sequence 0, position 0 follows 0"):
        attention(*random(), prepared, key_mask=torch.ones(2, 7, dtype=torch.bool))


def test_prepared_biases_compare_by_identity():
    first, second = (prepare_bias(make("fire"), torch.arange(7), torch.arange(7)) for _ in range(2))
    assert first == first
    assert first != second
