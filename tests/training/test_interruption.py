"""Ctrl-C and SIGTERM save a checkpoint first, a second Ctrl-C stops at once; all processes stop at the same step."""

import os
import re
import signal
import sys
from types import SimpleNamespace

import pytest

from longfire.cli import main
from longfire.training import callbacks, pretrain
from longfire.training.checkpoints import last_complete
from longfire.training.interruption import Interruption
from tests.training.runs import QUIET, RECIPE, at_step, command, raises, same_result


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_checkpoint_is_saved_first(stop, status, text, corpus, undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    run, handlers = tmp_path / "run", [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with at_step(6, lambda: os.kill(os.getpid(), stop)):
        assert main(command(text, run)[3:]) == status
    assert last_complete(run).name == "checkpoint-6"
    shown = capsys.readouterr().err
    assert "longfire: stopped; the checkpoint after step 6 is complete.\nlongfire: to resume: longfire pre" in shown
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    pretrain(RECIPE, corpus, run, **QUIET)
    assert same_result(run, undisturbed)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_stops_at_once(first, corpus, tmp_path):
    def stop():
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)

    with at_step(6, stop), pytest.raises(KeyboardInterrupt):
        pretrain(RECIPE, corpus, tmp_path / "run", **QUIET)
    assert last_complete(tmp_path / "run").name == "checkpoint-4"


@pytest.mark.parametrize(("first", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_another_sigterm_does_not_cut_off_the_checkpoint(first, status, text, tmp_path, monkeypatch):
    """A worker can receive one from a scheduler, and another from torchrun or from the pool."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))

    def stop():
        for number in (first, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)

    with at_step(6, stop):
        assert main(command(text, tmp_path / "run")[3:]) == status
    assert last_complete(tmp_path / "run").name == "checkpoint-6"


def test_the_bar_ends_before_the_message(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(callbacks.TrainingMonitor, "on_log", raises(KeyboardInterrupt))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(command(text, tmp_path / "run")[3:]) == 130
    *_, bar, blank, stopped, resume, end = capsys.readouterr().err.split("\n")
    assert re.search(r"run: .*1/12 \[.*step", bar)
    assert (blank, stopped, end) == ("", "longfire: stopped; there is no checkpoint yet.", "")
    assert resume.startswith("longfire: to resume: longfire pretrain tiny --corpus ")


def test_several_processes_stop_at_the_same_step(monkeypatch):
    """Where losses are logged, including those that received no signal."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda received, _: received.fill_(1))
    args, control = SimpleNamespace(world_size=2, device="cpu"), SimpleNamespace(should_log=False)
    interruption = Interruption().__enter__()
    interruption.on_step_end(args, None, control)
    assert not control.should_log
    interruption.on_log(args, None, control, logs={"loss": 1.0})
    assert control.should_save
    assert control.should_training_stop
    with pytest.raises(KeyboardInterrupt):
        interruption.__exit__(None, None, None)
