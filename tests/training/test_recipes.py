"""Recipes: the paper's numbers, schedules, and what optimisers are given."""

from dataclasses import asdict

import pytest
import torch
from transformers import TrainingArguments

from longfire.model import LongfireForCausalLM
from longfire.training.recipes import RECIPES, Recipe, recipe_named
from longfire.training.run import split_batch
from longfire.training.trainer import RecipeTrainer
from tests.model.models import small_model


def test_the_papers_recipes():
    base, large = RECIPES["base"], RECIPES["large"]
    assert (base.length, base.batch, base.steps, base.learning_rate) == (2048, 256, 600_000, 6e-4)
    assert (base.dropout, base.attention_dropout, base.position_rate) == (0.0, 0.0, 1.0)
    differing = {key for key, value in asdict(base).items() if asdict(large)[key] != value}
    assert differing == {"name", "size", "learning_rate"}
    assert large.learning_rate == 3e-4
    assert RECIPES["base-512"].length == 512


@pytest.mark.parametrize("name", ["base", "large", "base-512"])
def test_gpt3s_schedule(name):
    """Warm-up over 375 million tokens, a tenth at 260 billion, and no less."""
    recipe = RECIPES[name]
    step_tokens = recipe.batch * recipe.length
    assert recipe.warmup * step_tokens == pytest.approx(375e6, rel=1e-3)
    assert recipe.decay * step_tokens == pytest.approx(260e9, rel=1e-5)
    assert recipe.rate(0) == 1 / recipe.warmup
    assert recipe.rate(recipe.warmup - 1) == recipe.rate(recipe.warmup) == 1
    halfway = (recipe.warmup + recipe.decay) // 2
    assert recipe.rate(halfway) == pytest.approx(0.55, abs=1e-3)
    assert recipe.rate(recipe.decay) == recipe.rate(recipe.decay + 10_000) == pytest.approx(0.1)


def test_the_rate_falls_to_a_tenth_at_the_end():
    recipe = RECIPES["small"]
    rates = [recipe.rate(step) for step in range(recipe.steps)]
    assert rates[: recipe.warmup] == sorted(rates[: recipe.warmup])
    assert rates[recipe.warmup :] == sorted(rates[recipe.warmup :], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_fires_threshold_begins_at_a_quarter_of_the_training_length():
    expected = {"name": "fire", "init_L": 128.0, "horizon": 512, "init": "kerple_log"}
    assert RECIPES["small"].position_encoding() == expected
    given = RECIPES["small"].but(encoding_options={"init_L": 7.0})
    assert given.config(300).position_encoding["init_L"] == 7.0
    assert RECIPES["small"].but(encoding="rope").position_encoding() == {"name": "rope"}


def test_sinusoids_are_in_proportion_to_the_embeddings():
    """As in their paper, whose embeddings have a deviation of 1 beside sines of 0.7; ours begin with 0.02."""
    for size in ("tiny", "small"):
        model = LongfireForCausalLM(RECIPES[size].but(encoding="sinusoidal").config(300))
        sinusoids = model.model.encodings[0].vectors(torch.arange(64))
        tokens = model.model.embed_tokens(torch.arange(64)).detach()
        assert float((sinusoids.square().mean() / tokens.square().mean()).sqrt()) == pytest.approx(0.5**0.5, rel=0.1)


def test_fires_horizon_is_a_multiple_of_the_training_length():
    recipe = RECIPES["base"]
    assert "horizon" not in recipe.position_encoding()
    assert recipe.but(horizon=0.5).position_encoding()["horizon"] == 1024
    assert recipe.but(horizon=0.5, encoding_options={"horizon": 3}).position_encoding()["horizon"] == 3
    assert recipe.but(horizon=0.5, encoding="alibi").position_encoding() == {"name": "alibi"}
    with pytest.raises(ValueError, match="horizon must be above 0"):
        recipe.but(horizon=0.0)
    with pytest.raises(ValueError, match=r"multiple of the training length, not tokens.*say fire:horizon=512\."):
        recipe.but(horizon=512)
    assert recipe.but(horizon=64).position_encoding()["horizon"] == 64 * 2048


def test_what_only_fire_has_makes_no_other_run_another():
    """A run with ALiBi serves a comparison of FIRE as published and one of FIRE with a start and a horizon."""
    ours, published = (
        RECIPES["small"].but(start=start, horizon=horizon) for start, horizon in (("kerple_log", 1.0), (None, None))
    )
    assert ours.identity() != published.identity()
    assert ours.but(encoding="alibi").identity() == published.but(encoding="alibi").identity()
    assert ours.but(horizon=None, encoding_options={"horizon": 512}).identity() == ours.identity()
    assert ours.but(start=None, encoding_options={"horizon": None}).identity() == published.identity()


def test_start_and_init_are_one_thing():
    """Whichever is given, and wherever: the run is the same, and a folder of one is known by the other."""
    small = RECIPES["small"].but(start=None)
    for change in ({"start": "kerple_log"}, {"init": "kerple_log"}, {"encoding_options": {"init": "kerple_log"}}):
        assert small.but(**change) == RECIPES["small"]
        assert small.but(**change).identity()["start"] == "kerple_log"  # as runs from before `init` have it
    for change in ({"start": None}, {"init": "random"}, {"start": "random"}, {"encoding_options": {"init": "random"}}):
        assert RECIPES["small"].but(**change) == small
    made = Recipe("mine", 64, 8, 10, size="tiny", learning_rate=1e-3, encoding_options={"init": "alibi", "log": False})
    assert (made.start, made.encoding_options) == ("alibi", {"log": False})
    assert made.position_encoding()["init"] == "alibi"
    assert RECIPES["small"].but(encoding="rope").position_encoding() == {"name": "rope"}


def test_runs_that_ignored_init_c_are_not_those_that_honour_it():
    """A start used to overrule it, so the same recipe was another run."""
    given = RECIPES["small"].but(encoding_options={"init_c": 0.5})
    assert given.identity()["init_c_honoured"]
    assert "init_c_honoured" not in given.but(start=None).identity()
    assert "init_c_honoured" not in RECIPES["small"].identity()


@pytest.mark.parametrize(
    "change",
    [
        {"start": "alibi", "init": "kerple_log"},
        {"start": "alibi", "encoding_options": {"init": "kerple_log"}},
        {"start": None, "encoding_options": {"init": "kerple_log"}},
    ],
)
def test_a_start_and_an_init_that_differ_are_refused(change):
    with pytest.raises(ValueError, match="contradict each other: start and init are two names for one thing"):
        RECIPES["small"].but(**change)
    assert RECIPES["small"].but(init="kerple_log", start="kerple_log") == RECIPES["small"]


def test_a_threshold_above_the_horizon_is_refused():
    recipe = RECIPES["small"].but(encoding_options={"init_L": 8192})
    with pytest.raises(ValueError, match=r"at most 512, or no horizon: fire:init_L=8192,horizon=None\."):
        recipe.check()
    recipe.but(encoding_options={"init_L": 8192, "horizon": None}).check()
    RECIPES["small"].but(encoding_options={"init_L": 512, "horizon": 512}).check()  # a constant normaliser, asked for
    RECIPES["small"].but(start=None, encoding_options={"horizon": 64, "threshold": None}).check()
    with pytest.raises(ValueError, match="init_L is 128, above the horizon of 64 tokens"):
        RECIPES["small"].but(encoding_options={"horizon": 64}).check()


def test_the_vocabulary_is_rounded_up():
    config = RECIPES["small"].config(8193)
    assert (config.vocab_size, config.max_position_embeddings) == (8320, 512)


def test_small():
    """23 million parameters, or 27 where the head is counted apart from the embeddings it is tied to."""
    with torch.device("meta"):
        model = LongfireForCausalLM(RECIPES["small"].config(8192))
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(23.1e6, rel=0.01)
    assert count + model.lm_head.weight.numel() == pytest.approx(27.3e6, rel=0.01)
    assert (model.config.num_hidden_layers, model.config.num_attention_heads, model.config.head_dim) == (6, 8, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "huge"}, "the size cannot be 'huge'"),
        ({"encoding": "fier"}, "Did you mean 'fire'"),
        ({"start": "kerple"}, r"start \(FIRE's init\) cannot be 'kerple'"),
        ({"start": "rope"}, r"start \(FIRE's init\) cannot be 'rope'. Known: None, kerple_log, alibi"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 2**32}, r"seed must be at most 4294967295 \(32 bits\), not 4294967296"),
        ({"precision": "float8"}, "the precision cannot be"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0"),
        ({"lenght": 5}, "a recipe has no 'lenght'. Did you mean 'length'"),
    ],
)
def test_bad_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        RECIPES["small"].but(**change)


def test_options_that_the_encoding_refuses():
    with pytest.raises(ValueError, match=r"^horizon must be a whole number, not 'far'"):
        RECIPES["tiny"].but(encoding_options={"horizon": "far"}).config(257)


def test_a_start_that_the_encodings_options_do_not_allow():
    """Is known without a model, and looking at one draws no random numbers, on which a run's weights depend."""
    recipe, before = RECIPES["tiny"].but(encoding_options={"log": False}), torch.get_rng_state()
    with pytest.raises(ValueError, match=r"needs log=True.*recipe's start is kerple_log; .*fire:log=False,init=random"):
        recipe.check()
    recipe.but(start="alibi").check()
    recipe.but(init_from="there").check()  # whose weights they are
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_recipe():
    with pytest.raises(ValueError, match=r"no recipe named 'bse'. Did you mean 'base'"):
        recipe_named("bse")


def test_the_optimiser_has_the_recipes_rates(tmp_path):
    recipe = Recipe("mine", 64, 8, 10, size="tiny", learning_rate=1e-3, position_rate=7.0, weight_decay=0.3)
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    groups = RecipeTrainer(recipe, model=small_model(), args=args).create_optimizer().param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-3, 0.3), (1e-3, 0.0), (7e-3, 0.0)]


@pytest.mark.parametrize(
    ("batch", "devices", "tokens", "expected"),
    [
        (32, 1, 10**9, (32, 1)),
        (32, 2, 10**9, (16, 1)),
        (32, 2, 64 * 5, (4, 4)),
        (6, 1, 64 * 4, (3, 2)),
        (5, 1, 1, (1, 5)),
    ],
)
def test_a_batch_is_split(batch, devices, tokens, expected):
    recipe = RECIPES["tiny"].but(length=64, batch=batch, device_tokens=tokens)
    assert split_batch(recipe, devices, "cpu") == expected


def test_a_batch_that_cannot_be_split():
    with pytest.raises(ValueError, match="a batch of 32 sequences cannot be divided among 3 processes"):
        split_batch(RECIPES["tiny"], 3, "cpu")
