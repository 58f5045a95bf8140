"""Runs in two processes of one torchrun, sharded and not, against the same in one process."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.training.runs import TORCHRUN, assert_same_to_rounding, command, losses, weights
from tests.training.toys import done, scores, tune

TUNED = {"steps": 6, "checkpoint_every": 3}
ON_CPU = not torch.cuda.is_available()
pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="NCCL refuses two processes on one GPU")


@pytest.fixture(scope="module")
def runs(text, pretrained, tmp_path_factory):
    """The folder of the runs in two processes."""
    folder = tmp_path_factory.mktemp("two")
    asked = {
        "tuned": {"source": str(pretrained), **TUNED},  # first: accelerate remembers that it shards
        "plain": command(text, folder / "plain")[3:],
        "sharded": command(text, folder / "sharded", "--fsdp")[3:],
    }
    if ON_CPU:
        asked["sharded, split"] = command(text, folder / "sharded, split", "--fsdp", "--context-parallel", "2")[3:]
    own = ["-m", "tests.training.sharding", json.dumps({str(folder / name): how for name, how in asked.items()})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LONGFIRE_CACHE": str(folder), "TRITON_INTERPRET": "0"}
    root = Path(__file__).parents[2]
    finished = subprocess.run([*TORCHRUN, *own], env=environment, cwd=root, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder


def assert_sharded(run, yes=True):
    found, of = map(int, run.with_name(f"{run.name}.sharded").read_text().split(" of "))
    assert found == (of if yes else 0)
    assert of > 10


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_the_losses_of_one_process(name, runs, undisturbed):
    run = runs / name
    assert_sharded(run, name == "sharded")
    for found, expected in zip(losses(run), losses(undisturbed), strict=True):
        assert found == pytest.approx(expected, rel=2e-3)
    assert set(weights(run / "model")) == set(weights(undisturbed / "model"))


@pytest.mark.skipif(not ON_CPU, reason="compares to rounding errors")
def test_a_sharded_model_and_split_sequences(runs, undisturbed):
    assert_sharded(runs / "sharded, split")
    assert_same_to_rounding(runs / "sharded, split", undisturbed)


def test_finetuning(runs, pretrained, tmp_path):
    """The same losses and scores as one process with the same batch."""
    tune(pretrained, tmp_path / "one", **TUNED)
    for found, expected in zip(losses(runs / "tuned"), losses(tmp_path / "one"), strict=True):
        assert found == pytest.approx(expected, rel=1e-3)
    assert scores(runs / "tuned") == scores(tmp_path / "one")
    assert done(runs / "tuned")["step"] == done(tmp_path / "one")["step"]
