"""Kill a command before one of its file operations, restart it, and compare the result with an uninterrupted run.

`python -m tests.training.kill_points FOLDER COMMAND=POINTS …` prints, as JSON, how many points each command has and
what went wrong at those tried. POINTS: a number of evenly spread points, or "all".

A point is a file operation by Python in the command's folder. A file written by a library counts as two: before it is
written, and half written. Processes are forked from one that has imported everything and trained nothing.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import safetensors.torch
import torch
import transformers.modeling_utils
from transformers import PreTrainedTokenizerFast

import longfire.lab.compare
import longfire.lab.downstream.run
import longfire.report.compare
import longfire.report.downstream
import longfire.report.page
import longfire.training.pretrain  # noqa: F401, all before the first fork
from longfire.cli import main
from tests.lab.boxes import write_boxes
from tests.training.toys import checkpoint

OPERATIONS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TIMES = {"seconds", "took", "tokens/s", "tokens_per_second", "provenance", "commit"}
"""Fields that may differ between identical runs."""
ON_TEXT = ["--tokenizer", "bytes", "--batch", "2", "--length", "16"]
EVERY_TWO = ["--set", "log_every=1", "checkpoint_every=2"]


def arguments(command: str, inputs: Path, work: Path) -> list[str]:
    """A small command line; its run ends mid-epoch."""
    text, out = ["--corpus", str(inputs / "text")], ["--out", str(work / "out")]
    if command == "pretrain":
        return ["pretrain", "tiny", *text, *out, *ON_TEXT, "--steps", "5", "--tracker", "none", *EVERY_TWO]
    if command == "compare":
        of = ["--encodings", "nope", "rope", "yarn", "--seeds", "0", "--lengths", "16", "32", "--test-tokens", "128"]
        return ["compare", *text, *out, *of, *ON_TEXT, "--steps", "3", "--jobs", "1", *EVERY_TWO]
    how = ["--recipe", "tiny", "--tracker", "none", "--steps", "5", *EVERY_TWO, "evaluate_every=2", "warmup_steps=1"]
    return ["finetune", "narrative_qa", str(inputs / "rope"), "--data", str(inputs / "data"), *out, *how]


def prepare(inputs: Path) -> None:
    """Write text, a checkpoint and a task."""
    (inputs / "text").mkdir(parents=True)
    for k in range(1, 8):
        (inputs / "text" / f"{k}.txt").write_text(" ".join(str(n * k % 97) for n in range(60)))
    checkpoint(inputs / "rope", "rope")
    write_boxes(inputs / "data")


class Points:
    """Counts file operations in a folder, and kills this process before one of them."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        self.folder, self.kill_at, self.count, self.inside = str(folder), kill_at, 0, False
        sys.addaudithook(self.audit)
        for module, name in (
            (os, "fsync"),
            (torch, "save"),
            (safetensors.torch, "save_file"),
            (transformers.modeling_utils, "safe_save_file"),
            (next(c for c in PreTrainedTokenizerFast.__mro__ if "_save_pretrained" in vars(c)), "_save_pretrained"),
        ):
            setattr(module, name, self.counted(getattr(module, name), torn=name != "fsync"))

    def audit(self, event: str, details: tuple) -> None:
        if event == "open":
            path, _, flags = details
            hit = bool(flags & WRITES) and self.is_ours(path)
        else:  # files deleted along with their folder have relative names
            hit = event in OPERATIONS and (self.is_ours(details[0]) or details[-1] not in (-1, None))
        if hit:
            self.reach()

    def is_ours(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder)

    def reach(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, write, torn):
        """Wrap a function that writes a file as a point and, if `torn`, another one with the file half written."""

        def wrapper(*arguments, **options):
            self.reach()
            if not torn:
                return write(*arguments, **options)
            if self.count + 1 == self.kill_at:
                before = sizes(self.folder)
                write(*arguments, **options)
                for path, size in sizes(self.folder).items():
                    if before.get(path) != size:
                        os.truncate(path, size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            result = write(*arguments, **options)
            self.count += 1
            return result

        return wrapper


def sizes(folder: str) -> dict[Path, int]:
    return {path: path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}


def run_in_process(line: list[str], work: Path, kill_at: int | None = None) -> tuple[int, int]:
    """Run a command line in a child process; returns its exit code and how many points it passed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 99
        try:
            log = os.open(work.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            points = Points(work, kill_at)
            status = main(line)
            os.write(write, str(points.count).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as counted:
        count = int(counted.read() or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count


def state(folder: Path) -> dict[str, object]:
    """All files by name, with their reproducible content; without cached hashes of texts."""
    return {
        str(path.relative_to(folder)): content(path)
        for path in sorted(folder.rglob("*"))
        if not path.name.startswith("notes.json") and (path.is_file() or not any(path.iterdir()))
    }


def content(path: Path) -> object:
    if path.suffix in (".png", ".html", ".lock") or path.is_dir():
        return "there"
    if path.suffix in (".json", ".jsonl"):
        return [
            without_times(json.loads(line)) for line in ([path.read_text()] if path.suffix == ".json" else path.open())
        ]
    return path.read_bytes()


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def sweep(command: str, folder: Path, points: str) -> dict[str, object]:
    """Kill a command at some of its points; returns problems by point."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    os.environ["LONGFIRE_CACHE"] = str(work / "cache")
    line = arguments(command, folder / "inputs", work)
    status, count = run_in_process(line, work)
    assert status == 0, (folder / "log").read_text()
    expected = state(work)
    tries = count if points == "all" else int(points)
    numbers = [int((k + 0.5) * count / tries) + 1 for k in range(tries)]
    wrong: dict[int, list[str]] = {}
    for number in numbers:
        shutil.rmtree(work)
        (folder / "log").unlink()
        killed, _ = run_in_process(line, work, number)
        status, _ = run_in_process(line, work)
        found = state(work)
        problems = [f"was not killed but ended with {killed}"] if killed != -signal.SIGKILL else []
        problems += [f"restarted, it ended with {status}: {(folder / 'log').read_text()[-2000:]}"] if status else []
        problems += [f"{name} is left over" for name in found if name not in expected]
        problems += [f"{name} is missing" for name in expected if name not in found]
        problems += [f"{name} differs" for name in expected if name in found and found[name] != expected[name]]
        if problems:
            wrong[number] = problems
    return {"points": count, "tried": len(numbers), "wrong": wrong}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    prepare(folder / "inputs")
    found = {command: sweep(command, folder, points) for command, _, points in (a.partition("=") for a in sys.argv[2:])}
    print(json.dumps(found, indent=1))
