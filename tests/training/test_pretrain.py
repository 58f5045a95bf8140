"""Training: killed, cut off, diverged, out of space, in one process and in two."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from longfire.cli import main
from longfire.data import Sequences, load_corpus
from longfire.training import RECIPES, callbacks, pretrain
from longfire.training import checkpoints as module
from longfire.training.callbacks import DivergedError, read_losses
from longfire.training.checkpoints import MARK, checkpoints, is_complete, last_complete
from longfire.training.interruption import Interruption
from longfire.training.pretrain import plays_graphs
from longfire.training.trainer import PretrainTrainer

RECIPE = RECIPES["tiny"].but(steps=12, batch_size=4, length=32, log_every=1, checkpoint_every=4)
ON_THE_COMMAND_LINE = ["--steps", "12", "--batch", "4", "--length", "32", "--set", "log_every=1", "checkpoint_every=4"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name in ("argparse", "ast", "calendar", "csv", "dis", "enum", "glob", "heapq", "inspect", "json/decoder"):
        source = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        (folder / f"{source.stem}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory):
    return load_corpus(text, tokenizer="bytes", cache_dir=tmp_path_factory.mktemp("cache"), progress=False)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    return run


def losses(run):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in read_losses(run / "losses.jsonl")]


def command(text, out, *more):
    return [sys.executable, "-m", "longfire", "pretrain", "tiny", "--corpus", str(text), "--tokenizer", "bytes",
            "--out", str(out), "--tracker", "none", *ON_THE_COMMAND_LINE, *more]  # fmt: skip


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, "OMP_NUM_THREADS": "1", "LONGFIRE_CACHE": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"}


def test_a_run(whole, corpus):
    kept = {path.name for path in whole.iterdir()} - {".lock"}
    assert kept == {"recipe.json", "losses.jsonl", "model", "done.json"}
    done = json.loads((whole / "done.json").read_text())
    assert done["tokens_seen"] == 12 * 4 * 32
    assert done["corpus"]["fingerprint"] == corpus.fingerprint
    assert done["provenance"]["versions"]["torch"] == torch.__version__
    found = losses(whole)
    assert [step for step, *_ in found] == list(range(1, 13))
    assert found[-1][1] < found[0][1] - 0.3
    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    ids = tokenizer("def main():", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape == (1, ids.shape[1], model.config.vocab_size)
    assert model.config.position_encoding == {"name": "fire", "init_L": 8.0, "horizon": 32, "init": "kerple_log"}


def test_without_a_terminal_progress_is_told_in_lines(corpus, tmp_path, monkeypatch, capsys):
    """At the start, at every tenth whether or not a loss is logged there, at the end; and every so many seconds."""
    pretrain(RECIPE.but(steps=20, checkpoint_every=50, log_every=8), corpus, tmp_path / "short", tracker="none")
    begins, *lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("short: ")]
    assert begins == "short: begins; 20 steps, 2,560 tokens"
    assert [line.partition(",")[0] for line in lines] == [f"short: step {step} of 20" for step in range(2, 21, 2)]
    assert re.search(r"step 8 of 20, loss \d\.\d{3}, [\d,]+ tokens/s, 00:0\d left$", lines[3])
    assert re.search(r"step 10 of 20, [\d,]+ tokens/s, 00:0\d left$", lines[4])
    assert re.search(r"step 20 of 20, loss \d\.\d{3}, [\d,]+ tokens/s$", lines[-1])
    monkeypatch.setattr(callbacks, "LINE_EVERY", 0.0)
    assert all(callbacks.Lines(10**6).are_due(step) for step in (1, 2))


def test_when_it_is_stopped_the_bar_ends_before_that_is_said(text, tmp_path, monkeypatch, capsys):
    def stop(self, args, state, control, **_):
        raise KeyboardInterrupt

    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(callbacks.Watch, "on_log", stop)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(command(text, tmp_path / "run")[3:]) == 130
    *_, bar, blank, said, resume, end = capsys.readouterr().err.split("\n")
    assert re.search(r"run: .*1/12 \[.*step", bar)
    assert (blank, said, end) == ("", "longfire: stopped; there is no checkpoint yet.", "")
    assert resume.startswith("longfire: to resume: longfire pretrain tiny --corpus ")


def test_a_run_that_is_done_is_not_done_again(whole, corpus):
    before = (whole / "model" / "model.safetensors").stat().st_mtime_ns
    assert pretrain(RECIPE, corpus, whole, tracker="none", progress=False) == whole / "model"
    assert (whole / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_another_run_in_the_same_folder_is_refused(whole, corpus):
    with pytest.raises(ValueError, match=r"holds another run \(learning_rate: 0.004 there, 0.001 here\)"):
        pretrain(RECIPE.but(learning_rate=1e-3), corpus, whole, tracker="none", progress=False)


class StopError(Exception):
    pass


def raises(error):
    def function(*_, **__):
        raise error

    return function


@contextmanager
def at_step(step, act):
    """Something happens when a step ends."""
    original = callbacks.Watch.on_step_end

    def on_step_end(self, args, state, control, **options):
        original(self, args, state, control, **options)
        if state.global_step == step:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks.Watch, "on_step_end", on_step_end)
        yield


@pytest.fixture
def half(corpus, tmp_path):
    """A run that ended with an error at step 10."""
    run = tmp_path / "half"
    with at_step(10, raises(StopError)), pytest.raises(StopError):
        pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert [folder.name for folder in checkpoints(run)] == ["checkpoint-4", "checkpoint-8"]
    return run


def same_model(run, other):
    found, expected = (load_file(one / "model" / "model.safetensors") for one in (run, other))
    return all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_checkpoint_that_was_cut_off_is_never_loaded(half, corpus, whole):
    damaged = half / "checkpoint-8" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    assert not is_complete(half / "checkpoint-8")
    assert last_complete(half).name == "checkpoint-4"
    (half / "checkpoint-11").mkdir()  # never got its mark
    with (half / "losses.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')  # killed there
    pretrain(RECIPE, corpus, half, tracker="none", progress=False)
    assert losses(half) == losses(whole)


def test_a_clock_that_was_set_back_and_an_end_after_the_last_step(half, corpus, whole):
    """The last two checkpoints stay, by their steps; and from the last one no step is trained."""
    for folder in checkpoints(half):
        os.utime(folder, (time.time() + 10**6,) * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.training.run.digest", raises(StopError))
        with pytest.raises(StopError):
            pretrain(RECIPE, corpus, half, tracker="none", progress=False)
    assert [folder.name for folder in checkpoints(half)] == ["checkpoint-8", "checkpoint-12"]
    assert last_complete(half).name == "checkpoint-12"
    pretrain(RECIPE, corpus, half, tracker="none", progress=False)
    assert losses(half) == losses(whole)
    assert same_model(half, whole)


def test_a_checkpoint_that_cannot_be_read_for_once_stays(half, corpus, whole, monkeypatch, caplog):
    """Nothing is trained while the last one cannot be read; an older one is named."""

    def unreadable(name):
        def checksum(file):
            if file.parent.name == name:
                raise OSError(errno.EIO, "Input/output error")
            return original(file)

        monkeypatch.setattr("longfire.training.checkpoints.checksum", checksum)

    original = module.checksum
    unreadable("checkpoint-8")
    with pytest.raises(
        OSError, match=r"checkpoint-8 cannot be read \(Input/output error\)\. Nothing was deleted\. Start"
    ):
        pretrain(RECIPE, corpus, half, tracker="none", progress=False)
    assert [folder.name for folder in checkpoints(half)] == ["checkpoint-4", "checkpoint-8"]
    unreadable("checkpoint-4")
    assert module.discard_incomplete(half) == []
    assert "checkpoint-4 is left as it is" in caplog.text
    with at_step(9, raises(StopError)), pytest.raises(StopError):
        pretrain(RECIPE, corpus, half, tracker="none", progress=False)
    assert [line[0] for line in losses(half)] == list(range(1, 9))  # it went on from step 8


def test_a_mark_is_of_every_file(tmp_path):
    folder = tmp_path / "checkpoint-1"
    with pytest.raises(FileNotFoundError, match="was deleted while it was written"):
        module.mark_complete(folder)
    assert not folder.exists()
    folder.mkdir()
    assert not is_complete(folder)
    (folder / "a").write_bytes(b"something")
    (folder / "b").write_bytes(b"")
    module.mark_complete(folder)
    assert is_complete(folder)
    assert set(json.loads((folder / MARK).read_text())) == {"a", "b"}
    (folder / "a").write_bytes(b"somethinh")
    assert not is_complete(folder)
    (folder / "a").unlink()
    assert not is_complete(folder)


def test_what_a_killed_command_did_not_clean_up(corpus, whole, tmp_path):
    """Even where the run is done."""
    run = shutil.copytree(whole, tmp_path / "run")
    for name in (".model", "checkpoint-12", "best-4"):
        (run / name).mkdir()
    before = (run / "model" / "model.safetensors").stat().st_mtime_ns
    pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert {path.name for path in run.iterdir()} == {path.name for path in whole.iterdir()}
    assert (run / "model" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_checkpoint_is_saved_before_it_stops(stop, status, text, corpus, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    run, handlers = tmp_path / "run", [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with at_step(6, lambda: os.kill(os.getpid(), stop)):
        assert main(command(text, run)[3:]) == status
    assert last_complete(run).name == "checkpoint-6"
    said = capsys.readouterr().err
    assert "longfire: stopped; the checkpoint after step 6 is complete.\nlongfire: to resume: longfire pretrain" in said
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert losses(run) == losses(whole)
    assert same_model(run, whole)


def test_twice_it_stops_at_once(corpus, tmp_path):
    def stop():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with at_step(6, stop), pytest.raises(KeyboardInterrupt):
        pretrain(RECIPE, corpus, tmp_path / "run", tracker="none", progress=False)
    assert last_complete(tmp_path / "run").name == "checkpoint-4"


def test_several_processes_stop_at_the_same_step(monkeypatch):
    """All of them where losses are logged, also those that heard nothing."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda heard, _: heard.fill_(1))
    args, control = SimpleNamespace(world_size=2, device="cpu"), SimpleNamespace(should_log=False)
    interruption = Interruption().__enter__()
    interruption.on_step_end(args, None, control)
    assert not control.should_log
    interruption.on_log(args, None, control, logs={"loss": 1.0})
    assert control.should_save
    assert control.should_training_stop
    with pytest.raises(KeyboardInterrupt):
        interruption.__exit__(None, None, None)


def test_a_loss_that_is_not_finite(corpus, tmp_path):
    """Ends with a message, and what was saved before is still there."""
    run = tmp_path / "diverged"

    def nan_at_6(self, step):
        return float("nan") if step == 5 else 0.01

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.training.recipes.Recipe.rate", nan_at_6)
        with pytest.raises(DivergedError, match=r"the loss is nan at step 7 .* training diverged. What was saved"):
            pretrain(RECIPE.but(encoding="alibi"), corpus, run, tracker="none", progress=False)
    assert last_complete(run).name == "checkpoint-4"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:672]"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # as tokenizers has it
    ],
)
def test_a_full_disk(error, corpus, tmp_path):
    run = tmp_path / "full"
    original = PretrainTrainer._save_optimizer_and_scheduler

    def full(self, output_dir):
        if self.state.global_step == 8:
            raise error
        original(self, output_dir)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainTrainer, "_save_optimizer_and_scheduler", full)
        with pytest.raises(
            OSError, match=r"the disk is full; the checkpoint after step 4 is complete\. Make room and start"
        ):
            pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert last_complete(run).name == "checkpoint-4"


def test_another_error_of_a_disk(corpus, tmp_path, monkeypatch):
    broken = SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")
    monkeypatch.setattr(PretrainTrainer, "save_model", raises(broken))
    with pytest.raises(OSError, match=r"Input/output error \(os error 5\); there is no checkpoint yet"):
        pretrain(RECIPE, corpus, tmp_path / "run", tracker="none", progress=False)


def test_a_lost_reader(corpus, tmp_path, monkeypatch):
    """A process that reads the data is killed after step 4: a message, and the checkpoint stays."""
    original = Sequences.__getitem__
    first = os.getpid()

    def deadly(self, index):
        if os.getpid() != first and (tmp_path / "lost" / "checkpoint-4" / MARK).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, index)

    monkeypatch.setattr(Sequences, "__getitem__", deadly)
    options = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 1}
    with pytest.raises(ChildProcessError, match=r"was lost .*the checkpoint after step 4 is complete\. Start again"):
        pretrain(RECIPE.but(steps=400), corpus, tmp_path / "lost", tracker="none", progress=False, **options)


def test_tensorboard_is_written(corpus, tmp_path):
    pretrain(RECIPE.but(steps=2), corpus, tmp_path / "run", progress=False)
    (events,) = (tmp_path / "run" / "tensorboard").rglob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


def test_too_little_text(tmp_path):
    (tmp_path / "short.txt").write_text("word " * 200)
    corpus = load_corpus(tmp_path / "short.txt", tokenizer="bytes", cache_dir=tmp_path / "cache", progress=False)
    with pytest.raises(ValueError, match=r"training sequences of 512 tokens, and a step takes 4. Give more text"):
        pretrain(RECIPE.but(length=512), corpus, tmp_path / "run", tracker="none", progress=False)


@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes(sharded, text, whole, environment, tmp_path):
    """The same losses as one process with the same batch: copied (DDP), and sharded (FSDP2)."""
    run = tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    own = command(text, run)[1:]
    if sharded:
        own = [str(Path(__file__).with_name("sharding.py")), *own[2:], "--fsdp"]
        environment = {**environment, "SHARDED": str(tmp_path / "sharded")}
    finished = subprocess.run([*torchrun, *own], env=environment, capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stderr[-3000:]
    if sharded:
        found, of = map(int, (tmp_path / "sharded").read_text().split(" of "))
        assert found == of > 10
    for found, expected in zip(losses(run), losses(whole), strict=True):
        assert found == pytest.approx(expected, rel=2e-3)
    found, expected = (load_file(one / "model" / "model.safetensors") for one in (run, whole))
    assert set(found) == set(expected)


def test_accumulation_changes_nothing_over_epochs(tmp_path):
    """28 sequences and a batch of 12: two whole steps an epoch, whatever they are made of."""
    (tmp_path / "text.txt").write_text("".join(chr(97 + n * n % 23) for n in range(1000)))
    corpus = load_corpus(tmp_path / "text.txt", cache_dir=tmp_path / "cache", progress=False)
    sequences = len(corpus.train.sequences(32))
    assert sequences % 12
    recipe = RECIPE.but(batch_size=12, steps=6)
    assert recipe.steps * 12 > 2 * sequences
    for name, tokens in (("whole", 12 * 32), ("parts", 4 * 32)):
        pretrain(recipe.but(max_tokens_per_device=tokens), corpus, tmp_path / name, tracker="none", progress=False)
    for found, expected in zip(losses(tmp_path / "parts"), losses(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(expected, rel=2e-3)


def test_one_command_a_run(corpus, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with FileLock(run / ".lock"), pytest.raises(ValueError, match="another process is training in"):
        pretrain(RECIPE, corpus, run, tracker="none", progress=False)


def test_a_model_that_diverged_at_the_very_end_is_not_delivered(corpus, tmp_path):
    run = tmp_path / "late"

    def nan_in_the_last_step(self, step):
        return float("nan") if step == 10 else 0.01

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.training.recipes.Recipe.rate", nan_in_the_last_step)
        with pytest.raises(DivergedError, match="not finite after step 11"):
            pretrain(RECIPE.but(encoding="alibi", steps=11, log_every=7), corpus, run, tracker="none", progress=False)
    assert not (run / "done.json").exists()
    assert last_complete(run).name == "checkpoint-8"


def test_nothing_is_saved_that_was_not_looked_at(corpus, tmp_path):
    """Whatever log_every is: a loss that is not finite is found before the checkpoint after it."""
    run = tmp_path / "between"

    def nan_at_5(self, step):
        return float("nan") if step == 4 else 0.01

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.training.recipes.Recipe.rate", nan_at_5)
        with pytest.raises(DivergedError, match="at step 8"):
            pretrain(RECIPE.but(encoding="alibi", log_every=100), corpus, run, tracker="none", progress=False)
    assert [folder.name for folder in checkpoints(run)] == ["checkpoint-4"]


@pytest.mark.parametrize(
    ("device", "processes", "passes", "asked", "played"),
    [
        ("cuda", 1, 1, None, True),
        ("cuda", 1, 2, None, False),
        ("cuda", 2, 1, None, False),
        ("cpu", 1, 1, None, False),
        ("cuda", 1, 1, False, False),
        ("cuda", 2, 1, True, True),
    ],
)
def test_when_layers_are_cuda_graphs(device, processes, passes, asked, played):
    args = SimpleNamespace(device=torch.device(device), world_size=processes, gradient_accumulation_steps=passes)
    assert plays_graphs(RECIPE.but(cuda_graphs=asked), args) is played


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fire", "rope", "t5"])
def test_cuda_graphs_change_no_loss(name, corpus, tmp_path):
    found = {}
    for graphs in (False, True):
        torch.compiler.reset()
        recipe = RECIPE.but(encoding=name, cuda_graphs=graphs, length=128, steps=20)
        pretrain(recipe, corpus, tmp_path / str(graphs), tracker="none", progress=False)
        found[graphs] = losses(tmp_path / str(graphs))
    if name == "rope":  # PyTorch's flash kernel adds gradients in no fixed order
        torch.testing.assert_close(torch.tensor(found[True]), torch.tensor(found[False]), rtol=1e-3, atol=0)
    else:
        assert found[True] == found[False]
    assert found[True][-1][1] < found[True][0][1]
