"""Run a plan: fine-tune checkpoints on tasks and test them, or test them without fine-tuning.

    OUT/downstream.json               the record; later commands add to it
        runs/CHECKPOINT/MIXTURE/      a run of `longfire.training.finetune`
            test/TASK-LENGTH/         its answers and scores; TASK-LENGTH-limit-N/ for a subset of the questions
        test/CHECKPOINT/TASK-LENGTH/  the same for a checkpoint tested without fine-tuning

Completed work is skipped; interrupted runs resume.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from longfire.atomic_io import read_json
from longfire.complete_folder import short_hash
from longfire.evaluation.metrics import METRICS
from longfire.evaluation.record import Save, interruptible
from longfire.evaluation.seeds import with_seed
from longfire.lab.downstream.candidates import load_for_testing
from longfire.lab.downstream.plan import Part, Plan
from longfire.lab.downstream.record import Record, replace_by, start_record
from longfire.lab.downstream.task_score import (
    Load,
    Score,
    answer_all,
    describe_failure,
    folder_name,
    say,
    score_or_failure,
)
from longfire.tasks import training_rows
from longfire.training import finetune
from longfire.training.finetune import copy_corpus_description
from longfire.training.initial_model import digest
from longfire.training.processes import is_first, world_size

Rows = list[Any]


def downstream(
    plan: Plan,
    *,
    save: Save = lambda record: None,
    tracker: str = "none",
    batch_tokens: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    **options: Any,
) -> Record:
    """Run the incomplete parts of a plan, and return the record.

    Args:
        plan: From `longfire.lab.downstream.plan.plan`.
        save: Called with the record after each score, in the first process.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        batch_tokens: Tokens per batch when answering questions.
        device: For tests without fine-tuning. None: the GPU if there is one.
        dtype: For tests without fine-tuning. None: bfloat16 on a GPU, otherwise as saved.
        options: Passed to `longfire.training.finetune`, which passes them to Hugging Face's TrainingArguments.
    """
    trains = plan.experiment.recipe is not None
    rows: dict[str, Record] = {
        candidate.key: {**candidate.describe(), **({"parts": []} if trains else {}), "scores": []}
        for candidate in plan.candidates
    }
    record = start_record(plan.out, plan.setting(), list(rows.values()))
    save = save if is_first() else lambda record: None
    if not trains and world_size() > 1:
        from accelerate import PartialState  # type: ignore[import-untyped]

        PartialState(cpu=not torch.cuda.is_available())  # connects the processes and assigns devices
    make_rows = lru_cache(maxsize=1)(partial(_training_rows, plan))
    with interruptible(record, save), _single_thread(plan.experiment.trial is not None):
        for number, part in enumerate(plan.parts, 1):
            row = rows[part.candidate.key]
            say(f"[{number}/{len(plan.parts)}] {_label(row, record)}, {part.mixture.name}")
            if trains:
                train = partial(_train, plan, part, make_rows, tracker=tracker, batch_tokens=batch_tokens, **options)
                scores = _finetune_and_test(plan, part, row, train, batch_tokens)
            else:
                scores = _test_as_is(plan, part, device=device, dtype=dtype, batch_tokens=batch_tokens)
            for score in scores:
                row["scores"] = replace_by(["task", "length"], row["scores"], [score])
                save(record)
            save(record)
            _free_memory()
    return record


def _finetune_and_test(
    plan: Plan, part: Part, row: Record, train: Callable[[], tuple[Path, Record]], batch_tokens: int | None
) -> Iterator[Score]:
    """Yield scores as they are computed. A failure is recorded and does not affect other parts."""
    started = time.perf_counter()
    entry: Record = {"mixture": part.mixture.name, "run": str(part.folder.relative_to(plan.out))}
    try:
        folder, trained = train()
        entry |= trained
        _free_memory()
        load = cache(partial(load_for_testing, folder))
        yield from _test(plan, part, load, part.folder / "test", model=digest(folder), batch_tokens=batch_tokens)
    except BrokenPipeError:  # our output was closed; the part did not fail
        raise
    except Exception as error:
        entry["failed"] = describe_failure(error)
        say(f"failed: {entry['failed']}")
        row["scores"] = [one for one in row["scores"] if one["task"] not in part.mixture.tasks]
    entry["took"] = round(time.perf_counter() - started, 2)
    row["parts"] = replace_by(["mixture"], row["parts"], [entry])


def _test_as_is(plan: Plan, part: Part, *, device: str | None, dtype: str | None, **options: Any) -> Iterator[Score]:
    load = cache(partial(part.candidate.load, device, dtype))
    model = short_hash([digest(part.candidate.folder), part.candidate.key])
    yield from _test(plan, part, load, part.folder, model=model, dtype=dtype, **options)


def _test(plan: Plan, part: Part, load: Load, folder: Path, **options: Any) -> Iterator[Score]:
    """Test all tasks of the mixture at all lengths."""
    experiment = plan.experiment
    for task in part.mixture.tasks:
        questions = plan.questions[task]
        for length in plan.lengths:
            test_folder = folder / folder_name(task, length, experiment.limit, experiment.split)
            yield score_or_failure(load, questions.task, questions.test, test_folder, length=length, **options)


def _training_rows(plan: Plan, tasks: tuple[str, ...], tokenizer: str) -> tuple[Rows, Rows | None]:
    """Rows to train on and, with `select="loss"`, rows for the dev loss. `tokenizer` is a hash."""
    length, encode = plan.experiment.trained_length, plan.tokenizers[tokenizer]
    train = [example for task in tasks for example in plan.questions[task].train]
    judge = [example for task in tasks for example in plan.questions[task].judge]
    rows = training_rows(train, encode, length, progress=is_first())
    return rows, training_rows(judge, encode, length) if plan.experiment.select == "loss" else None


def _train(
    plan: Plan,
    part: Part,
    make_rows: Callable[[tuple[str, ...], str], tuple[Rows, Rows | None]],
    *,
    tracker: str,
    batch_tokens: int | None,
    **options: Any,
) -> tuple[Path, Record]:
    """Fine-tune; return the folder of the best model and the run's entry in the record."""
    candidate, tasks, select = part.candidate, part.mixture.tasks, plan.experiment.select
    tokenizer = candidate.tokenizer()
    rows, dev_rows = make_rows(tasks, part.identity["tokenizer"])
    answering: Record = {"length": plan.experiment.trained_length, "batch_tokens": batch_tokens}
    answering["share"] = not options.get("fsdp")

    def judge(model: Any, step: int) -> float:
        """The mean of the tasks' scores."""
        return fmean(
            METRICS[one.task.metric](answer_all(model, tokenizer, one.task, one.judge, **answering))
            for one in (plan.questions[task] for task in tasks)
        )

    folder = finetune(
        plan.experiment.recipe,  # type: ignore[arg-type]
        candidate.initial_model(),
        rows,
        part.folder,
        tokenizer=tokenizer,
        identity=part.identity,
        dev_rows=dev_rows,
        score=judge if select in ("dev", "validation") else None,
        tracker=tracker,
        **options,
    )
    if candidate.extension is not None and is_first():
        copy_corpus_description(candidate.folder, folder)
    done = read_json(part.folder / "done.json")
    return folder, {
        "train_examples": {task: len(plan.questions[task].train) for task in tasks},
        "train_rows": len(rows),
        "judged_by": {task: len(plan.questions[task].judge) for task in tasks if select != "last"},
        **{key: done[key] for key in ("step", "score", "seconds", "tokens", "final_loss")},
        "tokens_per_second": done["tokens/s"],
    }


def _label(row: Record, record: Record) -> str:
    """The row's label, with the seed if other rows share it."""
    shared = sum(one["label"] == row["label"] for one in record["rows"]) > 1
    return with_seed(row) if shared else str(row["label"])


def _free_memory() -> None:
    """Drop the compiled graphs and cached memory of the last model."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def _single_thread(trial: bool) -> Iterator[None]:
    """Use one thread in a trial, whose models are too small to gain from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if trial else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
