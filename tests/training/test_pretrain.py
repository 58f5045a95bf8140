"""Training: killed, cut off, diverged, out of space, in one process and in two."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from longfire.cli import main
from longfire.data import Sequences, load_corpus
from longfire.training import RECIPES, callbacks, pretrain
from longfire.training.callbacks import DivergedError, read_losses
from longfire.training.checkpoints import MARK, checkpoints, is_complete, last_complete
from longfire.training.pretrain import plays_graphs

RECIPE = RECIPES["tiny"].but(steps=12, batch=4, length=32, log_every=1, checkpoint_every=4)
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
    """No more often than every so many seconds."""
    recipe = RECIPE.but(steps=3, checkpoint_every=10)
    pretrain(recipe, corpus, tmp_path / "seldom", tracker="none")
    assert "step" not in capsys.readouterr().err
    monkeypatch.setattr(callbacks, "LINE_EVERY", 0.0)
    pretrain(recipe, corpus, tmp_path / "often", tracker="none")
    lines = [line for line in capsys.readouterr().err.splitlines() if "step" in line]
    assert [line.partition(",")[0] for line in lines] == [f"often: step {step} of 3" for step in (1, 2, 3)]
    assert re.search(r"loss \d\.\d{3}, [\d,]+ tokens/s, 00:0\d left$", lines[1])


def test_when_it_is_stopped_the_bar_ends_before_that_is_said(text, tmp_path, monkeypatch, capsys):
    def stop(self, args, state, control, **_):
        raise KeyboardInterrupt

    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(callbacks.Watch, "on_log", stop)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(command(text, tmp_path / "run")[3:]) == 130
    *_, bar, blank, said, end = capsys.readouterr().err.split("\n")
    assert re.search(r"run: .*1/12 \[.*step", bar)
    assert (blank, said, end) == ("", "longfire: stopped. The same command begins again.", "")


def test_a_run_that_is_done_is_not_done_again(whole, corpus):
    before = (whole / "model" / "model.safetensors").stat().st_mtime_ns
    assert pretrain(RECIPE, corpus, whole, tracker="none", progress=False) == whole / "model"
    assert (whole / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_another_run_in_the_same_folder_is_refused(whole, corpus):
    with pytest.raises(ValueError, match=r"holds another run \(learning_rate: 0.004 there, 0.001 here\)"):
        pretrain(RECIPE.but(learning_rate=1e-3), corpus, whole, tracker="none", progress=False)


def test_killed_and_started_again(text, whole, environment, tmp_path):
    """kill -9 after step 6: it goes on from step 4, and ends with the same bits as a run that nothing disturbed."""
    run = tmp_path / "killed"
    process = subprocess.Popen(command(text, run), env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "losses.jsonl").exists() and len(read_losses(run / "losses.jsonl")) >= 6:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (run / "done.json").exists()
    with (run / "losses.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')  # as if it had been cut off there
    subprocess.run(command(text, run), env=environment, check=True, capture_output=True)
    assert losses(run) == losses(whole)
    found, expected = (load_file(one / "model" / "model.safetensors") for one in (run, whole))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_checkpoint_that_was_cut_off_is_never_loaded(corpus, whole, tmp_path):
    run = tmp_path / "cut"

    class StopError(Exception):
        pass

    def stop_at(step):
        from longfire.training.callbacks import Watch

        original = Watch.on_step_end

        def on_step_end(self, args, state, control, **kwargs):
            original(self, args, state, control, **kwargs)
            if state.global_step == step:
                raise StopError

        return on_step_end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.training.callbacks.Watch.on_step_end", stop_at(10))
        with pytest.raises(StopError):
            pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert [folder.name for folder in checkpoints(run)] == ["checkpoint-4", "checkpoint-8"]
    assert last_complete(run).name == "checkpoint-8"
    damaged = run / "checkpoint-8" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    assert not is_complete(run / "checkpoint-8")
    assert last_complete(run).name == "checkpoint-4"
    (run / "checkpoint-11").mkdir()  # never got its mark
    pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert losses(run) == losses(whole)


def test_a_mark_is_of_every_file(tmp_path):
    from longfire.training.checkpoints import mark_complete

    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    assert not is_complete(folder)
    (folder / "a").write_bytes(b"something")
    (folder / "b").write_bytes(b"")
    mark_complete(folder)
    assert is_complete(folder)
    assert set(json.loads((folder / MARK).read_text())) == {"a", "b"}
    (folder / "a").write_bytes(b"somethinh")
    assert not is_complete(folder)
    (folder / "a").unlink()
    assert not is_complete(folder)


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
    [OSError(28, "No space left on device"), RuntimeError("[enforce fail at inline_container.cc:672]")],
)
def test_a_full_disk(error, corpus, tmp_path):
    run = tmp_path / "full"
    from longfire.training.trainer import PretrainTrainer

    original = PretrainTrainer._save_optimizer_and_scheduler

    def full(self, output_dir):
        if self.state.global_step == 8:
            raise error
        original(self, output_dir)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainTrainer, "_save_optimizer_and_scheduler", full)
        with pytest.raises(
            OSError, match=r"the disk is full; the checkpoint after step 4 is whole\. Make room and start"
        ):
            pretrain(RECIPE, corpus, run, tracker="none", progress=False)
    assert last_complete(run).name == "checkpoint-4"


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
    with pytest.raises(ChildProcessError, match=r"was lost .*the checkpoint after step 4 is whole\. Start again"):
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
    recipe = RECIPE.but(batch=12, steps=6)
    assert recipe.steps * 12 > 2 * sequences
    for name, tokens in (("whole", 12 * 32), ("parts", 4 * 32)):
        pretrain(recipe.but(device_tokens=tokens), corpus, tmp_path / name, tracker="none", progress=False)
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
    assert plays_graphs(RECIPE.but(graphs=asked), args) is played


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fire", "rope", "t5"])
def test_cuda_graphs_change_no_loss(name, corpus, tmp_path):
    found = {}
    for graphs in (False, True):
        torch.compiler.reset()
        recipe = RECIPE.but(encoding=name, graphs=graphs, length=128, steps=20)
        pretrain(recipe, corpus, tmp_path / str(graphs), tracker="none", progress=False)
        found[graphs] = losses(tmp_path / str(graphs))
    assert found[True] == found[False]
    assert found[True][-1][1] < found[True][0][1]
