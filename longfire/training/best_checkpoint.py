"""Keep the best model of a run beside its checkpoints, evaluating every few steps.

RUN/scores.jsonl  one line per evaluation
    best-N/       the best so far, marked when complete, with best.json: its step and score

A killed run resumes with the best model as of its checkpoint, so that model is kept as long as the checkpoint.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from longfire.complete_folder import MARK, mark_complete
from longfire.training.callbacks import drop_lines_after
from longfire.training.checkpoints import checkpoints, discard_incomplete, step_of

SCORES = "scores.jsonl"
BEST = "best.json"


class BestCheckpoint(TrainerCallback):
    """Triggers evaluation, and keeps the best model on the first process.

    Args:
        run: the run's folder.
        every: steps between evaluations; the last step is always evaluated. None: never evaluate.
        metric: "score" (higher is better) or "loss" (lower is better).
    """

    def __init__(self, run: Path, every: int | None, metric: str) -> None:
        self.run, self.every, self.metric = run, every, metric

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        drop_lines_after(self.run / SCORES, state.global_step)
        discard_incomplete(self.run, "best")
        for folder in checkpoints(self.run, "best"):
            if step_of(folder) > state.global_step:
                shutil.rmtree(folder)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if self.every is not None and (step % self.every == 0 or step == state.max_steps):
            control.should_log = True  # check the loss before evaluating
            control.should_evaluate = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            needed = [self.best(step_of(folder)) for folder in checkpoints(self.run)]
            steps = [best["step"] for best in needed if best is not None]
            for folder in checkpoints(self.run, "best"):
                if step_of(folder) not in steps:
                    shutil.rmtree(folder)

    def best(self, until: int | None = None) -> dict[str, Any] | None:
        """Step and score of the best model so far, or up to a step. Ties go to the first."""
        complete = [folder for folder in checkpoints(self.run, "best") if (folder / MARK).exists()]
        early = [folder for folder in complete if until is None or step_of(folder) <= until]
        found = [json.loads((folder / BEST).read_text(encoding="utf-8")) for folder in early]
        return max(found, key=lambda one: self._rank(one["score"]), default=None)

    def is_better(self, score: float) -> bool:
        """Whether a score beats the best so far."""
        best = self.best()
        return best is None or self._rank(score) > self._rank(best["score"])

    def _rank(self, score: float) -> float:
        return score if self.metric == "score" else -score

    def record(self, step: int, score: float) -> None:
        """Append a score to the history."""
        with (self.run / SCORES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, self.metric: score}) + "\n")

    def folder(self, step: int) -> Path:
        """Where to save a new best model."""
        return self.run / f"best-{step}"

    def keep(self, step: int, score: float) -> None:
        """Mark the model saved in `folder(step)` as the best so far."""
        folder = self.folder(step)
        (folder / BEST).write_text(json.dumps({"step": step, "score": score}) + "\n", encoding="utf-8")
        mark_complete(folder)

    def copy_best(self, target: Path) -> dict[str, Any]:
        """Copy the best model to a folder; returns its step and score."""
        best = self.best()
        assert best is not None
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(self.folder(best["step"]), target, ignore=shutil.ignore_patterns(MARK, BEST))
        return best


def refuse_non_finite_score(score: float, step: int, metric: str) -> None:
    """Refuse a score that cannot rank models."""
    if not math.isfinite(score):
        raise ValueError(f"the {metric} after step {step} is {score}, so the best model cannot be chosen.")
