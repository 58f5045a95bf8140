"""Recipes: the paper's numbers, schedules, identities, and optimiser groups."""

from dataclasses import asdict

import pytest
import torch
from transformers import TrainingArguments

from longfire.model import LongfireForCausalLM
from longfire.training import FINETUNE_RECIPES
from longfire.training.base_recipe import RENAMED, translate_fields
from longfire.training.callbacks import TrainingMonitor
from longfire.training.recipes import RECIPES, Recipe, recipe_named
from longfire.training.trainer import RecipeTrainer, split_batch
from tests.model.models import small_model


def test_the_papers_recipes():
    base, large = RECIPES["base"], RECIPES["large"]
    assert (base.length, base.batch_size, base.steps, base.learning_rate) == (2048, 256, 600_000, 6e-4)
    assert (base.dropout, base.attention_dropout, base.position_lr_factor) == (0.0, 0.0, 1.0)
    differing = {key for key, value in asdict(base).items() if asdict(large)[key] != value}
    assert differing == {"name", "size", "learning_rate"}
    assert large.learning_rate == 3e-4
    assert RECIPES["base-512"].length == 512


@pytest.mark.parametrize("name", ["base", "large", "base-512"])
def test_gpt3s_schedule(name):
    """Warm-up over 375 million tokens, decay to a tenth at 260 billion, then constant."""
    recipe = RECIPES[name]
    step_tokens = recipe.batch_size * recipe.length
    assert recipe.warmup_steps * step_tokens == pytest.approx(375e6, rel=1e-3)
    assert recipe.decay_steps * step_tokens == pytest.approx(260e9, rel=1e-5)
    assert recipe.lr_ratio(0) == 1 / recipe.warmup_steps
    assert recipe.lr_ratio(recipe.warmup_steps - 1) == recipe.lr_ratio(recipe.warmup_steps) == 1
    halfway = (recipe.warmup_steps + recipe.decay_steps) // 2
    assert recipe.lr_ratio(halfway) == pytest.approx(0.55, abs=1e-3)
    assert recipe.lr_ratio(recipe.decay_steps) == recipe.lr_ratio(recipe.decay_steps + 10_000) == pytest.approx(0.1)


def test_the_rate_falls_to_a_tenth_at_the_end():
    recipe = RECIPES["small"]
    rates = [recipe.lr_ratio(step) for step in range(recipe.steps)]
    assert rates[: recipe.warmup_steps] == sorted(rates[: recipe.warmup_steps])
    assert rates[recipe.warmup_steps :] == sorted(rates[recipe.warmup_steps :], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_fires_threshold_starts_at_a_quarter_of_the_training_length():
    expected = {"name": "fire", "init_L": 128.0, "horizon": 512, "init": "kerple_log"}
    assert RECIPES["small"].position_encoding() == expected
    given = RECIPES["small"].but(encoding_options={"init_L": 7.0})
    assert given.config(300).position_encoding["init_L"] == 7.0
    assert RECIPES["small"].but(encoding="rope").position_encoding() == {"name": "rope"}


def test_sinusoids_are_scaled_to_the_embeddings():
    """As in their paper, where embeddings have a deviation of 1 and sines 0.7; ours start at 0.02."""
    for size in ("tiny", "small"):
        model = LongfireForCausalLM(RECIPES[size].but(encoding="sinusoidal").config(300))
        sinusoids = model.model.encodings[0].vectors(torch.arange(64))
        tokens = model.model.embed_tokens(torch.arange(64)).detach()
        assert float((sinusoids.square().mean() / tokens.square().mean()).sqrt()) == pytest.approx(0.5**0.5, rel=0.1)


def test_a_horizon_is_in_tokens_or_the_training_length():
    recipe = RECIPES["base"]
    assert "horizon" not in recipe.position_encoding()
    assert recipe.but(horizon=1024).position_encoding()["horizon"] == 1024
    assert recipe.but(horizon=1024, encoding_options={"horizon": 3}).position_encoding()["horizon"] == 3
    assert recipe.but(horizon=1024, encoding="alibi").position_encoding() == {"name": "alibi"}
    assert [recipe.but(horizon="length", length=n).position_encoding()["horizon"] for n in (64, 512)] == [64, 512]


@pytest.mark.parametrize(
    ("horizon", "message"),
    [
        (0, "horizon .* must be at least 1"),
        ("far", "horizon .* must be a whole number"),
        (0.0, "horizon must be above 0"),
        (1.0, "in tokens.*write horizon=length"),
        (2.0, "in tokens.*write horizon=4096"),
        (2, "init_L is 512, above the horizon of 2 tokens.*write horizon=4096"),
    ],
)
def test_a_horizon_as_a_multiple_is_refused_with_a_remedy(horizon, message):
    with pytest.raises((ValueError, TypeError), match=message):
        RECIPES["base"].but(horizon=horizon).config(1)


OLD = {
    **{"warmup": 3, "decay": 9, "final": 0.5, "position_rate": 2.0, "clip": 0.7, "start": "alibi", "share": True},
    **{"batch": 4, "graphs": False, "device_tokens": 99},
}


def test_old_names_work_for_one_release_and_warn():
    recipe = RECIPES["tiny"]
    current = recipe.but(**{RENAMED[name]: value for name, value in OLD.items()})
    with pytest.warns(FutureWarning) as warned:
        assert recipe.but(**OLD) == current
    assert "position_rate=…) is now position_lr_factor" in " ".join(str(one.message) for one in warned)
    given = {name: value for name, value in asdict(recipe).items() if name not in RENAMED.values()}
    with pytest.warns(FutureWarning):
        assert Recipe(**given, **OLD) == current
    with pytest.warns(FutureWarning, match="is now batch_size"):
        assert FINETUNE_RECIPES["tiny"].but(batch=3).batch_size == 3
    with pytest.raises(TypeError, match="start is the old name of init"):
        recipe.but(start="alibi", init="alibi")


def test_records_of_earlier_releases_identify_the_same_run():
    recipe = RECIPES["tiny"].but(length=32)
    old = {new: old for old, new in RENAMED.items()}
    identity, written = recipe.identity(), asdict(recipe)
    assert translate_fields({old.get(name, name): value for name, value in identity.items()}) == identity
    for multiple, horizon in ((1.0, "length"), (4, 128), (None, None)):
        before = {old.get(name, name): value for name, value in written.items()} | {"horizon": multiple}
        assert translate_fields(before) == written | {"horizon": horizon}
    assert translate_fields(written | {"horizon": 32}) == written | {"horizon": 32}


def test_fields_of_fire_do_not_change_other_runs():
    """One ALiBi run serves comparisons with FIRE as published and with FIRE with an init and a horizon."""
    ours, published = (
        RECIPES["small"].but(init=start, horizon=horizon) for start, horizon in (("kerple_log", "length"), (None, None))
    )
    assert ours.identity() != published.identity()
    assert ours.but(encoding="alibi").identity() == published.but(encoding="alibi").identity()
    assert ours.but(horizon=None, encoding_options={"horizon": 512}).identity() == ours.identity()
    assert ours.but(init=None, encoding_options={"horizon": None}).identity() == published.identity()


def test_init_is_a_field_or_an_option_of_the_encoding():
    small = RECIPES["small"].but(init=None)
    for change in ({"init": "kerple_log"}, {"encoding_options": {"init": "kerple_log"}}):
        assert small.but(**change) == small.with_encoding("fire:init=kerple_log") == RECIPES["small"]
    for change in ({"init": None}, {"init": "random"}, {"encoding_options": {"init": "random"}}):
        assert RECIPES["small"].but(**change) == RECIPES["small"].with_encoding("fire:start=None") == small
    made = Recipe("mine", 64, 8, 10, size="tiny", learning_rate=1e-3, encoding_options={"init": "alibi", "log": False})
    assert (made.init, made.encoding_options) == ("alibi", {"log": False})
    assert made.position_encoding()["init"] == "alibi"
    assert RECIPES["small"].but(encoding="rope").position_encoding() == {"name": "rope"}
    published = RECIPES["small"].but(init=None, horizon=None)
    assert published.with_encoding("fire:init=kerple_log,horizon=512").identity() == RECIPES["small"].identity()


def test_smooth_beyond_changes_the_run():
    """Training on a GPU depends on it. At its default, a run is the same as before the option existed."""
    tiny = RECIPES["tiny"]
    finer = tiny.with_encoding("fire:smooth_beyond=256")
    assert finer.config(100).build_encoding().smooth_beyond == 256
    assert finer.identity() != tiny.identity()
    assert "smooth_beyond" not in tiny.identity()["encoding_options"]
    with pytest.raises(ValueError, match="smooth_beyond must be at least 64, not 8"):
        tiny.with_encoding("fire:smooth_beyond=8").config(1)


def test_runs_that_ignored_init_c_are_different_runs():
    """`init` used to override it, so the same recipe gave a different run."""
    given = RECIPES["small"].but(encoding_options={"init_c": 0.5})
    assert given.identity()["init_c_honoured"]
    assert "init_c_honoured" not in given.but(init=None).identity()
    assert "init_c_honoured" not in RECIPES["small"].identity()


@pytest.mark.parametrize("init", ["alibi", None])
def test_a_field_and_an_option_that_contradict_are_refused(init):
    with pytest.raises(ValueError, match="contradict each other"):
        RECIPES["small"].but(init=init, encoding_options={"init": "kerple_log"})
    assert RECIPES["small"].but(init="kerple_log", encoding_options={"init": "kerple_log"}) == RECIPES["small"]


def test_a_threshold_above_the_horizon_is_refused():
    recipe = RECIPES["small"].but(encoding_options={"init_L": 8192})
    with pytest.raises(ValueError, match=r"at most 512, or no horizon: fire:init_L=8192,horizon=None\."):
        recipe.config(1)
    recipe.but(encoding_options={"init_L": 8192, "horizon": None}).config(1)
    RECIPES["small"].but(encoding_options={"init_L": 512, "horizon": 512}).config(
        1
    )  # an explicitly constant normaliser
    RECIPES["small"].but(init=None, encoding_options={"horizon": 64, "threshold": None}).config(1)
    with pytest.raises(ValueError, match="init_L is 128, above the horizon of 64 tokens"):
        RECIPES["small"].but(encoding_options={"horizon": 64}).config(1)


def test_the_vocabulary_is_rounded_up():
    config = RECIPES["small"].config(8193)
    assert (config.vocab_size, config.max_position_embeddings) == (8320, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "huge"}, "the size cannot be 'huge'"),
        ({"encoding": "fier"}, "Did you mean 'fire'"),
        ({"init": "rope"}, "init cannot be 'rope'. Known: None, kerple_log, alibi"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 2**32}, r"seed must be at most 4294967295 \(32 bits\), not 4294967296"),
        ({"precision": "float8"}, "the precision cannot be"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0"),
        ({"lenght": 5}, "a recipe has no field 'lenght'. Did you mean 'length'"),
    ],
)
def test_bad_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        RECIPES["small"].but(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"betas": 3}, r"betas must be numbers, such as \(0.9, 0.95\), not 3 \(int\)"),
        ({"betas": (0.9,)}, r"betas must be numbers, such as \(0.9, 0.95\), not \(0.9,\)"),
        ({"betas": (0.9, 1.5)}, "betas must be at least 0 and below 1"),
        ({"compile": "maybe"}, "compile must be True or False or None, not 'maybe'"),
        ({"cuda_graphs": "yes"}, "cuda_graphs must be True or False or None, not 'yes'"),
        ({"decay_steps": "x"}, "decay_steps must be a whole number or None"),
        ({"steps": True}, "steps must be a whole number, not True"),
        ({"encoding_options": 3}, "encoding_options must be a dictionary, such as {'horizon': 64}, not 3"),
        ({"encoding_options": "x"}, "encoding_options must be a dictionary"),
        ({"length": 1}, "length must be at least 2, not 1"),
    ],
)
def test_values_that_would_fail_later(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RECIPES["tiny"].but(**change)


def test_options_that_the_encoding_refuses():
    for horizon in ("far", 1.5):
        with pytest.raises(ValueError, match=rf"^horizon must be a whole number, not {horizon!r}"):
            RECIPES["tiny"].but(encoding_options={"horizon": horizon}).config(257)


def test_an_init_that_conflicts_with_other_options():
    """Refused without building a model, and checking draws no random numbers, which would change a run's weights."""
    recipe, before = RECIPES["tiny"].but(encoding_options={"log": False}), torch.get_rng_state()
    with pytest.raises(ValueError, match=r"needs log=True.*recipe's init is kerple_log; .*fire:log=False,init=random"):
        recipe.config(1)
    recipe.but(init="alibi").config(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_recipe():
    with pytest.raises(ValueError, match=r"no recipe named 'bse'. Did you mean 'base'"):
        recipe_named("bse")


def test_the_optimiser_has_the_recipes_rates(tmp_path):
    recipe = Recipe("mine", 64, 8, 10, size="tiny", learning_rate=1e-3, position_lr_factor=7.0, weight_decay=0.3)
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    groups = (
        RecipeTrainer(recipe, TrainingMonitor(tmp_path, int, False), callbacks=[], model=small_model(), args=args)
        .create_optimizer()
        .param_groups
    )
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
    recipe = RECIPES["tiny"].but(length=64, batch_size=batch, max_tokens_per_device=tokens)
    assert split_batch(recipe, devices, "cpu") == expected


def test_a_batch_that_cannot_be_split():
    with pytest.raises(ValueError, match="a batch of 32 sequences cannot be divided among 3 processes"):
        split_batch(RECIPES["tiny"], 3, "cpu")
