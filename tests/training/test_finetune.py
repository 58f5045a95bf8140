"""Fine-tuning: it learns, the best model is kept, and killed it goes on as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from longfire.model import LongfireForCausalLM, LongfireModel, extend
from longfire.training import FINETUNE_RECIPES, finetune_recipe_named
from longfire.training.callbacks import read_losses
from longfire.training.checkpoints import checkpoints, last_complete
from longfire.training.start import pretrained_by
from tests.training.toys import RECIPE, checkpoint, right, rows, tune

ROOT = Path(__file__).parents[2]
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A pretraining run's."""
    run = tmp_path_factory.mktemp("pretrained")
    (run / "done.json").write_text(json.dumps({"recipe": {"start": "kerple_log"}}))
    return checkpoint(run / "model")


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    tune(source, run, **DROPOUT)
    return run


def losses(run):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in read_losses(run / "losses.jsonl")]


def scores(run):
    found = [(line["step"], line.get("score", line.get("loss"))) for line in read_losses(run / "scores.jsonl")]
    assert len(dict(found)) == len(found), "a step is there twice"
    return dict(found)


def done(run):
    return json.loads((run / "done.json").read_text())


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(found, expected):
    return set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run(whole, source):
    kept = {path.name for path in whole.iterdir()} - {".lock"}
    assert kept == {"recipe.json", "losses.jsonl", "scores.jsonl", "model", "done.json"}
    found = losses(whole)
    assert [step for step, *_ in found] == list(range(1, 21))
    assert found[-1][1] < found[0][1] / 4
    judged = scores(whole)
    assert list(judged) == [4, 8, 12, 16, 20]
    assert judged[4] < 0.9 < max(judged.values())
    said = done(whole)
    assert (said["score"], said["chosen_by"]) == (max(judged.values()), "score")
    assert judged[said["step"]] == said["score"]
    assert said["identity"]["on"] == {"task": "toy"}
    assert said["pretrained_by"] == pretrained_by(whole) == {"init": "kerple_log"}  # and so it is of the tuned one
    assert said["seconds"] > 0
    model = LongfireForCausalLM.from_pretrained(whole / "model")
    assert right(model) == said["score"]
    assert (model.config.resid_dropout, model.config.attention_dropout) == (0.1, 0.1)
    assert AutoTokenizer.from_pretrained(whole / "model").eos_token_id == 0
    assert {path.name for path in (whole / "model").iterdir()} >= {"config.json", "model.safetensors"}
    assert not list((whole / "model").glob("*.bin")) + list((whole / "model").glob("best.json"))


def test_tokens_are_those_of_the_rows(whole):
    """Each of 100 rows three times and a fifth: 320 rows in 20 steps. Padding does not count."""
    total = sum(len(row["input_ids"]) for row in rows(100))
    assert done(whole)["tokens"] == read_losses(whole / "losses.jsonl")[-1]["tokens"]
    assert done(whole)["tokens"] == pytest.approx(3.2 * total, rel=0.02)


def test_what_is_done_is_not_done_again(whole, source):
    before = (whole / "model" / "model.safetensors").stat().st_mtime_ns
    assert tune(source, whole, **DROPOUT) == whole / "model"
    assert (whole / "model" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1e-3}, "learning_rate: 0.01 there, 0.001 here"),
        ({"identity": {"task": "other"}}, "on: {'task': 'toy'} there, {'task': 'other'} here"),
        ({"score": None}, "chosen_by: 'score' there, 'last' here"),
        ({"questions": rows(99)}, "rows: 100 there, 99 here"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(changes, message, whole, source):
    with pytest.raises(ValueError, match=rf"holds another run \({message}"):
        tune(source, whole, **{**DROPOUT, **changes})


def test_another_checkpoint_in_the_same_folder_is_refused(whole, tmp_path):
    with pytest.raises(ValueError, match=r"holds another run \(checkpoint: "):
        tune(checkpoint(tmp_path / "other", "alibi"), whole, **DROPOUT)


def command(source, run, **changes):
    return ["-m", "tests.training.toys", str(source), str(run), json.dumps(changes)]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}


def test_interrupted_while_it_is_judged(source, whole, tmp_path):
    """A checkpoint is saved first, with the best so far."""
    run = tmp_path / "run"

    def stops(model, step):
        if step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return right(model)

    with pytest.raises(KeyboardInterrupt):
        tune(source, run, score=stops, **DROPOUT)
    assert last_complete(run).name == "checkpoint-8"
    tune(source, run, **DROPOUT)
    assert (losses(run), scores(run)) == (losses(whole), scores(whole))
    assert same(weights(run / "model"), weights(whole / "model"))


def test_the_best_is_kept_and_not_the_last(source, tmp_path):
    """Of equals the first."""
    seen = {}

    def score(model, step):
        assert not model.training
        assert not torch.is_grad_enabled()
        seen[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return 7.5 if step in (8, 12) else 1.0

    model = tune(source, tmp_path / "run", score=score)
    assert list(seen) == [4, 8, 12, 16, 20]
    assert (done(tmp_path / "run")["step"], done(tmp_path / "run")["score"]) == (8, 7.5)
    found = LongfireForCausalLM.from_pretrained(model).state_dict()
    assert same(found, seen[8])
    assert not same(found, seen[20])


class StopError(Exception):
    pass


def test_the_best_of_a_checkpoint_stays_as_long_as_the_checkpoint(source, tmp_path):
    run, found = tmp_path / "run", {}

    def stops(model, step):
        found[step] = [folder.name for folder in checkpoints(run, "best")]
        if step == 16:
            raise StopError
        return float(step)

    with pytest.raises(StopError):
        tune(source, run, score=stops, checkpoint_every=6)
    assert found == {4: [], 8: ["best-4"], 12: ["best-4", "best-8"], 16: ["best-4", "best-12"]}
    assert [folder.name for folder in checkpoints(run)] == ["checkpoint-6", "checkpoint-12"]
    tune(source, run, score=lambda model, step: 1.0, checkpoint_every=6)
    assert done(run)["step"] == 12
    assert scores(run) == {4: 4.0, 8: 8.0, 12: 12.0, 16: 1.0, 20: 1.0}


def test_what_was_judged_after_the_checkpoint_is_judged_again(source, tmp_path):
    """A checkpoint is damaged: the one before it is gone on from, with the scores and the best that there were then."""
    run = tmp_path / "run"

    def stops(model, step):
        if step == 16:
            raise StopError
        return {4: 3.0, 8: 5.0, 12: 7.0}[step]

    with pytest.raises(StopError):
        tune(source, run, score=stops)
    (run / "checkpoint-12" / "trainer_state.json").write_text("cut off")
    (run / "best-5").mkdir()  # never got its mark
    tune(source, run, score=lambda model, step: 1.0)
    assert scores(run) == {4: 3.0, 8: 1.0, 12: 1.0, 16: 1.0, 20: 1.0}
    assert (done(run)["step"], done(run)["score"]) == (4, 3.0)


def test_a_best_model_that_was_damaged_after_training(source, tmp_path, monkeypatch):
    """Killed while it was delivered, and damaged: the last one is judged again."""
    run = tmp_path / "run"

    def stops(*_):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr("longfire.training.best_checkpoint.Judging.deliver", stops)
        with pytest.raises(StopError):
            tune(source, run)
    assert checkpoints(run, "best")[-1].name != "best-20"
    for folder in checkpoints(run, "best"):
        (folder / "model.safetensors").write_bytes(b"damaged")
    tune(source, run)
    assert done(run)["step"] == 20


def test_by_the_loss_on_dev_rows(source, tmp_path):
    """Its mean over all targets, whatever batches they are in."""
    dev = rows(21, seed=5)
    model = LongfireForCausalLM.from_pretrained(
        tune(source, tmp_path / "run", score=None, dev_rows=dev, max_tokens_per_device=4 * 32)
    )
    judged = scores(tmp_path / "run")
    said = done(tmp_path / "run")
    assert (said["chosen_by"], said["score"]) == ("loss", min(judged.values()))
    with torch.no_grad():
        each = [
            float(model(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss) for row in dev
        ]
    assert said["score"] == pytest.approx(sum(each) / len(each), rel=1e-4)
    assert judged[20] < judged[4]


def test_the_last_where_nothing_judges(source, tmp_path):
    model = tune(source, tmp_path / "run", score=None, steps=3)
    said = done(tmp_path / "run")
    assert (said["step"], said["score"], said["chosen_by"]) == (3, None, "last")
    assert not (tmp_path / "run" / "scores.jsonl").exists()
    assert not same(weights(model), weights(source))


def test_judging_changes_nothing_that_training_draws(source, whole, tmp_path):
    def score(model, step):
        torch.rand(1000)
        return 0.0

    tune(source, tmp_path / "run", score=score, **DROPOUT)
    assert losses(tmp_path / "run") == losses(whole)


def test_a_score_that_is_no_number(source, tmp_path):
    with pytest.raises(ValueError, match="after step 4 the model's score is nan"):
        tune(source, tmp_path / "run", score=lambda model, step: float("nan"))


def test_dropout_acts_in_training_alone(source, whole, tmp_path):
    tune(source, tmp_path / "none", score=None, steps=1, dropout=0.0, attention_dropout=0.0)
    for one in ("dropout", "attention_dropout"):
        tune(source, tmp_path / one, score=None, steps=1, **{one: 0.5})
        assert losses(tmp_path / one)[0][1] != losses(tmp_path / "none")[0][1]
    model = LongfireForCausalLM.from_pretrained(tmp_path / "dropout" / "model")
    assert {layer.dropout.p for layer in model.model.layers} == {0.5}
    ids = torch.tensor([rows(1)[0]["input_ids"]])
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_accumulated_batches_are_one_batch(source, tmp_path):
    """Rows have one to nine targets, so a mean of means would be another."""
    questions = [
        {**row, "labels": [-100] * (i % 9) + row["input_ids"][i % 9 :]} if i % 2 else row
        for i, row in enumerate(rows(60))
    ]
    for name, tokens in (("whole", 16 * 32), ("parts", 2 * 32)):
        tune(source, tmp_path / name, score=None, steps=4, questions=questions, max_tokens_per_device=tokens)
    for found, expected in zip(losses(tmp_path / "parts"), losses(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


def test_two_processes(source, tmp_path):
    """The same losses and scores as one process with the same batch."""
    changes = {"steps": 6, "checkpoint_every": 3}
    tune(source, tmp_path / "one", **changes)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    start = [*torchrun, *command(source, tmp_path / "two", **changes)]
    finished = subprocess.run(start, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stderr[-3000:]
    for found, expected in zip(losses(tmp_path / "two"), losses(tmp_path / "one"), strict=True):
        assert found == pytest.approx(expected, rel=1e-3)
    assert scores(tmp_path / "two") == scores(tmp_path / "one")
    assert done(tmp_path / "two")["step"] == done(tmp_path / "one")["step"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
def test_a_compiled_model_is_judged_as_it_is_written(source, tmp_path, monkeypatch):
    """Its graphs are for training: in generation there is a cache, and a new length at every step."""
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
    tune(source, tmp_path / "run", score=score, steps=3, evaluate_every=1, compile=True)
    assert compiled


@pytest.mark.parametrize("name", ["rope_pi", "yarn"])
def test_extended_rope_is_tuned_beyond_its_length(name, source, tmp_path):
    model = extend(source, name, 128)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    long = rows(60, shortest=40, longest=100)
    found = tune(model, tmp_path / "run", score=None, questions=long, length=128, steps=12)
    loaded = LongfireForCausalLM.from_pretrained(found)
    assert loaded.config.position_encoding == {"name": name, "trained_length": 32, "target_length": 128}
    assert losses(tmp_path / "run")[-1][1] < losses(tmp_path / "run")[0][1] / 2
    assert same(model.state_dict(), before)
    assert model.config.resid_dropout == 0.0


def test_learned_positions_are_refused_before_anything_begins(tmp_path):
    learned = checkpoint(tmp_path / "learned", "learned")
    with pytest.raises(ValueError, match="the model has 32 positions, too few for sequences of 64"):
        tune(learned, tmp_path / "run", length=64)
    assert not (tmp_path / "run").exists()
    tune(learned, tmp_path / "run", steps=1, score=None)


def test_what_the_checkpoint_was_trained_on_is_kept(source, tmp_path):
    files = [source / "corpus.json", source / "corpus.npy"]
    for file in files:
        file.write_text("{}")
    model = tune(source, tmp_path / "run", score=None, steps=1)
    assert [(model / file.name).read_text() for file in files] == ["{}"] * 2
    for file in files:
        file.unlink()


def test_the_papers_recipes():
    scrolls, glue = FINETUNE_RECIPES["scrolls"], FINETUNE_RECIPES["glue"]
    assert (scrolls.length, scrolls.batch, scrolls.steps, scrolls.learning_rate) == (8192, 128, 25_000, 1e-5)
    assert (glue.length, glue.batch, glue.steps, glue.learning_rate) == (1024, 256, 25_000, 1e-5)
    for recipe in (scrolls, glue):
        assert (recipe.dropout, recipe.attention_dropout, recipe.position_lr_factor) == (0.1, 0.1, 1.0)
        assert {recipe.rate(step) for step in range(recipe.warmup_steps, recipe.steps, 100)} == {1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"dropout": 1.0}, "dropout must be below 1"),
        ({"evaluate_evry": 3}, "a recipe has no 'evaluate_evry'. Did you mean 'evaluate_every'"),
    ],
)
def test_bad_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        RECIPE.but(**change)
    with pytest.raises(ValueError, match=r"no fine-tuning recipe named 'scrols'\. Did you mean 'scrolls'"):
        finetune_recipe_named("scrols")
