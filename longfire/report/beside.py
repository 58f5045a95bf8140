"""Which of the paper's rows on tasks stand beside ours: of its size of model, with the same encoding."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
LARGE = 280_000_000
"""Parameters, and more: 350M, less what a smaller vocabulary takes."""


def papers_size(record: Row) -> str:
    """Which of the paper's sizes a record's models are nearest to: large where all are, base otherwise."""
    return "large" if min((row["parameters"] for row in record["rows"]), default=0) >= LARGE else "base"


def papers_rows(record: Row, paper: Sequence[Row], size: str) -> list[Row]:
    """Of this size, those whose encoding the record has."""
    ours = [papers_row(row, paper, size) for row in record["rows"]]
    return [one for one in paper if any(one is own for own in ours)]


def papers_row(row: Row, paper: Sequence[Row], size: str) -> Row | None:
    """With the encoding of a row of ours. FIRE without its parts is called fire, and the folder of its run tells."""
    of_size = [one for one in paper if one["size"] == size]
    parts = [one for one in of_size if one["encoding"].startswith(f"{row['encoding']}:")]
    without = [one for one in parts if in_folder(row, one["encoding"])]
    same = [one for one in of_size if one["encoding"] == row["encoding"]]
    return next(iter([*without, *same]), None)


def in_folder(row: Row, name: str) -> bool:
    """Whether a folder of the checkpoint is called so, but for a seed: fire-threshold-None-0."""
    folders = str(row.get("checkpoint") or "").split("/")
    return any(_words(re.sub(r"-\d+$", "", folder)) == _words(name) for folder in folders)


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())
