"""Rows that are made up, of every task in its own form, to try things out without data. Scores on them say nothing."""

from collections.abc import Iterator
from string import Formatter
from typing import Any

from longfire.tasks.task import Task

MADE_UP = "made-up"
"""In place of a folder with rows."""
ROWS = {"train": 12, "validation": 4}
THINGS = ("moss", "tea", "salt", "rope", "ink", "wool")
BOXES = 120
"""In a document: a sentence each, about 2,500 letters together."""


def made_up_rows(task: Task, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row is, and the row. Answers follow from documents in SCROLLS' tasks, from nothing in GLUE's."""
    if split not in ROWS:
        raise FileNotFoundError(f"{MADE_UP} has no {split} split of {task.name}. Splits there are: {', '.join(ROWS)}.")
    made = _of_columns if task.form == "template" else _of_a_room
    for number in range(ROWS[split]):
        name = f"{MADE_UP}-{task.name}-{split}-{number}"
        yield name, {"id": name, "task": task.name, **made(task, split, number)}


def _of_a_room(task: Task, split: str, number: int) -> dict[str, str]:
    """What is in a box of a room? The document names them all."""
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
        question += "\n" + _four(boxes[box])
    return {"input": f"{question}\n\n{text}", "output": boxes[box]}


def _of_columns(task: Task, split: str, number: int) -> dict[str, Any]:
    """A sentence in each column of the task's template; the answers by turns."""
    columns = [column for _, column, _, _ in Formatter().parse(task.template) if column]
    box = number if split == "train" else number + ROWS["train"]
    things = [THINGS[(number + place) % len(THINGS)] for place in range(len(columns))]
    filled = {column: _sentence(box, thing) for column, thing in zip(columns, things, strict=True)}
    if task.choices:
        return {"input": task.template.format(**filled), "output": task.choices[number % len(task.choices)]}
    fields = {"entities": things, "answers": things[:1]}
    return {"input": task.template.format(**filled), "output": things[0], "fields": fields}


def _sentence(box: int, thing: str) -> str:
    return f"Box {box} holds {thing}."


def _four(thing: str) -> str:
    """Options, of which this is one."""
    things = sorted([thing, *[other for other in THINGS if other != thing][:3]])
    return "".join(f"\n ({letter}) {option}" for letter, option in zip("ABCD", things, strict=True))
