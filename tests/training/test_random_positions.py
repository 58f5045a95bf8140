"""Training with randomised positions: reproducible, resumable, on text and on tasks."""

import pytest
import torch

from longfire.data import load_corpus
from longfire.evaluation.accuracy import accuracy_by_length
from longfire.model import LongfireForCausalLM
from longfire.tasks.synthetic import synthetic_task
from longfire.training import RECIPES, pretrain
from longfire.training.initial_model import pretraining_config
from longfire.training.pretrain import task_collator, training_sequences
from longfire.training.task_data import TaskData
from tests.training.runs import QUIET, RECIPE, StopError, at_step, losses, raises, same_result

TEXT = RECIPE.but(random_positions=256, batch_size=8)
TASK = RECIPES["task-tiny"].but(
    length=5, steps=8, batch_size=4, size="demo", random_positions=64, log_every=1, checkpoint_every=4
)


@pytest.fixture(scope="module")
def short_text(tmp_path_factory):
    """Two steps per epoch."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "text.txt").write_text("".join(chr(97 + n * n % 23) for n in range(700)))
    return load_corpus(folder / "text.txt", tokenizer="bytes", cache_dir=folder / "cache", progress=False)


@pytest.mark.parametrize("recipe", [TEXT, TASK], ids=["text", "task"])
def test_a_resumed_run_equals_an_uninterrupted_one(recipe, short_text, tmp_path):
    data = short_text if recipe.task is None else TaskData(recipe.task)
    whole, half = tmp_path / "whole", tmp_path / "half"
    pretrain(recipe, data, whole, **QUIET)
    with at_step(7, raises(StopError)), pytest.raises(StopError):
        pretrain(recipe, data, half, **QUIET)
    pretrain(recipe, data, half, **QUIET)
    assert same_result(half, whole)
    pretrain(recipe.but(random_positions=None), data, tmp_path / "counted", **QUIET)
    assert losses(tmp_path / "counted") != losses(whole)
    model = LongfireForCausalLM.from_pretrained(whole / "model")
    assert model.config.random_positions == recipe.random_positions
    if recipe.task is not None:
        found = [accuracy_by_length(model, data.task, [5, 20, 40], questions=8) for _ in range(2)]
        assert found[0] == found[1]
        *tested, last = found[0]["rows"]
        assert all(row["token_accuracy"] >= 0 for row in tested)
        assert "too few for 83 tokens" in last["failed"]


def test_rows_of_a_task_tell_tokens_from_padding():
    rows = [training_sequences(TASK, TaskData("copy"))[i] for i in range(8)]
    batch = task_collator(TASK)(rows)
    assert batch["input_ids"].shape == (8, TASK.sequence_length)
    assert torch.equal(batch["attention_mask"], (batch["input_ids"] != 0).long())
    assert "attention_mask" not in task_collator(TASK.but(random_positions=None))(rows)


def test_recipes():
    assert "random_positions" not in RECIPE.identity()
    assert TEXT.identity()["random_positions"] == 256
    assert TEXT.config(257).random_positions == 256
    assert RECIPE.config(257).random_positions is None
    with pytest.raises(ValueError, match="positions below 31 are too few for 32 tokens"):
        RECIPE.but(random_positions=31)
    tokens = synthetic_task("copy").sequence_length(40)
    with pytest.raises(ValueError, match=f"too few for {tokens} tokens"):
        TASK.but(length=40)
    with pytest.raises(TypeError, match="whole number"):
        RECIPE.but(random_positions="far")
    with pytest.raises(ValueError, match="exceeds the 32 positions of Learned"):
        TEXT.but(encoding="learned").config(257)


def test_a_checkpoint_keeps_its_range(tmp_path):
    LongfireForCausalLM(TEXT.config(257)).save_pretrained(tmp_path)
    assert pretraining_config(TEXT.but(init_from=str(tmp_path))).random_positions == 256
    with pytest.raises(ValueError, match="has random_positions=256, but the recipe has None"):
        pretraining_config(RECIPE.but(init_from=str(tmp_path)))
