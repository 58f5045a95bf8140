"""Rows of a record of tasks that have one label: the same encoding, with other seeds of pretraining."""

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]


def with_seeds(record: Record) -> Record:
    """The record, with rows of one label side by side, each with its seed behind it."""
    rows = [
        {**row, "label": with_seed(row)} if len(same) > 1 else row
        for same in by_label(record["rows"]).values()
        for row in same
    ]
    return {**record, "rows": rows}


def with_seed(row: Record) -> str:
    """`FIRE, seed 1`."""
    return f"{row['label']}, seed {row['seed']}"


def by_label(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """The rows of each."""
    return {row["label"]: [one for one in rows if one["label"] == row["label"]] for row in rows}


def how_many(rows: Sequence[Record]) -> str:
    """`, 3 seeds each`; `, 1 to 3 seeds each` where they differ; nothing where there is one of each."""
    counts = sorted({len(of) for of in by_label(rows).values()})
    if counts in ([], [1]):
        return ""
    return f", {' to '.join(str(n) for n in dict.fromkeys([counts[0], counts[-1]]))} seeds each"
