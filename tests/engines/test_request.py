"""What attention refuses, with the reason and the remedy."""

import pytest
import torch

from longfire import attention, attention_plan, prepare_bias
from longfire.encodings import ALiBi, PositionEncoding
from tests.engines.oracle import random
from tests.samples import HEADS, make


@pytest.mark.parametrize(("name", "call"), [("rope", "rotate"), ("yarn", "rotate"), ("sinusoidal", "embed")])
def test_an_encoding_without_a_bias_is_refused(name, call):
    """It would be ignored, and the model would have no positions."""
    encoding, positions = make(name), torch.arange(7)
    for attend in (
        lambda: attention(*random(), encoding),
        lambda: attention_plan(*random(), encoding),
        lambda: prepare_bias(encoding, positions, positions),
    ):
        with pytest.raises(ValueError, match=rf"has no bias for attention to add\. Call .*encoding\.{call}\("):
            attend()


RESTART = {
    "packed documents": ([0, 1, 2, 3, 0, 1, 2], None),
    "documents of one token": ([0, 1, 2, 3, 4, 0, 0], None),
    "two equal ones": ([0, 1, 2, 2, 3, 4, 5], None),
    "documents on both sides of padding": ([0, 1, 2, 0, 0, 1, 2], [1, 1, 1, 0, 1, 1, 1]),
}


@pytest.mark.parametrize(("positions", "kept"), RESTART.values(), ids=RESTART)
@pytest.mark.parametrize("impl", ["auto", "sdpa"])
def test_key_positions_must_increase(positions, kept, impl):
    """Causality compares positions: the first of two documents would see tokens of the second."""
    q, k, v = random()
    positions = torch.tensor([list(range(7)), positions])
    where = {"q_positions": positions, "k_positions": positions}
    if kept:
        where["key_mask"] = torch.tensor([[True] * 7, [bool(one) for one in kept]])
    for bias in (None, make("fire", torch.float64)):
        for ask in (attention, attention_plan):
            with pytest.raises(
                ValueError, match=r"must strictly increase .* in sequence 1, position (\d) follows (\d)"
            ):
                ask(q, k, v, bias, **where, impl=impl)
    with pytest.raises(ValueError, match="must strictly increase"):
        attention(q, k, v, prepare_bias(make("alibi"), positions, positions), key_mask=where.get("key_mask"))
    with pytest.raises(ValueError, match="must strictly increase"):
        torch.vmap(lambda k_positions: attention(q, k, v, impl=impl, **{**where, "k_positions": k_positions}))(
            torch.stack([positions, positions])
        )


def test_key_positions_must_increase_in_a_compiled_graph():
    q, k, v = random(dtype=torch.float32)
    compiled = torch.compile(
        lambda positions: attention(q, k, v, q_positions=positions, k_positions=positions),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.testing.assert_close(compiled(torch.arange(7)), attention(q, k, v))
    with pytest.raises(RuntimeError, match="must strictly increase"):
        compiled(torch.tensor([0, 1, 2, 0, 1, 2, 3]))


@pytest.mark.parametrize("shape", [(7, 7), (HEADS, 7, 6), (HEADS, 1, 7)])
def test_a_users_encoding_with_a_bias_of_the_wrong_shape(shape):
    class Wrong(PositionEncoding):
        def bias(self, q_positions, k_positions):
            return torch.zeros(shape)

    with pytest.raises(ValueError, match=r"Wrong\.bias must be \(H, T, S\) or \(B, H, T, S\), not"):
        attention(*random(), Wrong())


MASK = torch.ones(2, 7, dtype=torch.bool)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"impl": "fast"}, ValueError, "no attention engine named 'fast'"),
        ({"impl": "spda"}, ValueError, "Did you mean 'sdpa'"),
        ({"q": torch.zeros(2, 7, 8)}, ValueError, r"q must have shape \(B, heads, length, D\), not \(2, 7, 8\)"),
        ({"q": None}, TypeError, "q must be a tensor, not NoneType"),
        ({"q": torch.zeros(2, 3, 7, 8, dtype=torch.long)}, TypeError, "q must be floating point, not torch.int64"),
        ({"k": torch.zeros(2, 3, 7, 8)}, ValueError, "k must have the dtype of q, torch.float64, not torch.float32"),
        (
            {"v": torch.zeros(2, 3, 7, 8, device="meta").double()},
            ValueError,
            "v must have the device of q, cpu, not meta",
        ),
        ({"v": torch.zeros(2, 3, 6, 8).double()}, ValueError, "k and v must have the same shape"),
        ({"q": torch.zeros(1, 3, 7, 8).double()}, ValueError, "must agree in batch and head size"),
        ({"q": torch.zeros(2, 4, 7, 8).double()}, ValueError, "a multiple of the 3 key heads, not 4"),
        ({"q": torch.zeros(2, 3, 9, 8).double()}, ValueError, "9 queries but only 7 keys"),
        ({"q_positions": torch.arange(7)}, ValueError, "pass both q_positions and k_positions"),
        (
            {"q_positions": torch.arange(6), "k_positions": torch.arange(7)},
            ValueError,
            r"q_positions must have shape .* not \(6,\)",
        ),
        ({"q_positions": torch.arange(7.0), "k_positions": torch.arange(7)}, TypeError, "int64 or int32"),
        ({"key_mask": MASK.long()}, TypeError, "key_mask must be bool .* not torch.int64"),
        ({"key_mask": MASK.float()}, TypeError, "not torch.float32: .* mask == 0 if it is added to the logits"),
        ({"causal": None}, ValueError, "causal must be True or False, not None"),
        ({"causal": "false"}, ValueError, "causal must be True or False, not 'false'"),
        ({"key_mask": MASK[:1]}, ValueError, r"shape \(B, S\) = \(2, 7\), not \(1, 7\)"),
        ({"key_mask": MASK.to("meta")}, ValueError, "key_mask is on meta"),
        ({"key_mask": [[True] * 7] * 2}, TypeError, "key_mask must be a bool tensor, not list"),
        *(
            ({"scale": scale}, ValueError, "scale must be a Python number above 0")
            for scale in (float("nan"), 0.0, -0.3)
        ),
        ({"bias": torch.ones(7, 7, dtype=torch.bool)}, TypeError, "must be floating point, not torch.bool.* key_mask"),
        (dict.fromkeys("kv", torch.zeros(2, 0, 7, 8).double()), ValueError, "multiple of the 0 key heads"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p must be at least 0 and below 1, not 1.0"),
        ({"bias": "fire"}, TypeError, "PositionEncoding, a PreparedBias, a tensor or None, not str"),
        ({"bias": torch.zeros(7, 6)}, ValueError, r"bias of shape \(7, 6\) does not broadcast"),
        ({"bias": torch.zeros(3, 7, 7, device="meta")}, ValueError, "bias is on meta"),
        ({"bias": ALiBi(12)}, ValueError, r"ALiBi has 12 heads, but q \(2, 3, 7, 8\) has 3"),
    ],
)
def test_bad_input(change, error, message):
    q, k, v = random()
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(error, match=message):
        attention(**arguments)
