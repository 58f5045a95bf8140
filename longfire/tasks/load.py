"""All examples of one split of a task."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from longfire.tasks.rows import example_of
from longfire.tasks.sources import Rows, rows_of
from longfire.tasks.task import Example, Task
from longfire.validation import at_least


def load_examples(task: Task, source: str | Path | None, split: str, *, limit: int | None = None) -> list[Example]:
    """The examples of one split, in the order of its rows; rows with the same id are references of one example.

    Args:
        task: Which task.
        source: A folder with `TASK/SPLIT.jsonl` (or .jsonl.gz, .jsonl.zst), at most a folder of the suite's name above
            it, or with the task's splits themselves; one such file; a zip as SCROLLS has them; "hub" or None for the
            Hugging Face hub; "made-up" for rows of `longfire.tasks.placeholder`.
        split: "train" or "validation".
        limit: The first so many examples. Reading ends there, so references of one example must stand together.
    """
    if limit is not None:
        at_least("limit", limit, 1)
    examples = _merged(task, _shown(rows_of(task, source, split), f"{task.name} {split}"), limit)
    if not examples:
        raise ValueError(f"{source or 'hub'} has no rows of {task.name} in the {split} split. Give one that has.")
    return examples


def _merged(task: Task, rows: Rows, limit: int | None) -> list[Example]:
    found: dict[str, Example] = {}
    first: dict[str, str] = {}  # where each was first seen
    documents: dict[str, str] = {}  # many questions share one, and a story has a megabyte
    for where, row in rows:
        example = example_of(task, row, where)
        known = found.get(example.id)
        if known is None:
            if len(found) == limit:
                break
            found[example.id] = replace(example, document=documents.setdefault(example.document, example.document))
            first[example.id] = where
        elif (known.question, known.document) != (example.question, example.document):
            raise ValueError(
                f"{where} has the id {example.id!r} of {first[example.id]}, but another input. Rows with one id are "
                "answers to one question; give others an id of their own."
            )
        else:
            found[example.id] = replace(known, references=(*known.references, *example.references))
    return list(found.values())


def _shown(rows: Rows, what: str) -> Rows:
    """With a progress bar where it takes seconds and someone is looking."""
    bar: Iterable[tuple[str, object]] = tqdm(rows, what, unit="row", delay=3, leave=False, disable=None)
    yield from bar
