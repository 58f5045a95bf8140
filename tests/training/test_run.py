"""Runs: skipped if finished, refused if different, resumed wherever they were interrupted."""

import errno
import json
import os
import shutil
import signal
import time

import pytest
from filelock import FileLock
from safetensors import SafetensorError

from longfire import complete_folder
from longfire.complete_folder import MARK
from longfire.data import Sequences
from longfire.training import pretrain
from longfire.training.base_recipe import RENAMED
from longfire.training.checkpoints import checkpoints, discard_incomplete, is_complete, last_complete
from longfire.training.pretrain import PretrainTrainer
from longfire.training.run import _explain
from tests.training.runs import QUIET, RECIPE, StopError, at_step, losses, raises, same_result


@pytest.fixture
def half(corpus, tmp_path):
    """A run that failed at step 10."""
    run = tmp_path / "half"
    with at_step(10, raises(StopError)), pytest.raises(StopError):
        pretrain(RECIPE, corpus, run, **QUIET)
    assert [folder.name for folder in checkpoints(run)] == ["checkpoint-4", "checkpoint-8"]
    return run


@pytest.mark.parametrize("old_names", [False, True])
def test_a_finished_run_is_skipped(undisturbed, corpus, tmp_path, old_names):
    """Including runs of earlier releases. Leftovers of a killed process are deleted."""
    run = shutil.copytree(undisturbed, tmp_path / "run")
    if old_names:
        old = {new: old for old, new in RENAMED.items()}
        identity = json.loads((run / "recipe.json").read_text())
        (run / "recipe.json").write_text(json.dumps({old.get(name, name): identity[name] for name in identity}))
    for name in (".model", "checkpoint-12", "best-4"):
        (run / name).mkdir()
    before = (run / "model" / "model.safetensors").stat().st_mtime_ns
    assert pretrain(RECIPE, corpus, run, **QUIET) == run / "model"
    assert (run / "model" / "model.safetensors").stat().st_mtime_ns == before
    assert {path.name for path in run.iterdir()} == {path.name for path in undisturbed.iterdir()}
    with pytest.raises(ValueError, match=r"a different run \(learning_rate: 0.004 there, 0.001 here\)"):
        pretrain(RECIPE.but(learning_rate=1e-3), corpus, run, **QUIET)


def test_one_process_per_run(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(ValueError, match="another process is training in"):
        pretrain(RECIPE, corpus, tmp_path / "run", **QUIET)


def test_a_damaged_checkpoint_is_never_loaded(half, corpus, undisturbed):
    damaged = half / "checkpoint-8" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    assert not is_complete(half / "checkpoint-8")
    assert last_complete(half).name == "checkpoint-4"
    (half / "checkpoint-11").mkdir()  # never marked
    with (half / "losses.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')  # killed there
    pretrain(RECIPE, corpus, half, **QUIET)
    assert same_result(half, undisturbed)


def test_a_clock_set_back_and_an_end_after_the_last_step(half, corpus, undisturbed):
    """The last two checkpoints by step are kept, and no step is trained after the last one."""
    for folder in checkpoints(half):
        os.utime(folder, (time.time() + 10**6,) * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.training.run.digest", raises(StopError))
        with pytest.raises(StopError):
            pretrain(RECIPE, corpus, half, **QUIET)
    assert [folder.name for folder in checkpoints(half)] == ["checkpoint-8", "checkpoint-12"]
    assert last_complete(half).name == "checkpoint-12"
    pretrain(RECIPE, corpus, half, **QUIET)
    assert same_result(half, undisturbed)


def test_an_unreadable_checkpoint_stays(half, corpus, monkeypatch, caplog):
    """Nothing is trained while the last one cannot be read."""

    def unreadable(name):
        def checksums(file):
            if file.parent.name == name:
                raise OSError(errno.EIO, "Input/output error")
            return original(file)

        monkeypatch.setattr(complete_folder, "checksums", checksums)

    original = complete_folder.checksums
    unreadable("checkpoint-8")
    with pytest.raises(OSError, match=r"checkpoint-8 cannot be read \(Input/output error\)\. Nothing was deleted"):
        pretrain(RECIPE, corpus, half, **QUIET)
    assert [folder.name for folder in checkpoints(half)] == ["checkpoint-4", "checkpoint-8"]
    unreadable("checkpoint-4")
    assert discard_incomplete(half) == []
    assert "checkpoint-4" in caplog.text
    with at_step(9, raises(StopError)), pytest.raises(StopError):
        pretrain(RECIPE, corpus, half, **QUIET)
    assert [step for step, *_ in losses(half)] == list(range(1, 9))  # it resumed from step 8


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OSError, "disk is full; there is no checkpoint yet"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), OSError, "disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc:672]"), OSError, "disk is full"),
        (SafetensorError("Error while serializing: I/O error: … (os error 28)"), OSError, "disk is full"),
        (Exception("No space left on device (os error 28)"), OSError, "disk is full"),  # from tokenizers
        (SafetensorError("Input/output error (os error 5)"), OSError, r"\(os error 5\); there is no checkpoint yet"),
        (RuntimeError("DataLoader worker (pid 1) is killed"), ChildProcessError, "memory ran out; there is no check"),
    ],
)
def test_errors_are_explained(error, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        raise _explain(error, tmp_path)
    assert _explain(ValueError("no"), tmp_path) is None


def test_a_full_disk(corpus, tmp_path, monkeypatch):
    original = PretrainTrainer._save_optimizer_and_scheduler

    def full(self, output_dir):
        if self.state.global_step == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, output_dir)

    monkeypatch.setattr(PretrainTrainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(OSError, match=r"the disk is full; the checkpoint after step 4 is complete\. Free some space"):
        pretrain(RECIPE, corpus, tmp_path / "full", **QUIET)
    assert last_complete(tmp_path / "full").name == "checkpoint-4"


def test_a_lost_data_loader(corpus, tmp_path, monkeypatch):
    """A worker is killed after step 4: the error says so, and the checkpoint is kept."""
    original, first = Sequences.__getitem__, os.getpid()

    def deadly(self, index):
        if os.getpid() != first and (tmp_path / "lost" / "checkpoint-4" / MARK).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, index)

    monkeypatch.setattr(Sequences, "__getitem__", deadly)
    options = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 1}
    with pytest.raises(ChildProcessError, match=r"process died .*the checkpoint after step 4 is complete"):
        pretrain(RECIPE.but(steps=400), corpus, tmp_path / "lost", **QUIET, **options)
