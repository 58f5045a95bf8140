"""How far several runs are: a bar where stderr is a terminal; otherwise lines, now and then and when a run ends."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longfire.training.callbacks import LOSSES, ProgressLines, read_losses


class Bar:
    """Training steps of all runs, and which models are being tested, when no step is made.

    Args:
        folders: of all runs.
        steps: of all of them together.
        jobs: runs at a time.
        lines: print lines, where there is no terminal for a bar.
    """

    def __init__(self, folders: Sequence[Path], steps: int, jobs: int, lines: bool = True) -> None:
        self.folders, self.jobs, self.steps = folders, jobs, steps
        self.title = f"{len(folders)} runs, {jobs} at a time"
        self.bar = tqdm(total=steps, unit="step", desc=self.title, disable=None)
        self.lines: ProgressLines | None = None
        if lines and self.bar.disable:
            done = self.done()
            self.lines = ProgressLines(steps, done)
            self.say(done)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def tick(self, left: Sequence[Path]) -> None:
        """Look again. `left`: the folders of runs that have not ended, in the order in which they are begun."""
        done = self.done()
        self.bar.update(done - self.bar.n)
        if self.lines is not None and self.lines.is_due(done):
            self.say(done)
        tested = [folder.name for folder in left[: self.jobs] if (folder / "done.json").exists()]
        self.bar.set_postfix_str(f"testing {', '.join(tested)}" if tested else "")

    def done(self) -> int:
        """Steps of all runs so far."""
        return sum(map(steps_done, self.folders))

    def say(self, done: int) -> None:
        """A line, where there is no terminal."""
        print(f"{self.title}: {done:,} of {self.steps:,} steps", file=sys.stderr, flush=True)


def steps_done(run: Path) -> int:
    """By its losses."""
    try:
        lines = read_losses(run / LOSSES)
    except OSError:
        return 0
    return int(lines[-1]["step"]) if lines else 0


def say_ended(run: dict[str, Any], trained: int, count: str) -> None:
    """A line for a run that ended, where there is no terminal for a bar."""
    if not sys.stderr.isatty():
        print(f"{count}: {ended(run, trained)}", file=sys.stderr, flush=True)


def ended(run: dict[str, Any], trained: int) -> str:
    """`rope, seed 0: 12.3 s, log perplexity 2.311 at 64, 5.870 at 1,024`: as trained, and at the longest."""
    head = f"{run['encoding']}, seed {run['seed']}"
    if "failed" in run:
        return f"{head}: failed: {run['failed']}"
    rows = [row for row in run.get("perplexity", {}).get("rows", ()) if "log_perplexity" in row]
    found = {row["length"]: row["log_perplexity"] for row in rows}
    at = [length for length in dict.fromkeys((trained, max(found, default=0))) if length in found]
    numbers = ", ".join(f"{found[length]:.3f} at {length:,}" for length in at)
    return f"{head}: {run.get('took', 0):.1f} s, log perplexity {numbers or '–'}"
