"""Which of a run's models is best: judged every few steps, the best so far kept.

RUN/scores.jsonl  a line for every judgement
    best-N/       the best so far, marked when it is whole, with best.json: its step and score

A run that is killed goes on from a checkpoint, and with what was the best then: that stays as long as the checkpoint.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from longfire.training.callbacks import forget_after
from longfire.training.checkpoints import MARK, checkpoints, discard_incomplete, mark_complete, step_of

SCORES = "scores.jsonl"
BEST = "best.json"


class Judging(TrainerCallback):
    """Says when the model is judged, and knows, on the first process, which was the best.

    Args:
        run: the folder.
        every: so many steps, and at the end. None: never.
        by: what it is judged by: "score", of which more is better, or "loss", of which less is.
    """

    def __init__(self, run: Path, every: int | None, by: str) -> None:
        self.run, self.every, self.by = run, every, by

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        forget_after(self.run / SCORES, state.global_step)
        discard_incomplete(self.run, "best")
        for folder in checkpoints(self.run, "best"):
            if step_of(folder) > state.global_step:
                shutil.rmtree(folder)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if self.every is not None and (step % self.every == 0 or step == state.max_steps):
            control.should_log = True  # nothing is judged before its loss was looked at
            control.should_evaluate = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            kept = [self.best(step_of(folder)) for folder in checkpoints(self.run)]
            steps = [best["step"] for best in kept if best is not None]
            for folder in checkpoints(self.run, "best"):
                if step_of(folder) not in steps:
                    shutil.rmtree(folder)

    def best(self, until: int | None = None) -> dict[str, Any] | None:
        """Step and score of the best so far, or until a step; of equals, the first."""
        whole = [folder for folder in checkpoints(self.run, "best") if (folder / MARK).exists()]
        early = [folder for folder in whole if until is None or step_of(folder) <= until]
        found = [json.loads((folder / BEST).read_text(encoding="utf-8")) for folder in early]
        return max(found, key=lambda one: self.worth(one["score"]), default=None)

    def worth(self, score: float) -> float:
        """More is better."""
        return score if self.by == "score" else -score

    def is_better(self, score: float) -> bool:
        """Than all before."""
        best = self.best()
        return best is None or self.worth(score) > self.worth(best["score"])

    def write(self, step: int, score: float) -> None:
        """Into the history."""
        with (self.run / SCORES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, self.by: score}) + "\n")

    def folder(self, step: int) -> Path:
        """Of a model that is the best so far."""
        return self.run / f"best-{step}"

    def keep(self, step: int, score: float) -> None:
        """A model that has been saved in its folder counts from now on."""
        folder = self.folder(step)
        (folder / BEST).write_text(json.dumps({"step": step, "score": score}) + "\n", encoding="utf-8")
        mark_complete(folder)

    def deliver(self, folder: Path) -> dict[str, Any]:
        """Copy the best to another folder, and say which it was."""
        best = self.best()
        assert best is not None
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(self.folder(best["step"]), folder, ignore=shutil.ignore_patterns(MARK, BEST))
        return best


def refuse_no_number(score: float, step: int, by: str) -> None:
    """Models cannot be compared by what is no number."""
    if not math.isfinite(score):
        raise ValueError(f"after step {step} the model's {by} is {score}: by that no best one can be found.")
