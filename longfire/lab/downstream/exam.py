"""A model tested on a task: answers and scores in a folder, made once.

    FOLDER/predictions.jsonl   a line for each question
           scores.json         the score, and what it is of
           predictions.partial.jsonl  meanwhile, the answers so far

Killed while it answers, a test goes on. Several processes, by torchrun, answer a share each, and begin anew.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tqdm import tqdm

from longfire.evaluation.answers import answer, write_predictions
from longfire.evaluation.metrics import Answered, chance, score, swapped
from longfire.lab.downstream.questions import fingerprint
from longfire.lab.downstream.resume import DRAFT, with_draft
from longfire.lab.kept import keep, kept
from longfire.tasks import Example, Task
from longfire.validation import error_summary

PREDICTIONS, SCORES = "predictions.jsonl", "scores.json"

Scored = dict[str, Any]
Save = Callable[[dict[str, Any]], object]
Loader = Callable[[], tuple[Any, Any]]
"""Gives model and tokenizer."""


def examined(
    load: Loader,
    task: Task,
    examples: Sequence[Example],
    folder: Path,
    *,
    length: int,
    model: str,
    dtype: str | None = None,
    batch_tokens: int | None = None,
) -> Scored:
    """The score of a model on questions; from the folder, where it has been found before.

    Args:
        load: called only if there is something to answer.
        task: of the questions.
        examples: the questions.
        folder: to keep all in.
        length: of prompt and answer, at most.
        model: its digest.
        dtype: which it is loaded in, if a certain one was asked for.
        batch_tokens: in a batch.
    """
    how = {"task": task.name, "metric": task.metric, "max_answer": task.max_answer, "length": length, "dtype": dtype}
    asked = {**how, "examples": fingerprint(examples), "model": model}
    if any(example.options for example in examples):
        asked["chance"] = "of options"  # without it: scored when only answers to other questions stood beside them
    if (folder / PREDICTIONS).is_file() and (before := kept(folder / SCORES, asked)) is not None:
        (folder / DRAFT).unlink(missing_ok=True)  # of a test that was killed before it did this itself
        return before
    loaded, tokenizer = load()

    def answer_rest(rest: list[Example], save: Save | None = None) -> list[Answered]:
        options: dict[str, Any] = {"length": length, "batch_tokens": batch_tokens, "save": save}
        return answers_of_all(loaded, tokenizer, task, rest, **options)

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        answered = answer_rest(list(examples))
    else:
        answered = with_draft(folder / DRAFT, asked, examples, answer_rest)
    found = {"length": length, **scored(task, answered), "dtype": str(loaded.dtype).removeprefix("torch.")}
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SCORES).unlink(missing_ok=True)
        write_predictions(folder / PREDICTIONS, answered)
        keep(folder / SCORES, asked, found)
        (folder / DRAFT).unlink(missing_ok=True)
    return found


def examined_or_failed(load: Loader, task: Task, examples: Sequence[Example], folder: Path, **options: Any) -> Scored:
    """`examined`; or, where that fails, the reason, so that the others are tested all the same."""
    try:
        found = examined(load, task, examples, folder, **options)
    except BrokenPipeError:  # whoever was reading is gone: no failure of the test
        raise
    except Exception as error:
        found = {"task": task.name, "length": options["length"], "failed": failure(error)}
    result = f"failed: {found['failed']}" if "failed" in found else f"{found['score']:.2f}"
    say(f"{task.name} in {options['length']:,} tokens, {len(examples):,} questions: {result}")
    return found


def failure(error: Exception) -> str:
    """In a line, for the record. It is raised where others may wait for this process in vain."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not isinstance(error, ValueError):
        raise error
    return error_summary(error)


def scored(task: Task, answered: Sequence[Answered]) -> Scored:
    """Score and interval; beside them what tells nothing would score, and whether the score is above it.

    That is one answer to all, or the option in one place (`chance`); or, where answers are in free words, the same ones
    given to questions on other documents (`swapped`). `near_chance`: the interval covers it, or lies below it.
    """
    found = {"task": task.name, **score(task.metric, answered), "chance": chance(task.metric, answered, task.choices)}
    least = found["chance"]
    if least is None and (least := swapped(task.metric, answered)) is not None:
        found["swapped"] = least
    if least is not None:
        found["near_chance"] = found["interval"] is None or found["interval"][0] <= least
    found["prompt_tokens"] = round(sum(one.prompt_tokens for one in answered) / len(answered), 1)
    return found


def answers_of_all(
    model: Any,
    tokenizer: Any,
    task: Task,
    examples: Sequence[Example],
    *,
    length: int,
    batch_tokens: int | None = None,
    share: bool = True,
    save: Save | None = None,
) -> list[Answered]:
    """`answer`, with the questions shared among processes, unless a sharded model needs all of them for each."""
    options: dict[str, Any] = {"length": length, "batch_tokens": batch_tokens, "save": save}
    options["progress"] = is_first() and sys.stderr.isatty()
    if not share or not dist.is_initialized() or dist.get_world_size() == 1:
        return answer(model, tokenizer, task, examples, **options)
    mine: dict[int, Answered] = {}
    failed: Exception | None = None
    try:
        places = range(dist.get_rank(), len(examples), dist.get_world_size())
        own = answer(model, tokenizer, task, [examples[i] for i in places], **options)
        mine = dict(zip(places, own, strict=True))
    except Exception as error:  # all must come to the place where they wait for each other
        failed = error
    said = None if failed is None else f"{type(failed).__name__}: {failed}"
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (mine, said))
    if failed is not None:
        raise failed
    if others := [error for _, error in parts if error is not None]:
        raise RuntimeError(f"another process failed: {others[0]}")
    together = {place: one for part, _ in parts for place, one in part.items()}
    return [together[place] for place in range(len(examples))]


def folder_of(task: str, length: int, limit: int | None, split: str = "validation") -> str:
    """The name of a test's folder. Other questions of a task have another, so that none is written over by them."""
    other = "" if split == "validation" else f"-{split}"
    return f"{task}-{length}{other}{'' if limit is None else f'-limit-{limit}'}"


def is_first() -> bool:
    """Of the processes that torchrun started; one alone is the first."""
    return int(os.environ.get("RANK", "0")) == 0


def say(what: str) -> None:
    """To whoever is looking, from the first process."""
    if is_first():
        tqdm.write(what, file=sys.stderr)
