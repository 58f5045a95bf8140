"""Whose rows of a record of tasks are, and which of them are seeds of one encoding.

A record has a row for each checkpoint. Rows of one encoding are seeds if they were told apart (by checkpoint, or by the
seed of a run), are alike in all else that a record says of them, and scored differently. What cannot be told apart
counts once. Seeds of two encodings are compared in their order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from longfire.evaluation.seeds import alike
from longfire.report.summary import Record
from longfire.report.task_rows import encoding_of
from longfire.tasks import SUITES, TASKS

Row = dict[str, Any]
FARTHEST = 4
"""Times the fine-tuning length: as far as the paper tests."""


def rows_of(record: Record, name: str) -> list[list[Row]]:
    """Of an encoding, or of FIRE with options: its seeds. Of RoPE-PI a list for each length it is stretched to."""
    rows = [row for row in record["rows"] if encoding_of(row) == name]
    targets = sorted({row.get("extended_to") or 0 for row in rows})
    return [_seeds([row for row in rows if (row.get("extended_to") or 0) == target]) for target in targets]


def stretched(record: Record, times: int) -> list[Row]:
    """RoPE-PI that is stretched to so many times the fine-tuning length."""
    target = times * tuned_length(record)
    return next((rows for rows in rows_of(record, "rope_pi") if rows[0].get("extended_to") == target), [])


def tuned_length(record: Record) -> int:
    """What all were fine-tuned at, here or before; 0 where that is not known."""
    before = [row.get("finetuned_length") for row in record["rows"]]
    return int(record["setting"].get("length") or next(filter(None, before), 0))


def tuned_on(record: Record) -> list[str]:
    """Tasks that models were fine-tuned on, here or before."""
    here = [task for mixture in record["setting"].get("mixtures") or () for task in mixture["tasks"]]
    before = [task for row in record["rows"] for task in row.get("finetuned_on") or ()]
    return list(dict.fromkeys([*here, *before]))


def lengths_in_range(record: Record) -> list[int]:
    """Those tested, up to the paper's multiple of the fine-tuning length."""
    tuned = tuned_length(record)
    return [length for length in record["setting"]["lengths"] if not tuned or length <= FARTHEST * tuned]


def at(row: Row, length: int) -> dict[str, Row]:
    """Scores at a length, by task."""
    return {one["task"]: one for one in row["scores"] if one["length"] == length and "failed" not in one}


def shared_tasks(record: Record, length: int) -> list[str]:
    """Those that all rows have, but for rows that have none at this length."""
    found = [scores for row in record["rows"] if (scores := at(row, length))]
    return [task for task in record["setting"]["tasks"] if all(task in scores for scores in found)]


def fewer_tasks(record: Record, length: int) -> list[str]:
    """Those that all rows have, where they are not all of the paper's table; of a record of one task, none."""
    tasks = shared_tasks(record, length)
    asked = record["setting"]["tasks"]
    return tasks if len(asked) > 1 and set(tasks) != set(SUITES[TASKS[asked[0]].suite]) else []


def seeds_in(record: Record) -> str:
    """`one seed`, `3 seeds`; `1 to 3 seeds` where encodings differ."""
    encodings = dict.fromkeys(map(encoding_of, record["rows"]))
    counts = sorted({len(rows) for name in encodings for rows in rows_of(record, name)})
    if counts == [1]:
        return "one seed"
    return f"{' to '.join(str(n) for n in dict.fromkeys([counts[0], counts[-1]]))} seeds" if counts else ""


def _seeds(rows: Sequence[Row]) -> list[Row]:
    plain = [row for row in rows if "=" not in _called(row)] or rows
    kept: list[Row] = []
    for row in plain:
        same = not kept or (_called(row) == _called(kept[0]) and alike(row, kept[0]))
        if same and all(_told_apart(row, other) for other in kept):
            kept.append(row)
    return kept


def _called(row: Row) -> str:
    """Its label, without the folder that tells it from another: of options alone."""
    head, _, inside = str(row["label"]).partition(" (")
    return str(row["label"]) if "=" in inside and "/" not in inside else head


def _told_apart(one: Row, other: Row) -> bool:
    return _told(one) != _told(other) and list(_numbers(one)) != list(_numbers(other))


def _told(row: Row) -> tuple[Any, ...]:
    """By its weights, or else where they are, and the seeds of its runs."""
    return row.get("key") or row.get("checkpoint"), row.get("seed"), (row.get("finetuned") or {}).get("seed")


def _numbers(row: Row) -> Iterator[tuple[Any, ...]]:
    yield from ((one["task"], one["length"], one.get("score")) for one in row["scores"])
