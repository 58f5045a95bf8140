"""One checkpoint fine-tuned on one mixture of tasks, and tested on each of them."""

import gc
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from longfire.atomic_io import read_json
from longfire.evaluation.metrics import METRICS
from longfire.lab.downstream.entrants import Entrant, Known
from longfire.lab.downstream.exam import answers_of_all, examined_or_failed, failure, folder_of, is_first, say
from longfire.lab.downstream.plan import Plan
from longfire.lab.downstream.questions import Mixture, fingerprint, tokens_of
from longfire.tasks import Example, training_rows
from longfire.training import finetune
from longfire.training.finetune import Score, copy_corpus_description
from longfire.training.initial_model import digest


class Rows:
    """The rows to train on, of the last mixture and tokenizer that they were asked for."""

    def __init__(self, ready: Plan) -> None:
        self.ready = ready
        self.of: tuple[str, str] | None = None
        self.found: tuple[list[Any], list[Any] | None] = ([], None)

    def __call__(self, mixture: Mixture, tokenizer: Any) -> tuple[list[Any], list[Any] | None]:
        """To train on, and to judge by if the loss does that."""
        if self.of != (asked := (mixture.name, tokens_of(tokenizer))):
            experiment, questions = self.ready.experiment, self.ready.questions
            train = [example for task in mixture.tasks for example in questions[task].train]
            rows = training_rows(train, tokenizer, experiment.recipe.length, progress=is_first())
            judge = [example for task in mixture.tasks for example in self.ready.judged(task)]
            by_loss = experiment.select == "loss"
            self.found = rows, training_rows(judge, tokenizer, experiment.recipe.length) if by_loss else None
            self.of = asked
        return self.found


class Part:
    """One mixture and one checkpoint. A failure is part of the record, and costs the others nothing."""

    def __init__(
        self, ready: Plan, mixture: Mixture, entrant: Entrant, out: Path, made: Rows, batch_tokens: int | None
    ) -> None:
        self.ready, self.mixture, self.entrant, self.made, self.batch_tokens = (
            ready, mixture, entrant, made, batch_tokens
        )  # fmt: skip
        self.run = out / "runs" / entrant.key / mixture.name
        self.found: dict[str, Any] = {"mixture": mixture.name, "run": str(self.run.relative_to(out))}
        self.scores: list[dict[str, Any]] = []

    def carry_out(self, tracker: str, options: dict[str, Any]) -> None:
        """Train and test."""
        began = time.perf_counter()
        try:
            folder = self.train(tracker, options)
            release()
            self.test(folder)
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            self.found["failed"] = failure(error)
            say(f"failed: {self.found['failed']}")
        release()
        self.found["took"] = round(time.perf_counter() - began, 2)

    def train(self, tracker: str, options: dict[str, Any]) -> Path:
        """The folder of the run's model."""
        experiment, tokenizer = self.ready.experiment, self.entrant.tokenizer()
        judge = {task: self.ready.judged(task) for task in self.mixture.tasks if experiment.select != "last"}
        train = {task: self.ready.questions[task].train for task in self.mixture.tasks}
        identity = {
            "tasks": list(self.mixture.tasks),
            "train": {task: fingerprint(examples) for task, examples in train.items()},
            "select": experiment.select,
            "judged_by": {task: fingerprint(examples) for task, examples in judge.items()},
            "tokenizer": tokens_of(tokenizer),
        }
        rows, dev_rows = self.made(self.mixture, tokenizer)
        by_answers = experiment.select in ("dev", "validation")
        folder = finetune(
            experiment.recipe,
            self.entrant.start(),
            rows,
            self.run,
            tokenizer=tokenizer,
            identity=identity,
            dev_rows=dev_rows,
            score=self.judge_by(judge, tokenizer, share=not options.get("fsdp")) if by_answers else None,
            tracker=tracker,
            **options,
        )
        if self.entrant.extension is not None and is_first():
            copy_corpus_description(self.entrant.folder, folder)
        done = read_json(self.run / "done.json")
        self.found |= {
            "train_examples": {task: len(examples) for task, examples in train.items()},
            "train_rows": len(rows),
            "judged_by": {task: len(examples) for task, examples in judge.items()},
            **{key: done[key] for key in ("step", "score", "seconds", "tokens", "final_loss")},
            "tokens_per_second": done["tokens/s"],
        }
        return folder

    def judge_by(self, questions: dict[str, list[Example]], tokenizer: Any, share: bool) -> Score:
        """The mean of the tasks' scores on these. `share`: among processes."""
        length = self.ready.experiment.recipe.length
        how: dict[str, Any] = {"length": length, "batch_tokens": self.batch_tokens, "share": share}

        def judged(model: Any, step: int) -> float:
            tasks = [(self.ready.questions[name].task, examples) for name, examples in questions.items()]
            return fmean(
                METRICS[task.metric](answers_of_all(model, tokenizer, task, examples, **how))
                for task, examples in tasks
            )

        return judged

    def test(self, folder: Path) -> None:
        """On all tasks of the mixture, at all lengths."""
        model, known = digest(folder), Known(folder)
        for task in self.mixture.tasks:
            of = self.ready.questions[task]
            for length in self.ready.experiment.tested_lengths():
                where = self.run / "test" / folder_of(task, length, self.ready.experiment.limit)
                options = {"length": length, "model": model, "batch_tokens": self.batch_tokens}
                self.scores.append(examined_or_failed(known, of.task, of.test, where, **options))


def release() -> None:
    """What training or a checkpoint took: nothing after it has any use of it, nor of what was compiled for it."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
