"""Pretraining from a checkpoint, unchanged or with RoPE extended."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from longfire.cli import main
from longfire.data import load_corpus
from longfire.data.corpus import trained_documents
from longfire.model import LongfireForCausalLM
from longfire.training import RECIPES, pretrain
from longfire.training.initial_model import digest, pretraining_config
from tests.training import runs
from tests.training.runs import QUIET

RECIPE = RECIPES["tiny"].but(encoding="rope", steps=6, batch_size=4, length=32, log_every=1)


@pytest.fixture(scope="module")
def rope(corpus, tmp_path_factory):
    """The run that the others continue from."""
    return pretrain(RECIPE, corpus, tmp_path_factory.mktemp("runs") / "rope", **QUIET).parent


def losses(run):
    return [loss for _, loss, _ in runs.losses(run)]


def test_weights_are_the_checkpoints(rope, corpus, tmp_path):
    """The first loss is close to the checkpoint's last one, not to a new model's."""
    recipe = RECIPE.but(init_from=str(rope), warmup_steps=0, length=64, learning_rate=1e-8, dropout=0.2)
    model = pretrain(recipe.but(steps=1), corpus, tmp_path / "on", **QUIET)
    before, after = load_file(rope / "model" / "model.safetensors"), load_file(model / "model.safetensors")
    assert all(torch.allclose(after[name], before[name], atol=1e-6) for name in before)
    assert losses(tmp_path / "on")[0] < losses(rope)[0] - 0.3
    config = LongfireForCausalLM.from_pretrained(model).config
    assert (config.position_encoding, config.max_position_embeddings) == ({"name": "rope"}, 64)
    assert config.resid_dropout == 0.2
    assert trained_documents(model).tolist() == trained_documents(rope / "model").tolist()
    assert {*trained_documents(model)} == {*corpus.train.contents}


@pytest.mark.parametrize("encoding", ["rope_pi", "yarn"])
def test_further_tuning_at_the_target_length(encoding, rope, corpus, tmp_path):
    recipe = RECIPE.but(init_from=str(rope), encoding=encoding, extend_to=128, length=128, steps=4, learning_rate=1e-3)
    model = LongfireForCausalLM.from_pretrained(pretrain(recipe, corpus, tmp_path / "run", **QUIET))
    assert model.config.position_encoding == {"name": encoding, "trained_length": 32, "target_length": 128}
    assert model.config.max_position_embeddings == 128
    assert losses(tmp_path / "run")[0] < losses(rope)[0] - 0.3
    again = recipe.but(init_from=str(tmp_path / "run"), extend_to=None, steps=1)
    further = LongfireForCausalLM.from_pretrained(pretrain(again, corpus, tmp_path / "further", **QUIET))
    assert further.config.position_encoding == model.config.position_encoding


def test_a_run_knows_its_checkpoint(rope, corpus, tmp_path):
    """By its weights, not its path: another checkpoint at the same path is refused."""
    moved = shutil.copytree(rope / "model", tmp_path / "moved")
    assert digest(moved) == digest(rope)
    recipe = RECIPE.but(init_from=str(rope), steps=2)
    done = pretrain(recipe, corpus, tmp_path / "run", **QUIET)
    assert pretrain(recipe.but(init_from=str(moved)), corpus, tmp_path / "run", **QUIET) == done
    model = LongfireForCausalLM.from_pretrained(moved)
    with torch.no_grad():
        model.model.norm.bias[0] += 1e-3
    model.save_pretrained(moved)
    with pytest.raises(ValueError, match=r"contains a different run \(checkpoint: '\w+' there, '\w+' here\)"):
        pretrain(recipe.but(init_from=str(moved)), corpus, tmp_path / "run", **QUIET)
    with pytest.raises(ValueError, match=r"contains a different run \(checkpoint: '\w+' there, None here\)"):
        pretrain(recipe.but(init_from=None), corpus, tmp_path / "run", **QUIET)


def test_free_options_may_change(corpus, tmp_path):
    """They do not affect what was learned. Others must equal the checkpoint's, or the defaults if it has none."""
    recipe = RECIPE.but(encoding="fire", steps=1)
    run = pretrain(recipe, corpus, tmp_path / "fire", **QUIET).parent
    on = recipe.but(init_from=str(run))
    finer = on.but(encoding_options={"smooth_beyond": 256, "log": True})
    assert pretraining_config(finer).build_encoding().smooth_beyond == 256
    with pytest.raises(ValueError, match=r"but encoding_options are \{'log': False\}"):
        pretraining_config(on.but(encoding_options={"smooth_beyond": 256, "log": False}))


def test_digests_of_models(rope):
    model = LongfireForCausalLM.from_pretrained(rope / "model")
    assert digest(model) == digest(LongfireForCausalLM.from_pretrained(rope / "model"))
    with torch.no_grad():
        model.model.norm.bias[0] += 1e-3
    assert digest(model) != digest(LongfireForCausalLM.from_pretrained(rope / "model"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": "fire"}, "was trained with 'rope', but the recipe has 'fire': use encoding='rope'"),
        ({"encoding": "yarn"}, r"was trained with 'rope', .*'yarn': pass a target length \(--extend-to N\)"),
        ({"size": "tiny"}, r"the recipe's size, 'tiny', is .*: use a recipe of size 'demo' \(--set size=demo\)"),
        ({"encoding_options": {"base": 500.0}}, r"but encoding_options are \{'base': 500.0\}. Omit them"),
        ({"share_position_encoding": True}, "has share_position_encoding=False, but the recipe"),
        ({"encoding": "yarn", "extend_to": 32}, "above the trained length of 32, not 32"),
        ({"init_from": "nowhere"}, "there is no folder nowhere"),
    ],
)
def test_contradictions_are_refused(changes, message, rope, corpus, tmp_path):
    recipe = RECIPE.but(**{"init_from": str(rope), **changes})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(recipe, corpus, tmp_path / "run", **QUIET)
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extend_to": 64}, "the encoding to extend to cannot be 'rope'"),
        ({"extend_to": 64, "encoding": "yarn"}, r"needs a checkpoint with 'rope': pass one \(--from FOLDER\)"),
        ({"extend_to": 0, "encoding": "yarn"}, "extend_to must be at least 1"),
    ],
)
def test_bad_recipes(changes, message):
    with pytest.raises(ValueError, match=message):
        RECIPE.but(**changes)


def test_learned_positions_are_not_extended(corpus, tmp_path):
    recipe = RECIPE.but(encoding="learned", steps=1)
    short = pretrain(recipe, corpus, tmp_path / "learned", **QUIET)
    with pytest.raises(ValueError, match="the model has 32 positions, too few for sequences of 64"):
        pretrain(recipe.but(init_from=str(short), length=64), corpus, tmp_path / "longer", **QUIET)
    model = pretrain(recipe.but(init_from=str(short), length=16), corpus, tmp_path / "shorter", **QUIET)
    assert LongfireForCausalLM.from_pretrained(model).config.max_position_embeddings == 32


def test_another_tokenizer_is_refused(rope, text, tmp_path):
    other = load_corpus(text, tokenizer="bpe", vocab_size=300, cache_dir=tmp_path / "cache", progress=False)
    with pytest.raises(ValueError, match=r"not tokenised with .*--tokenizer .*model"):
        pretrain(RECIPE.but(init_from=str(rope)), other, tmp_path / "run", **QUIET)
    own = load_corpus(text, tokenizer=rope / "model", cache_dir=tmp_path / "cache", progress=False)
    pretrain(RECIPE.but(init_from=str(rope), steps=1), own, tmp_path / "run", **QUIET)
    (rope / "model").joinpath("tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        pretrain(RECIPE.but(init_from=str(rope)), own, tmp_path / "other", **QUIET)
    (tmp_path / "tokenizer.json").rename(rope / "model" / "tokenizer.json")


def test_on_the_command_line(rope, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    arguments = ["pretrain", "tiny", "--from", str(rope / "model"), "--encoding", "yarn", "--extend-to", "64"]
    arguments += ["--length", "64", "--steps", "2", "--batch", "4", "--corpus", str(text), "--tracker", "none"]
    nowhere = [str(tmp_path / "nowhere") if one == str(rope / "model") else one for one in arguments]
    assert main([*nowhere, "--out", str(tmp_path / "run")]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()  # no text was read
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"init_from                {rope / 'model'}" in shown
    assert "position_encoding        {'name': 'yarn', 'trained_length': 32, 'target_length': 64}" in shown
    assert "parameters               1" in shown
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["position_encoding"]["name"] == "yarn"
