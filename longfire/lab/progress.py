"""Progress of parallel runs: a bar if stderr is a terminal, occasional lines otherwise."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longfire.training.callbacks import LOSSES, ProgressLines, read_losses


class ProgressBar:
    """Total training steps of all runs, and the names of runs being tested.

    Args:
        folders: run folders.
        steps: total steps of all runs.
        jobs: runs at a time.
        lines: print lines if stderr is not a terminal.
    """

    def __init__(self, folders: Sequence[Path], steps: int, jobs: int, lines: bool = True) -> None:
        self.folders, self.jobs, self.steps = folders, jobs, steps
        self.title = f"{len(folders)} runs, {jobs} at a time"
        done = self.steps_done()  # by an interrupted command
        self.bar = tqdm(total=steps, initial=done, unit="step", desc=self.title, disable=None)
        self.lines = ProgressLines(steps, done) if lines and self.bar.disable else None
        if self.lines is not None:
            self.print_line(done)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, unfinished: Sequence[Path]) -> None:
        """Refresh the progress. `unfinished`: folders of unfinished runs, in starting order."""
        done = self.steps_done()
        self.bar.update(done - self.bar.n)
        if self.lines is not None and self.lines.is_due(done):
            self.print_line(done)
        testing = [folder.name for folder in unfinished[: self.jobs] if (folder / "done.json").exists()]
        self.bar.set_postfix_str(f"testing {', '.join(testing)}" if testing else "")

    def steps_done(self) -> int:
        """The sum of the runs' last logged steps."""
        return sum(lines[-1]["step"] for folder in self.folders if (lines := _losses(folder)))

    def print_line(self, done: int) -> None:
        """Print the progress as a line."""
        print(f"{self.title}: {done:,} of {self.steps:,} steps", file=sys.stderr, flush=True)


def _losses(run: Path) -> list[dict[str, Any]]:
    try:
        return read_losses(run / LOSSES)
    except OSError:
        return []


def print_finished(run: dict[str, Any], trained_length: int, count: str) -> None:
    """Print a line for a finished run if stderr is not a terminal."""
    if not sys.stderr.isatty():
        print(f"{count}: {describe_finished(run, trained_length)}", file=sys.stderr, flush=True)


def describe_finished(run: dict[str, Any], trained_length: int) -> str:
    """`rope, seed 0: 12.3 s, log perplexity 2.311 at 64, 5.870 at 1,024`: training length and longest length.

    On a synthetic task: `rope, seed 0: 12.3 s, copy: exact match 98 % at 40, 0 % at 160`.
    """
    head = f"{run['encoding']}, seed {run['seed']}"
    if "failed" in run:
        return f"{head}: failed: {run['failed']}"
    test, key, name, shown = run.get("perplexity", {}), "log_perplexity", "log perplexity", "{:.3f}"
    if "accuracy" in run:
        test, key, shown = run["accuracy"], "exact_match", "{:.0f} %"
        name = f"{test['task']}: exact match"
    by_length = {row["length"]: row[key] for row in test.get("rows", ()) if key in row}
    lengths = dict.fromkeys(length for length in (trained_length, max(by_length, default=0)) if length in by_length)
    numbers = ", ".join(f"{shown.format(by_length[length])} at {length:,}" for length in lengths)
    return f"{head}: {run.get('took', 0):.1f} s, {name} {numbers or '–'}"
