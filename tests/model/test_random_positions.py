"""Randomised positions in the model: drawn once per sequence, for all layers, and reproducible."""

import json
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn

from longfire.evaluation.scoring import HEAD, Scorer
from longfire.model import LongfireForCausalLM
from longfire.model.inspection import check_length
from longfire.training.initial_model import digest
from tests.model.models import small_config, small_model, tokens

RANGE = 300
IMPLEMENTATIONS = ["longfire", "sdpa", "eager"]


def drawing(name="fire", implementation="longfire", **changes):
    return small_model(name, implementation, random_positions=RANGE, **changes)


@torch.no_grad()
def logits(model, ids, **options):
    return model(ids, use_cache=False, **options).logits


@contextmanager
def received(model, hook):
    """The positions that each call of an encoding's hook receives."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for encoding in model.model.encodings:
            patch.setattr(encoding, hook, partial(_note, found, getattr(encoding, hook)))
        yield found


def _note(found, own, *arguments):
    found.append(arguments[-1])
    return own(*arguments)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("name", "hook"), [("fire", "bias"), ("rope", "rotate"), ("sinusoidal", "embed")])
def test_all_layers_receive_the_same_drawn_positions(name, hook, implementation):
    model, ids = drawing(name, implementation).train(), tokens(4, 20)
    with received(model, hook) as found:
        model(ids)
    assert len(found) >= {"bias": 2, "rotate": 4, "embed": 1}[hook]
    drawn = found[0]
    assert all(torch.equal(positions, drawn) for positions in found)
    assert drawn.shape == (4, 20)
    assert (drawn.diff() > 0).all()
    assert drawn.max() < RANGE
    assert len({tuple(row) for row in drawn.tolist()}) == 4


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["fire", "rope"])
def test_drawn_positions_act_like_position_ids(name, implementation):
    model, ids = drawing(name, implementation), tokens(2, 12)
    with received(model, "bias" if name == "fire" else "rotate") as found:
        drawn = logits(model, ids)
    plain = small_model(name, implementation)
    torch.testing.assert_close(drawn, logits(plain, ids, position_ids=found[0]), rtol=1e-4, atol=1e-4)
    in_order = torch.arange(12)[None]
    assert torch.equal(logits(model, ids, position_ids=in_order), logits(plain, ids, position_ids=in_order))
    assert not torch.allclose(drawn, logits(plain, ids), atol=1e-2)


def test_evaluation_repeats_and_training_does_not():
    model, ids = drawing(), tokens(2, 12)
    state = torch.get_rng_state()
    assert torch.equal(logits(model, ids), logits(model, ids))
    assert torch.equal(torch.get_rng_state(), state)
    model.train()
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append([logits(model, ids) for _ in range(2)])
    (first, second), again = found
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding", [slice(0, 3), slice(9, 12)], ids=["left", "right"])
def test_padding_changes_nothing(padding, implementation):
    model, ids = drawing(implementation=implementation), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[:, padding] = 0
    kept = mask[0].bool()
    padded = logits(model, ids, attention_mask=mask)[:, kept]
    torch.testing.assert_close(padded, logits(model, ids[:, kept]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [False, True])
def test_compiled_layers(share):
    torch.compiler.reset()
    model, ids = drawing(share_position_encoding=share), tokens(2, 12)
    expected = logits(model, ids)
    for layer in model.model.layers:
        layer.compile(fullgraph=True, backend="eager")
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-4, atol=1e-4)
    model.train()(ids, labels=ids).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.model.encodings[0].parameters())


def test_a_compiled_graph_of_the_whole_model_is_refused():
    torch.compiler.reset()
    with pytest.raises(Exception, match="cannot be drawn in a compiled graph"):
        torch.compile(drawing(), fullgraph=True, backend="eager")(tokens(1, 5), use_cache=False)


def test_generation_needs_no_cache():
    model, ids = drawing(), tokens(2, 6)
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    expected = ids
    for _ in range(3):
        expected = torch.cat([expected, logits(model, expected)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(model.generate(ids, use_cache=False, **options), expected)
    with pytest.raises(ValueError, match="Pass use_cache=False"):
        model.generate(ids, **options)


def test_too_many_tokens_are_refused():
    model = drawing()
    assert logits(model, tokens(1, RANGE)).isfinite().all()
    with pytest.raises(ValueError, match="positions below 300 are too few for 301 tokens"):
        logits(model, tokens(1, RANGE + 1))
    with pytest.raises(ValueError, match="too few for 301 tokens"):
        check_length(model, RANGE + 1)


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("learned", 129, "random_positions=129 exceeds the 128 positions of Learned"),
        ("fire", 0, "random_positions must be at least 1"),
        ("fire", 2.5, "random_positions"),
    ],
)
def test_impossible_ranges(name, limit, message):
    with pytest.raises(Exception, match=message):
        small_config(name, random_positions=limit)


def test_learned_positions_within_their_limit():
    assert logits(small_model("learned", random_positions=128), tokens(2, 9)).isfinite().all()


def test_saved_with_the_model(tmp_path):
    model, ids = drawing(), tokens(2, 9)
    model.save_pretrained(tmp_path / "drawing")
    loaded = LongfireForCausalLM.from_pretrained(tmp_path / "drawing")
    assert loaded.config.random_positions == RANGE
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_checkpoints_of_earlier_releases(tmp_path):
    model, ids = small_model(), tokens(2, 9)
    model.save_pretrained(tmp_path)
    now = digest(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config.pop("random_positions"), config.pop("sliding_window")) == (None, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = LongfireForCausalLM.from_pretrained(tmp_path)
    assert (loaded.config.random_positions, loaded.config.sliding_window) == (None, None)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert digest(tmp_path) == now


def test_scoring_draws_the_models_positions():
    model, ids = drawing(), tokens(3, 20)
    scorer = Scorer(model)
    assert scorer.way == HEAD
    expected = nn.functional.cross_entropy(logits(model, ids)[:, :-1].mT, ids[:, 1:], reduction="none")
    torch.testing.assert_close(scorer(ids), expected, rtol=1e-4, atol=1e-4)
