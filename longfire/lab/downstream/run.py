"""Checkpoints fine-tuned on tasks and tested, side by side; or tested as they are.

    OUT/downstream.json          the record of all, which later commands add to
        runs/CHECKPOINT/MIXTURE/ a run of its own each, by `longfire.training.finetune`
            test/TASK-LENGTH/    its answers and scores; of a part of the questions in TASK-LENGTH-limit-N/
        test/CHECKPOINT/TASK-LENGTH/  the same of a checkpoint that is not fine-tuned here

What is done is not done again: started anew, it goes on.
"""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longfire.complete_folder import short_hash
from longfire.evaluation.record import Save, until_done
from longfire.evaluation.seeds import with_seed
from longfire.lab.downstream.brief import Brief
from longfire.lab.downstream.entrants import Entrant, Known, entrants
from longfire.lab.downstream.exam import examined_or_failed, folder_of, is_first, say
from longfire.lab.downstream.part import Part, Rows, release
from longfire.lab.downstream.plan import Plan, refuse_other_experiment, refuse_other_kind
from longfire.lab.downstream.questions import load_questions, refuse_tasks_without_room
from longfire.lab.downstream.record import Record, begun, renewed
from longfire.training.initial_model import digest
from longfire.validation import at_least


def downstream(
    ready: Plan,
    out: Path,
    *,
    tracker: str = "none",
    save: Save = lambda record: None,
    batch_tokens: int | None = None,
    **options: Any,
) -> Record:
    """Fine-tune and test all that is not yet, and return the record, which is saved after each part.

    Args:
        ready: what `plan` found.
        out: the folder.
        tracker: of training: "tensorboard", "wandb", "trackio" or "none".
        save: called with the record after each part, on the first process.
        batch_tokens: of answers.
        options: for `longfire.training.finetune`, and by it for Hugging Face's TrainingArguments.
    """
    setting = ready.setting()
    refuse_other_kind(out, "finetune")
    refuse_other_experiment(out, setting, ready.experiment.recipe)
    rows: dict[str, Record] = {one.key: {**one.about(), "parts": [], "scores": []} for one in ready.entrants}
    record = begun(out, setting, list(rows.values()))
    parts = [(mixture, entrant) for mixture in ready.mixtures() for entrant in ready.entrants]
    made = Rows(ready)
    with until_done(record, save := _by_the_first(save)), _loaded_for_good(), _cores(ready.experiment.brief):
        for number, (mixture, entrant) in enumerate(parts, 1):
            row = rows[entrant.key]
            say(f"[{number}/{len(parts)}] {_called(row, record['rows'])}, {mixture.name}")
            part = Part(ready, mixture, entrant, out, made, batch_tokens)
            part.carry_out(tracker, options)
            row["parts"] = renewed(row["parts"], [part.found], "mixture")
            void = mixture.tasks if "failed" in part.found else ()
            kept = [one for one in row["scores"] if one["task"] not in void]
            row["scores"] = renewed(kept, part.scores, "task", "length")
            save(record)
    return record


@dataclass(frozen=True)
class Exam:
    """What checkpoints are tested on, as they are."""

    name: str
    tasks: tuple[str, ...]
    data: str | Path | None
    lengths: tuple[int, ...] = ()
    """Empty: what the first checkpoint was fine-tuned at, or trained."""
    split: str = "validation"
    limit: int | None = None
    """So many questions of a task. None: all."""
    must: bool = True
    """Whether a task that is not in the data is an error, and not left out."""
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for length in self.lengths:
            at_least("a length", length, 1)
        if self.limit is not None:
            at_least("limit", self.limit, 1)

    def tested_lengths(self, first: Entrant) -> list[int]:
        """In order."""
        own = first.about()
        length = own["finetuned_length"] or own["trained_length"]
        if not self.lengths and length is None:
            raise ValueError(f"{first.given} does not say at which length it was trained. Give one (--length N).")
        return sorted(set(self.lengths)) or [length]


def examine(exam: Exam, checkpoints: Sequence[str | Path], out: Path, save: Save = lambda record: None) -> Record:
    """Test checkpoints without training them; the record is saved after each task and length."""
    refuse_other_kind(out, "evaluate")
    found = entrants(checkpoints)
    lengths = exam.tested_lengths(found[0])
    for entrant in found:
        entrant.refuse_beyond(max(lengths))
    questions, missing = load_questions(exam.tasks, exam.data, split=exam.split, limit=exam.limit, must=exam.must)
    refuse_tasks_without_room(questions.values(), [one.tokenizer() for one in found], lengths, None)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState  # type: ignore[import-untyped]

        PartialState(cpu=not torch.cuda.is_available())  # they know each other, and each has a device of its own
    setting = {
        **{"kind": "evaluate", "name": exam.name, "tasks": list(exam.tasks), "missing": missing, "lengths": lengths},
        **{"data": str(exam.data or "hub"), "split": exam.split, "limit": exam.limit},
    }
    rows: list[Record] = [{**entrant.about(), "scores": []} for entrant in found]
    record = begun(out, setting, rows)
    with until_done(record, save := _by_the_first(save)):
        for entrant, row in zip(found, rows, strict=True):
            known, model = Known(entrant, exam.device, exam.dtype), short_hash([digest(entrant.folder), entrant.key])
            say(_called(row, record["rows"]))
            for of in questions.values():
                for length in lengths:
                    where = out / "test" / entrant.key / folder_of(of.task.name, length, exam.limit, exam.split)
                    options = {"length": length, "dtype": exam.dtype, "batch_tokens": exam.batch_tokens}
                    one = examined_or_failed(known, of.task, of.test, where, model=model, **options)
                    row["scores"] = renewed(row["scores"], [one], "task", "length")
                    save(record)
            del known
            release()
    return record


def _called(row: Record, rows: Iterable[Record]) -> str:
    """A row's label, with its seed where several have the same."""
    shared = sum(one["label"] == row["label"] for one in rows) > 1
    return with_seed(row) if shared else str(row["label"])


@contextmanager
def _loaded_for_good() -> Iterator[None]:
    """What is there by now is not looked through whenever memory is released: half of the time of a short run.

    Where the program has done so itself, it is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _cores(brief: Brief | None) -> Iterator[None]:
    """One in a trial: what is so small is slower on several, and much slower where they are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if brief is None else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_the_first(save: Save) -> Save:
    """Of several processes, that one alone saves."""
    return save if is_first() else lambda record: None
