"""Test a model on a task: answers and score in a folder, computed once.

    FOLDER/predictions.jsonl          a line per question
           scores.json                the score, and what it was computed for
           predictions.partial.jsonl  answers so far, while a test runs

An interrupted test resumes. With several processes (torchrun), each answers a share, and a test starts over.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tqdm import tqdm

from longfire.atomic_io import write_whole
from longfire.evaluation.answers import answer, write_predictions
from longfire.evaluation.metrics import Answered, chance, score, swapped
from longfire.lab.downstream.questions import fingerprint
from longfire.lab.result_cache import load_result, save_result
from longfire.tasks import Example, Task
from longfire.validation import error_summary

PREDICTIONS, PARTIAL, SCORES = "predictions.jsonl", "predictions.partial.jsonl", "scores.json"

Score = dict[str, Any]
Row = dict[str, Any]
Load = Callable[[], tuple[Any, Any]]
"""Returns model and tokenizer."""


def score_task(
    load: Load,
    task: Task,
    examples: Sequence[Example],
    folder: Path,
    *,
    length: int,
    model: str,
    dtype: str | None = None,
    batch_tokens: int | None = None,
) -> Score:
    """The score of a model on questions, read from the folder if it is there; the model is loaded only if needed.

    `model` is the model's digest, `length` the maximum length of prompt and answer, `dtype` the precision if given.
    """
    asked = {
        **{"task": task.name, "metric": task.metric, "max_answer": task.max_answer, "length": length, "dtype": dtype},
        **{"examples": fingerprint(examples), "model": model},
    }
    if any(example.options for example in examples):
        asked["chance"] = "of options"  # scores without this entry are older than chance among options
    partial = folder / PARTIAL
    if (folder / PREDICTIONS).is_file() and (before := load_result(folder / SCORES, asked)) is not None:
        partial.unlink(missing_ok=True)  # left by a process that was killed
        return before
    loaded, tokenizer = load()
    options: dict[str, Any] = {"length": length, "batch_tokens": batch_tokens}
    if world_size() > 1:
        answered = answer_all(loaded, tokenizer, task, examples, **options)
    else:
        answered = answer_remaining(
            partial, asked, examples, lambda rest, save: answer_all(loaded, tokenizer, task, rest, save=save, **options)
        )
    found = {"length": length, **summarize(task, answered), "dtype": str(loaded.dtype).removeprefix("torch.")}
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SCORES).unlink(missing_ok=True)
        write_predictions(folder / PREDICTIONS, answered)
        save_result(folder / SCORES, asked, found)
        partial.unlink(missing_ok=True)
    return found


def score_or_failure(load: Load, task: Task, examples: Sequence[Example], folder: Path, **options: Any) -> Score:
    """`score_task`; if it fails, the reason, so that other tests go on."""
    try:
        found = score_task(load, task, examples, folder, **options)
    except BrokenPipeError:  # the reader of our output is gone; the test did not fail
        raise
    except Exception as error:
        found = {"task": task.name, "length": options["length"], "failed": describe_failure(error)}
    result = f"failed: {found['failed']}" if "failed" in found else f"{found['score']:.2f}"
    say(f"{task.name} in {options['length']:,} tokens, {len(examples):,} questions: {result}")
    return found


def describe_failure(error: Exception) -> str:
    """One line for the record. Raises the error where other processes would wait for this one forever."""
    if world_size() > 1 and not isinstance(error, ValueError):
        raise error
    return error_summary(error)


def summarize(task: Task, answered: Sequence[Answered]) -> Score:
    """Score and interval, and what an uninformed model would score.

    That is `chance`: a constant answer, or a constant position among a question's options. For free-form answers it is
    `swapped`: the same answers given to questions on other documents. `near_chance`: the interval is not above it.
    """
    found = {"task": task.name, **score(task.metric, answered), "chance": chance(task.metric, answered, task.choices)}
    baseline = found["chance"]
    if baseline is None and (baseline := swapped(task.metric, answered)) is not None:
        found["swapped"] = baseline
    if baseline is not None:
        found["near_chance"] = found["interval"] is None or found["interval"][0] <= baseline
    found["prompt_tokens"] = round(sum(one.prompt_tokens for one in answered) / len(answered), 1)
    return found


def answer_all(
    model: Any, tokenizer: Any, task: Task, examples: Sequence[Example], *, share: bool = True, **options: Any
) -> list[Answered]:
    """`answer`, with the questions shared among processes; `share=False` for a sharded model, which needs them all."""
    options["progress"] = is_first() and sys.stderr.isatty()
    if not share or not dist.is_initialized() or dist.get_world_size() == 1:
        return answer(model, tokenizer, task, examples, **options)
    mine: dict[int, Answered] = {}
    failed: Exception | None = None
    try:
        places = range(dist.get_rank(), len(examples), dist.get_world_size())
        own = answer(model, tokenizer, task, [examples[i] for i in places], **options)
        mine = dict(zip(places, own, strict=True))
    except Exception as error:  # every process must reach the collective below
        failed = error
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (mine, None if failed is None else f"{type(failed).__name__}: {failed}"))
    if failed is not None:
        raise failed
    if others := [error for _, error in parts if error is not None]:
        raise RuntimeError(f"another process failed: {others[0]}")
    together = {place: one for part, _ in parts for place, one in part.items()}
    return [together[place] for place in range(len(examples))]


def answer_remaining(
    file: Path,
    asked: Row,
    examples: Sequence[Example],
    answer_rest: Callable[[list[Example], Callable[[Row], object]], list[Answered]],
) -> list[Answered]:
    """Answers to all examples; those in the file are not generated again, new ones are appended as they come.

    The file's first line is `asked`, all that the answers depend on; a file with another first line is started over.
    """
    known = _read_partial(file, asked)
    write_whole(file, "".join(json.dumps(line) + "\n" for line in (asked, *known.values())))
    rest = [example for example in examples if example.id not in known]
    with file.open("a", encoding="utf-8") as lines:

        def append(row: Row) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()

        new = {one.id: one for one in (answer_rest(rest, append) if rest else [])}
    return [new[one.id] if one.id in new else _answered(one, known[one.id]) for one in examples]


def _answered(one: Example, row: Row) -> Answered:
    return Answered(one.id, row["prediction"], one.references, one.group, row["prompt_tokens"], one.options)


def _read_partial(file: Path, asked: Row) -> dict[str, Row]:
    """Answers by id. An unterminated line is dropped; if any line is damaged, all are."""
    if not file.is_file():
        return {}
    try:
        lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        return {row["id"]: row for row in lines[1:]} if lines[:1] == [asked] else {}
    except (ValueError, KeyError, TypeError):
        return {}


def folder_name(task: str, length: int, limit: int | None, split: str) -> str:
    """Folder name of a test; tests on different questions do not overwrite one another."""
    other = "" if split == "validation" else f"-{split}"
    return f"{task}-{length}{other}{'' if limit is None else f'-limit-{limit}'}"


def world_size() -> int:
    """Number of processes started by torchrun; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is torchrun's first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def say(message: str) -> None:
    """Print to stderr, from the first process only."""
    if is_first():
        tqdm.write(message, file=sys.stderr)
