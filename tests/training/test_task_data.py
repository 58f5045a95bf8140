"""Training on a synthetic task: rows seen once, a tokenizer for its symbols, resumed runs, and refusals."""

import json
import pickle

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from longfire.tasks.synthetic import IGNORED, PAD, SYNTHETIC
from longfire.training import RECIPES, pretrain
from longfire.training.pretrain import identity, task_collator, training_sequences
from longfire.training.task_data import TaskData
from tests.training.runs import QUIET, StopError, at_step, raises, same_result

RECIPE = RECIPES["task-tiny"].but(size="demo", length=4, steps=6, batch_size=4, log_every=1, checkpoint_every=2)
COPY = TaskData("copy")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "run"
    pretrain(RECIPE, COPY, run, **QUIET)
    return run


def test_a_run(undisturbed):
    done = json.loads((undisturbed / "done.json").read_text())
    assert done["corpus"]["fingerprint"] == COPY.fingerprint
    assert done["tokens_seen"] == done["unique_tokens"] == 6 * 4 * 11  # BOS, 4 symbols, SEP, 4 symbols, EOS
    config = AutoModelForCausalLM.from_pretrained(undisturbed / "model").config
    assert config.max_position_embeddings == 11
    assert config.position_encoding["init_L"] == 11 / 4
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 3)
    tokenizer = AutoTokenizer.from_pretrained(undisturbed / "model")
    assert tokenizer("[BOS] 7 252 [SEP]").input_ids == [1, *COPY.task.encode(["7", "252"]), 2]


def test_resumed_runs_see_the_same_rows(undisturbed, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(StopError), at_step(3, raises(StopError)):
        pretrain(RECIPE, COPY, run, **QUIET)
    pretrain(RECIPE, COPY, run, **QUIET)
    assert same_result(run, undisturbed)


def test_rows_are_padded_and_never_repeat():
    recipe = RECIPE.but(length=10, steps=50)
    rows = training_sequences(recipe, COPY)
    assert len(rows) == 200
    seen = [rows[i] for i in range(len(rows))]
    assert len({tuple(row["input_ids"]) for row in seen if len(row["input_ids"]) > 8}) > 150
    assert {(len(row["input_ids"]) - 3) // 2 for row in seen} == set(range(1, 11))
    batch = task_collator(recipe)(seen[:8])
    assert batch["input_ids"].shape == batch["labels"].shape == (8, 23)
    for row, ids, labels in zip(seen, batch["input_ids"], batch["labels"], strict=False):
        length = len(row["input_ids"])
        assert ids.tolist() == row["input_ids"] + [PAD] * (23 - length)
        assert labels.tolist() == row["labels"] + [IGNORED] * (23 - length)


def test_identity():
    found = identity(RECIPE, COPY)
    assert found["task"] == "copy"
    assert not {"tokenizer", "vocab_size"} & found.keys()
    assert "task" not in RECIPES["tiny"].identity()
    assert TaskData("reverse").fingerprint != COPY.fingerprint
    assert pickle.loads(pickle.dumps(COPY)).fingerprint == COPY.fingerprint


@pytest.mark.parametrize("name", SYNTHETIC)
def test_tokenizers_read_what_tasks_write(name):
    data = TaskData(name)
    tokenizer, task = data.tokenizer, data.task
    row = task.row(task.nearest_length(9), np.random.default_rng(0))["input_ids"]
    assert tokenizer(task.decode(row)).input_ids == row
    assert len(tokenizer) == task.vocab_size


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'copy'"):
        RECIPE.but(task="cpy")
    with pytest.raises(ValueError, match="nearest lengths are 9 and 11"):
        RECIPE.but(task="modular-arithmetic", length=10)
    with pytest.raises(ValueError, match="the recipe's task is 'copy', but the training data is 'sort'"):
        pretrain(RECIPE, TaskData("sort"), tmp_path / "run", **QUIET)
    assert not (tmp_path / "run").exists()
