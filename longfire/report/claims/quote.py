"""Numbers of the paper's tables, with the digits that they have there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longfire.evaluation.metrics import average
from longfire.report.table import places

AVERAGE, ABOUT = "average", ("size", "encoding", "label", "extended_to")
"""Columns of the paper's tables that are no task."""

Papers = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows of the paper's tables, by name, as `longfire.lab.reported` has them."""


def mean_over(tasks: Sequence[str], which: str) -> str:
    """`mean of the 14 tasks that all have`."""
    return f"mean of the {len(tasks)} task{'s' * (len(tasks) > 1)} {which}"


@dataclass(frozen=True)
class Quote:
    """Numbers of one of the paper's tables."""

    table: str
    encodings: tuple[str, ...]
    columns: tuple[str, ...] = ("512", "1024", "2048", "4096", "8192")
    size: str = "base"

    def text(self, papers: Papers, tasks: Sequence[str] = ()) -> str:
        """`FIRE 3.054, 3.046, 3.056<br>Kerple 3.170, …`.

        An average that the paper does not state is the mean of its figures. Where ours is that of fewer tasks, its own
        over the same stands beside it.
        """
        table = [row for row in papers.get(self.table, ()) if row["size"] == self.size]
        quoted, digits = [row for row in table if row["encoding"] in self.encodings], places(table)
        text = _between(self).join(
            f"{row['label']} {', '.join(_number(_value(row, column), digits) for column in self.columns)}"
            for row in quoted
        )
        if AVERAGE not in self.columns or not tasks:
            return text
        means = [(row["label"], average(row, tasks)) for row in quoted]
        same = [f"{label} {_number(mean, 2)}" for label, mean in means if mean is not None]
        return f"{text}<br>{mean_over(tasks, 'of ours')}: {'; '.join(same)}" if same else text

    def lengths(self) -> str:
        """`at 2,048, 4,096, 8,192 tokens`, or nothing."""
        found = [f"{int(column):,}" for column in self.columns if column.isdigit()]
        return f"at {', '.join(found)} tokens" if found else ""


def quoted(parts: Sequence[Quote | str], papers: Papers, tasks: Sequence[str] = ()) -> str:
    """One after the other; what several of them are at is said once, after the last."""
    shown = []
    for part, after in zip(parts, (*parts[1:], ""), strict=True):
        if isinstance(part, str):
            shown.append(part)
            continue
        shown.append(part.text(papers, tasks))
        if (at := part.lengths()) and not (isinstance(after, Quote) and after.lengths() == at):
            shown.append(at)
    return (_between(parts[0]) if isinstance(parts[0], Quote) else "; ").join(shown)


def _between(quote: Quote) -> str:
    """Of several numbers each, encodings have a line each."""
    return "<br>" if len(quote.columns) > 1 else "; "


def _value(row: Mapping[str, Any], column: str) -> float | None:
    if column != AVERAGE or row[AVERAGE] is not None:
        return row.get(column)
    tasks = [key for key in row if key not in (*ABOUT, AVERAGE)]
    mean = average(row, tasks)
    return None if mean is None else round(mean, 2)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
