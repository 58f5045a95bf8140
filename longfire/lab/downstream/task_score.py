"""Test a model on a task; answers and score are computed once and kept in a folder.

    FOLDER/predictions.jsonl          one line per question
           scores.json                the score, and what it was computed for
           predictions.partial.jsonl  the answers so far, while a test runs

Interrupted tests resume; with several processes (torchrun), which share the questions, they start over.
"""

import json
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
from longfire.training.processes import is_first, world_size
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
    """The score of a model on questions, from the folder if already there; otherwise loads the model and tests it.

    `model` is the model's digest, `length` the maximum length of prompt and answer, `dtype` the requested precision.
    """
    asked = {
        **{"task": task.name, "metric": task.metric, "max_answer": task.max_answer, "length": length, "dtype": dtype},
        **{"examples": fingerprint(examples), "model": model},
    }
    if any(example.options for example in examples):
        asked["chance"] = "of options"  # invalidates scores from before chance considered options
    partial = folder / PARTIAL
    if (folder / PREDICTIONS).is_file() and (cached := load_result(folder / SCORES, asked)) is not None:
        partial.unlink(missing_ok=True)  # left by a killed process
        return cached
    loaded, tokenizer = load()
    options: dict[str, Any] = {"length": length, "batch_tokens": batch_tokens}
    if world_size() > 1:
        answered = answer_all(loaded, tokenizer, task, examples, **options)
    else:
        answered = answer_remaining(
            partial, asked, examples, lambda rest, save: answer_all(loaded, tokenizer, task, rest, save=save, **options)
        )
    result = {"length": length, **summarize(task, answered), "dtype": str(loaded.dtype).removeprefix("torch.")}
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SCORES).unlink(missing_ok=True)
        write_predictions(folder / PREDICTIONS, answered)
        save_result(folder / SCORES, asked, result)
        partial.unlink(missing_ok=True)
    return result


def score_or_failure(load: Load, task: Task, examples: Sequence[Example], folder: Path, **options: Any) -> Score:
    """`score_task`, with a failure as the result, so that other tests continue."""
    try:
        result = score_task(load, task, examples, folder, **options)
    except BrokenPipeError:  # our output was closed; the test did not fail
        raise
    except Exception as error:
        result = {"task": task.name, "length": options["length"], "failed": describe_failure(error)}
    outcome = f"failed: {result['failed']}" if "failed" in result else f"{result['score']:.2f}"
    say(f"{task.name} in {options['length']:,} tokens, {len(examples):,} questions: {outcome}")
    return result


def describe_failure(error: Exception) -> str:
    """One line for the record. Re-raises the error if other processes would wait for this one forever."""
    if world_size() > 1 and not isinstance(error, ValueError):
        raise error
    return error_summary(error)


def summarize(task: Task, answered: Sequence[Answered]) -> Score:
    """The score, its interval and a baseline.

    The baseline is `chance`: the best constant answer, or constant position among a question's options. For free-form
    answers it is `swapped`: the same answers swapped between documents. `near_chance`: the interval reaches down to it.
    """
    result = {"task": task.name, **score(task.metric, answered), "chance": chance(task.metric, answered, task.choices)}
    baseline = result["chance"]
    if baseline is None and (baseline := swapped(task.metric, answered)) is not None:
        result["swapped"] = baseline
    if baseline is not None:
        result["near_chance"] = result["interval"] is None or result["interval"][0] <= baseline
    result["prompt_tokens"] = round(sum(one.prompt_tokens for one in answered) / len(answered), 1)
    return result


def answer_all(
    model: Any, tokenizer: Any, task: Task, examples: Sequence[Example], *, share: bool = True, **options: Any
) -> list[Answered]:
    """`answer`, with the questions shared among processes; pass `share=False` for a sharded model."""
    options["progress"] = is_first() and sys.stderr.isatty()
    if not share or not dist.is_initialized() or dist.get_world_size() == 1:
        return answer(model, tokenizer, task, examples, **options)
    own_answers: dict[int, Answered] = {}
    failure: Exception | None = None
    try:
        indices = range(dist.get_rank(), len(examples), dist.get_world_size())
        answers = answer(model, tokenizer, task, [examples[i] for i in indices], **options)
        own_answers = dict(zip(indices, answers, strict=True))
    except Exception as error:  # every process must reach the collective below
        failure = error
    gathered: list[Any] = [None] * dist.get_world_size()
    message = None if failure is None else f"{type(failure).__name__}: {failure}"
    dist.all_gather_object(gathered, (own_answers, message))
    if failure is not None:
        raise failure
    if messages := [message for _, message in gathered if message is not None]:
        raise RuntimeError(f"another process failed: {messages[0]}")
    merged = {index: one for part, _ in gathered for index, one in part.items()}
    return [merged[index] for index in range(len(examples))]


def answer_remaining(
    file: Path,
    asked: Row,
    examples: Sequence[Example],
    answer_rest: Callable[[list[Example], Callable[[Row], object]], list[Answered]],
) -> list[Answered]:
    """Answers to all examples. Those in the file are reused; new ones are appended as they are generated.

    The file's first line is `asked`, everything the answers depend on; a file with another first line is discarded.
    """
    earlier = _read_partial(file, asked)
    write_whole(file, "".join(json.dumps(line) + "\n" for line in (asked, *earlier.values())))
    rest = [example for example in examples if example.id not in earlier]
    with file.open("a", encoding="utf-8") as lines:

        def append(row: Row) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()

        new = {one.id: one for one in (answer_rest(rest, append) if rest else [])}
    return [new[one.id] if one.id in new else _answered(one, earlier[one.id]) for one in examples]


def _answered(one: Example, row: Row) -> Answered:
    return Answered(one.id, row["prediction"], one.references, one.group, row["prompt_tokens"], one.options)


def _read_partial(file: Path, asked: Row) -> dict[str, Row]:
    """Answers by id. An unterminated last line is dropped; a damaged line discards the file."""
    if not file.is_file():
        return {}
    try:
        lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        return {row["id"]: row for row in lines[1:]} if lines[:1] == [asked] else {}
    except (ValueError, KeyError, TypeError):
        return {}


def folder_name(task: str, length: int, limit: int | None, split: str) -> str:
    """Folder name of a test, distinct for different questions."""
    split_suffix = "" if split == "validation" else f"-{split}"
    return f"{task}-{length}{split_suffix}{'' if limit is None else f'-limit-{limit}'}"


def say(message: str) -> None:
    """Print to stderr, from the first process only."""
    if is_first():
        tqdm.write(message, file=sys.stderr)
