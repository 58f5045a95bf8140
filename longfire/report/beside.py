"""Which of the paper's rows on tasks stand beside ours: of its size of model, with the same encoding."""

from collections.abc import Mapping, Sequence
from typing import Any

from longfire.encodings.registry import SHARED, changed_options

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
    """With the encoding of a row of ours."""
    return next((one for one in paper if one["size"] == size and one["encoding"] == encoding_of(row)), None)


def encoding_of(row: Row) -> str:
    """With the options that make it another: `fire:log=False,threshold=None`."""
    encoding = str(row["encoding"])
    changed = changed_options(encoding.removesuffix(SHARED), row.get("options") or {})
    return f"{encoding}:{','.join(f'{key}={changed[key]}' for key in sorted(changed))}" if changed else encoding
