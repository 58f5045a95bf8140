"""Fine-tuning: its result, its identity, and evaluation during training."""

import os
import signal

import pytest
import torch
from transformers import AutoTokenizer

from longfire.model import LongfireForCausalLM, LongfireModel, extend
from longfire.training import FINETUNE_RECIPES, finetune_recipe_named
from longfire.training.callbacks import read_losses
from longfire.training.checkpoints import last_complete
from longfire.training.initial_model import pretrained_by
from tests.training.runs import losses, same_result, same_weights, weights
from tests.training.toys import RECIPE, accuracy, checkpoint, done, rows, scores, tune

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}


@pytest.fixture(scope="module")
def whole(pretrained, tmp_path_factory):
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    tune(pretrained, run, **DROPOUT)
    return run


def test_a_run(whole, pretrained):
    kept = {path.name for path in whole.iterdir()} - {".lock"}
    assert kept == {"recipe.json", "losses.jsonl", "scores.jsonl", "model", "done.json"}
    found = losses(whole)
    assert [step for step, *_ in found] == list(range(1, 21))
    assert found[-1][1] < found[0][1] / 4
    evaluated = scores(whole)
    assert list(evaluated) == [4, 8, 12, 16, 20]
    assert evaluated[4] < 0.9 < max(evaluated.values())
    result = done(whole)
    assert (result["score"], result["chosen_by"]) == (max(evaluated.values()), "score")
    assert evaluated[result["step"]] == result["score"]
    assert result["identity"]["on"] == {"task": "toy"}
    assert result["pretrained_by"] == pretrained_by(whole) == {"init": "kerple_log"}  # the fine-tuned model keeps it
    assert result["seconds"] > 0
    model = LongfireForCausalLM.from_pretrained(whole / "model")
    assert accuracy(model) == result["score"]
    assert (model.config.resid_dropout, model.config.attention_dropout) == (0.1, 0.1)
    assert AutoTokenizer.from_pretrained(whole / "model").eos_token_id == 0
    assert {path.name for path in (whole / "model").iterdir()} >= {"config.json", "model.safetensors"}
    assert not list((whole / "model").glob("*.bin")) + list((whole / "model").glob("best.json"))


def test_tokens_are_those_of_the_rows(whole):
    """3.2 epochs of 100 rows: 320 rows in 20 steps. Padding does not count."""
    total = sum(len(row["input_ids"]) for row in rows(100))
    assert done(whole)["tokens"] == read_losses(whole / "losses.jsonl")[-1]["tokens"]
    assert done(whole)["tokens"] == pytest.approx(3.2 * total, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1e-3}, "learning_rate: 0.01 there, 0.001 here"),
        ({"identity": {"task": "other"}}, "on: {'task': 'toy'} there, {'task': 'other'} here"),
        ({"score": None}, "chosen_by: 'score' there, 'last' here"),
        ({"questions": rows(99)}, "rows: 100 there, 99 here"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(changes, message, whole, pretrained):
    with pytest.raises(ValueError, match=rf"contains a different run \({message}"):
        tune(pretrained, whole, **{**DROPOUT, **changes})


def test_a_finished_run_is_skipped_and_another_checkpoint_refused(whole, pretrained, tmp_path):
    before = (whole / "model" / "model.safetensors").stat().st_mtime_ns
    assert tune(pretrained, whole, **DROPOUT) == whole / "model"
    assert (whole / "model" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"contains a different run \(checkpoint: "):
        tune(checkpoint(tmp_path / "other", "alibi"), whole, **DROPOUT)


def test_interrupted_during_evaluation(pretrained, whole, tmp_path):
    """A checkpoint is saved first, with the best so far."""
    run = tmp_path / "run"

    def stops(model, step):
        if step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return accuracy(model)

    with pytest.raises(KeyboardInterrupt):
        tune(pretrained, run, score=stops, **DROPOUT)
    assert last_complete(run).name == "checkpoint-8"
    tune(pretrained, run, **DROPOUT)
    assert scores(run) == scores(whole)
    assert same_result(run, whole)


def test_by_the_loss_on_dev_rows(pretrained, tmp_path):
    """The mean over all targets, independent of batches."""
    dev = rows(21, seed=5)
    model = LongfireForCausalLM.from_pretrained(
        tune(pretrained, tmp_path / "run", score=None, dev_rows=dev, max_tokens_per_device=4 * 32)
    )
    evaluated = scores(tmp_path / "run")
    result = done(tmp_path / "run")
    assert (result["chosen_by"], result["score"]) == ("loss", min(evaluated.values()))
    with torch.no_grad():
        each = [
            float(model(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss) for row in dev
        ]
    assert result["score"] == pytest.approx(sum(each) / len(each), rel=1e-4)
    assert evaluated[20] < evaluated[4]


def test_without_evaluation_the_last_model_is_kept(pretrained, tmp_path):
    model = tune(pretrained, tmp_path / "run", score=None, steps=3)
    result = done(tmp_path / "run")
    assert (result["step"], result["score"], result["chosen_by"]) == (3, None, "last")
    assert not (tmp_path / "run" / "scores.jsonl").exists()
    assert not same_weights(weights(model), weights(pretrained))


def test_evaluation_does_not_affect_training(pretrained, whole, tmp_path):
    def score(model, step):
        torch.rand(1000)
        return 0.0

    tune(pretrained, tmp_path / "run", score=score, **DROPOUT)
    assert losses(tmp_path / "run") == losses(whole)


def test_dropout_acts_in_training_alone(pretrained, whole, tmp_path):
    tune(pretrained, tmp_path / "none", score=None, steps=1, dropout=0.0, attention_dropout=0.0)
    for one in ("dropout", "attention_dropout"):
        tune(pretrained, tmp_path / one, score=None, steps=1, **{one: 0.5})
        assert losses(tmp_path / one)[0][1] != losses(tmp_path / "none")[0][1]
    model = LongfireForCausalLM.from_pretrained(tmp_path / "dropout" / "model")
    assert {layer.dropout.p for layer in model.model.layers} == {0.5}
    ids = torch.tensor([rows(1)[0]["input_ids"]])
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_accumulated_batches_are_one_batch(pretrained, tmp_path):
    """Rows have one to nine targets, so a mean of means would differ."""
    questions = [
        {**row, "labels": [-100] * (i % 9) + row["input_ids"][i % 9 :]} if i % 2 else row
        for i, row in enumerate(rows(60))
    ]
    for name, tokens in (("whole", 16 * 32), ("parts", 2 * 32)):
        tune(pretrained, tmp_path / name, score=None, steps=4, questions=questions, max_tokens_per_device=tokens)
    for found, expected in zip(losses(tmp_path / "parts"), losses(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
def test_a_compiled_model_is_evaluated_uncompiled(pretrained, tmp_path, monkeypatch):
    """Its graphs are for training; generation has a cache and a new length at every step."""
    compiled = []

    def compile_layers(self):
        for layer in self.layers:
            layer.compile(fullgraph=True, backend=lambda graph, _: compiled.append(graph) or graph.forward)

    monkeypatch.setattr(LongfireModel, "compile_layers", compile_layers)

    def score(model, step):
        before = len(compiled)
        out = model.generate(torch.tensor([[1, 11, 12, 30]]), max_new_tokens=3, do_sample=False, pad_token_id=0)
        assert len(compiled) == before
        return float(out.shape[1])

    torch.compiler.reset()
    tune(pretrained, tmp_path / "run", score=score, steps=3, evaluate_every=1, compile=True)
    assert compiled


@pytest.mark.parametrize("name", ["rope_pi", "yarn"])
def test_extended_rope_is_tuned_beyond_its_length(name, pretrained, tmp_path):
    model = extend(pretrained, name, 128)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    long = rows(60, shortest=40, longest=100)
    found = tune(model, tmp_path / "run", score=None, questions=long, length=128, steps=12)
    loaded = LongfireForCausalLM.from_pretrained(found)
    assert loaded.config.position_encoding == {"name": name, "trained_length": 32, "target_length": 128}
    assert losses(tmp_path / "run")[-1][1] < losses(tmp_path / "run")[0][1] / 2
    assert same_weights(model.state_dict(), before)
    assert model.config.resid_dropout == 0.0


def test_learned_positions_are_refused_before_training(tmp_path):
    learned = checkpoint(tmp_path / "learned", "learned")
    with pytest.raises(ValueError, match="the model has 32 positions, too few for sequences of 64"):
        tune(learned, tmp_path / "run", length=64)
    assert not (tmp_path / "run").exists()
    tune(learned, tmp_path / "run", steps=1, score=None)


def test_the_corpus_description_is_copied(pretrained, tmp_path):
    files = [pretrained / "corpus.json", pretrained / "corpus.npy"]
    for file in files:
        file.write_text("{}")
    model = tune(pretrained, tmp_path / "run", score=None, steps=1)
    assert [(model / file.name).read_text() for file in files] == ["{}"] * 2
    for file in files:
        file.unlink()


def test_the_papers_recipes():
    scrolls, glue = FINETUNE_RECIPES["scrolls"], FINETUNE_RECIPES["glue"]
    assert (scrolls.length, scrolls.batch_size, scrolls.steps, scrolls.learning_rate) == (8192, 128, 25_000, 1e-5)
    assert (glue.length, glue.batch_size, glue.steps, glue.learning_rate) == (1024, 256, 25_000, 1e-5)
    for recipe in (scrolls, glue):
        assert (recipe.dropout, recipe.attention_dropout, recipe.position_lr_factor) == (0.1, 0.1, 1.0)
        assert {recipe.lr_ratio(step) for step in range(recipe.warmup_steps, recipe.steps, 100)} == {1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"dropout": 1.0}, "dropout must be below 1"),
        ({"evaluate_evry": 3}, "a recipe has no field 'evaluate_evry'. Did you mean 'evaluate_every'"),
    ],
)
def test_bad_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        RECIPE.but(**change)
    with pytest.raises(ValueError, match=r"no fine-tuning recipe named 'scrols'\. Did you mean 'scrolls'"):
        finetune_recipe_named("scrols")
