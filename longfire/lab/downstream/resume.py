"""The answers of a test so far: a line each, as they come, so that a test that was killed goes on."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longfire.atomic_io import write_whole
from longfire.evaluation.metrics import Answered
from longfire.tasks import Example

DRAFT = "predictions.partial.jsonl"

Row = dict[str, Any]
AnswerRest = Callable[[list[Example], Callable[[Row], object]], list[Answered]]
"""Answers questions, and gives each answer to a function as soon as it is there."""


def with_draft(file: Path, asked: Row, examples: Sequence[Example], answer_rest: AnswerRest) -> list[Answered]:
    """The answers to all, of which those in the file are not asked for again. The file stays; its folder is made.

    Args:
        file: its first line says what was asked.
        asked: what the answers depend on. A file of anything else is begun anew.
        examples: the questions.
        answer_rest: called with those that are not answered yet, if any.
    """
    known = _read(file, asked)
    write_whole(file, "".join(json.dumps(line) + "\n" for line in (asked, *known.values())))
    rest = [example for example in examples if example.id not in known]
    with file.open("a", encoding="utf-8") as lines:

        def add(row: Row) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()

        new = {one.id: one for one in (answer_rest(rest, add) if rest else [])}
    return [new[one.id] if one.id in new else _answered(one, known[one.id]) for one in examples]


def _answered(one: Example, row: Row) -> Answered:
    return Answered(one.id, row["prediction"], one.references, one.group, row["prompt_tokens"], one.options)


def _read(file: Path, asked: Row) -> dict[str, Row]:
    """By id. A line without an end was being written; where lines are damaged, none counts."""
    if not file.is_file():
        return {}
    try:
        lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        return {row["id"]: row for row in lines[1:]} if lines[:1] == [asked] else {}
    except (ValueError, KeyError, TypeError):
        return {}
