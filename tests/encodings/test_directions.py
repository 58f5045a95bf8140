"""Bidirectional FIRE and T5: keys after the query have a bias of their own."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from longfire import FIRE, T5, ALiBi, attention, build_encoding, theorem
from longfire.evaluation.learned import learned_by_layer
from longfire.report.explore_page import is_plain
from tests.samples import bias_with


def two_sided(heads=3, **options) -> FIRE:
    """With sides that differ."""
    fire = FIRE(heads, **{"init_L": 6.0, "bidirectional": True, **options}).double()
    with torch.no_grad():
        for parameter in fire.parameters():
            parameter.add_(0.2 * torch.rand_like(parameter))
    return fire


def by_hand(fire: FIRE, i: int, j: int) -> torch.Tensor:
    """f±(ψ(|i − j|) / ψ(max{L, i, j})) of 1-based positions: one number per head."""

    def psi(x):
        return math.log(abs(fire.c.item()) * x + 1) if fire.log else x

    position = max([i, j] if fire.L is None else [fire.L.item(), i, j])
    position = position if fire.horizon is None else min(position, fire.horizon)
    x = psi(abs(i - j)) / (psi(position) + fire.eps)
    before, after = fire.mlp(torch.tensor([x], dtype=torch.float64)).chunk(2)
    return after if j > i else before


@pytest.mark.parametrize(
    "options", [{}, {"log": False}, {"threshold": "fixed"}, {"threshold": None}, {"horizon": 9}, {"hidden_layers": 0}]
)
def test_formula(options):
    fire, queries, keys = two_sided(**options), [3, 7, 0, 12], list(range(14))
    bias = fire(torch.tensor(queries), torch.tensor(keys))
    for row, i in enumerate(queries):
        for column, j in enumerate(keys):
            torch.testing.assert_close(bias[:, row, column], by_hand(fire, i + 1, j + 1))


def test_keys_up_to_the_query_have_the_bias_of_a_causal_fire():
    fire, causal = two_sided(), FIRE(3, init_L=6.0).double()
    state = {name: value[:3] if name.startswith("mlp.4") else value for name, value in fire.state_dict().items()}
    causal.load_state_dict(state)
    positions = torch.arange(20)
    torch.testing.assert_close(fire(positions, positions).tril(), causal(positions, positions).tril())


@pytest.mark.parametrize("options", [{}, {"init": "kerple_log"}, {"init": "alibi", "log": False}])
def test_both_sides_start_alike(options):
    fire = FIRE(4, bidirectional=True, init_L=30.0, **options)
    bias = fire(torch.arange(20), torch.arange(20))
    torch.testing.assert_close(bias, bias.mT)
    if options.get("init") == "alibi":
        torch.testing.assert_close(bias, ALiBi(4)(torch.arange(20), torch.arange(20)), rtol=1e-4, atol=1e-4)


def test_input_of_the_mlp_stays_in_the_unit_interval():
    x = two_sided().normalized_distance(torch.arange(50), torch.arange(50))
    assert x.min() >= 0
    assert x.max() <= 1


def test_gradients():
    fire = two_sided(heads=2, width=4)
    names, values = zip(*fire.named_parameters(), strict=True)

    def bias(*parameters):
        given = dict(zip(names, parameters, strict=True))
        return bias_with(fire, given, torch.tensor([3, 9]), torch.arange(0, 15, 2))

    assert gradcheck(bias, values)


def test_blocks_equal_the_whole():
    fire = two_sided(width=128)
    q, k = torch.arange(300, 400), torch.arange(700)  # several blocks
    with torch.no_grad():
        assert torch.equal(fire(q, k), fire._bias(q, k))


def test_causal_attention_uses_one_side():
    q, k, v = torch.randn(3, 1, 3, 9, 4, dtype=torch.float64)
    fire, positions = two_sided(), torch.arange(9)
    torch.testing.assert_close(attention(q, k, v, fire), attention(q, k, v, fire(positions, positions)))


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "fire",
            [
                "saved with 6 outputs of its MLP, one per head or",
                "saved with 3 outputs .* num_heads=3, bidirectional=True",
            ],
        ),
        ("t5", [f"saved with bidirectional={saved}, .* Build it with {saved}" for saved in (True, False)]),
    ],
)
def test_checkpoints_of_the_other_kind_are_refused(name, messages):
    one, both = (build_encoding(name, num_heads=3, bidirectional=sides) for sides in (False, True))
    for target, source, message in ((one, both, messages[0]), (both, one, messages[1])):
        with pytest.raises(RuntimeError, match=message):
            target.load_state_dict(source.state_dict())
        nested = torch.nn.ModuleDict({"encoding": target})
        with pytest.raises(RuntimeError, match=f"encoding was {message}"):
            nested.load_state_dict({f"encoding.{key}": value for key, value in source.state_dict().items()})
    both.load_state_dict(both.state_dict())


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (64, 128), (32, 1000), (8, 20), (4, 5), (14, 50)])
def test_buckets_of_t5_equal_transformers(buckets, distance):
    from transformers.models.t5.modeling_t5 import T5Attention

    encoding = T5(2, num_buckets=buckets, max_distance=distance, bidirectional=True)
    q, k = torch.arange(0, 4 * distance, 7), torch.arange(4 * distance)
    theirs = T5Attention._relative_position_bucket(k[None, :] - q[:, None], True, buckets, distance)
    expected = torch.nn.functional.embedding(theirs, encoding.table).permute(2, 0, 1)
    assert torch.equal(encoding(q, k), expected)


def test_bad_options():
    with pytest.raises(ValueError, match="num_buckets must be even with bidirectional=True, not 7"):
        T5(2, num_buckets=7, bidirectional=True)
    with pytest.raises(ValueError, match="num_buckets must be at least 4, not 2"):
        T5(2, num_buckets=2, bidirectional=True)
    with pytest.raises(ValueError, match=r"a quarter of num_buckets=64\) must be at least 17, not 16"):
        T5(2, max_distance=16, bidirectional=True)
    for encoding in (FIRE, T5):
        with pytest.raises(ValueError, match="bidirectional cannot be 'yes'"):
            encoding(2, bidirectional="yes")


def test_what_is_for_one_side_refuses_or_reads_the_keys_before():
    fire = two_sided()
    assert "bidirectional=True" in repr(fire)
    assert "bidirectional=True" in repr(T5(2, bidirectional=True))
    assert not is_plain(fire)
    (learned,) = learned_by_layer([fire], 20)
    assert len(learned["look_back"]) == 3
    q = torch.zeros(1, 3, 4, 4)
    with pytest.raises(ValueError, match="FIRE cannot tell keys after the query"):
        attention(q, q, q, theorem.as_fire(ALiBi(3), exact_length=8), causal=False)
