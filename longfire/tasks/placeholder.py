"""Placeholder rows for every task in its own format, to try commands without data. Scores on them mean nothing."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from longfire.tasks.suites import Task

PLACEHOLDER = "placeholder"
"""Passed instead of a data folder."""
FORMER_NAME = "made-up"
"""What earlier records call it. Row ids keep it, so that earlier runs on these rows are recognised."""
PLACEHOLDER_ROWS = {"train": 12, "validation": 4}
THINGS = ("moss", "tea", "salt", "rope", "ink", "wool")
BOXES = 120
"""Sentences in a document, about 2,500 letters in all."""


def is_placeholder(data: str | Path | None) -> bool:
    """Whether a data source means placeholder rows, under their current or former name."""
    return str(data) in (PLACEHOLDER, FORMER_NAME)


def warn_former_name(data: str | Path | None) -> None:
    """Warn about `made-up`, which the next release drops."""
    if str(data) == FORMER_NAME:
        message = f"the data source {FORMER_NAME!r} is now {PLACEHOLDER!r}; the next release drops the old name."
        warnings.warn(message, FutureWarning, stacklevel=3)


def placeholder_rows(task: Task, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location and content of each row. SCROLLS answers follow from the document, GLUE answers from nothing."""
    make_row = _glue_row if task.form == "template" else _scrolls_row
    for number in range(PLACEHOLDER_ROWS[split]):
        name = f"{FORMER_NAME}-{task.name}-{split}-{number}"
        yield name, {"id": name, "task": task.name, **make_row(task, split, number)}


def _scrolls_row(task: Task, split: str, number: int) -> dict[str, str]:
    """A question about one box, and a document that lists all boxes."""
    boxes = [THINGS[(number + box * box) % len(THINGS)] for box in range(BOXES)]
    text = f"Room {number} of the {split} house. " + " ".join(_sentence(box, thing) for box, thing in enumerate(boxes))
    box = 7 * number % BOXES
    if task.form == "document":
        return {"input": text, "output": _sentence(0, boxes[0])}
    if task.choices:
        claims = [_sentence(box, boxes[box]), _sentence(box, "nothing"), _sentence(BOXES, "gold")]
        turn = number % len(claims)
        return {"input": f"{claims[turn]}\n\n{text}", "output": task.choices[turn]}
    question = f"What is in box {box}?"
    if task.form == "options":
        options = sorted([boxes[box], *[thing for thing in THINGS if thing != boxes[box]][:3]])
        question += "\n" + "".join(f"\n ({letter}) {one}" for letter, one in zip("ABCD", options, strict=True))
    return {"input": f"{question}\n\n{text}", "output": boxes[box]}


def _glue_row(task: Task, split: str, number: int) -> dict[str, Any]:
    """A sentence in each column of the template; answers alternate."""
    columns = [column for _, column, _, _ in Formatter().parse(task.template) if column]
    box = number if split == "train" else number + PLACEHOLDER_ROWS["train"]
    things = [THINGS[(number + i) % len(THINGS)] for i in range(len(columns))]
    filled = {column: _sentence(box, thing) for column, thing in zip(columns, things, strict=True)}
    row: dict[str, Any] = {"input": task.template.format(**filled)}
    if task.choices:
        return {**row, "output": task.choices[number % len(task.choices)]}
    return {**row, "output": things[0], "fields": {"entities": things, "answers": things[:1]}}


def _sentence(box: int, thing: str) -> str:
    return f"Box {box} holds {thing}."
