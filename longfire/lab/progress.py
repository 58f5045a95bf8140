"""Progress of several runs: a bar where stderr is a terminal, otherwise a line now and then."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longfire.training.callbacks import LOSSES, ProgressLines, read_losses


class ProgressBar:
    """Training steps of all runs together, and the names of those that are being tested.

    Args:
        folders: of all runs.
        steps: of all runs together.
        jobs: runs at a time.
        lines: print lines where there is no terminal for a bar.
    """

    def __init__(self, folders: Sequence[Path], steps: int, jobs: int, lines: bool = True) -> None:
        self.folders, self.jobs, self.steps = folders, jobs, steps
        self.title = f"{len(folders)} runs, {jobs} at a time"
        self.bar = tqdm(total=steps, unit="step", desc=self.title, disable=None)
        self.lines = ProgressLines(steps, self.steps_done()) if lines and self.bar.disable else None
        if self.lines is not None:
            self.print_line(self.steps_done())

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, unfinished: Sequence[Path]) -> None:
        """Read the runs' progress again. `unfinished`: folders of runs that have not ended, in starting order."""
        done = self.steps_done()
        self.bar.update(done - self.bar.n)
        if self.lines is not None and self.lines.is_due(done):
            self.print_line(done)
        testing = [folder.name for folder in unfinished[: self.jobs] if (folder / "done.json").exists()]
        self.bar.set_postfix_str(f"testing {', '.join(testing)}" if testing else "")

    def steps_done(self) -> int:
        """The last logged step of every run, added up."""
        return sum(lines[-1]["step"] for folder in self.folders if (lines := _losses(folder)))

    def print_line(self, done: int) -> None:
        """Progress without a terminal."""
        print(f"{self.title}: {done:,} of {self.steps:,} steps", file=sys.stderr, flush=True)


def _losses(run: Path) -> list[dict[str, Any]]:
    try:
        return read_losses(run / LOSSES)
    except OSError:
        return []


def print_finished(run: dict[str, Any], trained_length: int, count: str) -> None:
    """One line for a run that ended, where there is no terminal for a bar."""
    if not sys.stderr.isatty():
        print(f"{count}: {describe_finished(run, trained_length)}", file=sys.stderr, flush=True)


def describe_finished(run: dict[str, Any], trained_length: int) -> str:
    """`rope, seed 0: 12.3 s, log perplexity 2.311 at 64, 5.870 at 1,024`: at the training length and the longest."""
    head = f"{run['encoding']}, seed {run['seed']}"
    if "failed" in run:
        return f"{head}: failed: {run['failed']}"
    rows = run.get("perplexity", {}).get("rows", ())
    found = {row["length"]: row["log_perplexity"] for row in rows if "log_perplexity" in row}
    lengths = dict.fromkeys(length for length in (trained_length, max(found, default=0)) if length in found)
    numbers = ", ".join(f"{found[length]:.3f} at {length:,}" for length in lengths)
    return f"{head}: {run.get('took', 0):.1f} s, log perplexity {numbers or '–'}"
