"""A claim of the paper: what it says, its numbers there, and what the records in results/ say of it.

A claim rests on comparisons, each a number for every seed, above 0 where the claim is borne out. A comparison is
decided as everywhere here, by `longfire.report.differences.holds`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from longfire.evaluation.metrics import average
from longfire.report.differences import Difference
from longfire.report.summary import Record

HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "cannot be told at this scale", "not measured yet"
VERDICTS = (HOLDS, FAILS, OPEN, MISSING)
AVERAGE, ABOUT = "average", ("size", "encoding", "label", "extended_to")
"""Columns of the paper's tables that are no task."""

Papers = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows of the paper's tables, by name, as `longfire.lab.reported` has them."""
Records = Mapping[str, Record]
"""By folder and name, such as reproduce/perplexity-base."""


def decided(by_seed: Sequence[float], seeds: int) -> str:
    """Whether numbers are above 0, below it, or neither as far as these seeds tell."""
    if Difference(0, "", "", list(by_seed), seeds).holds:
        return HOLDS
    return FAILS if Difference(0, "", "", [-value for value in by_seed], seeds).holds else OPEN


@dataclass(frozen=True)
class Step:
    """One comparison."""

    at: str
    """Of those at one place, such as a length, only the weakest is shown."""
    text: str
    verdict: str
    mean: float = 0.0

    @classmethod
    def of(cls, at: str, text: str, by_seed: Sequence[float], seeds: int) -> "Step":
        """From the numbers of all seeds, above 0 where the claim is borne out."""
        if not by_seed:
            return cls(at, text, OPEN, float("-inf"))
        return cls(at, text, decided(by_seed, seeds), fmean(by_seed))


@dataclass(frozen=True)
class Finding:
    """What a record says of a claim."""

    verdict: str
    numbers: tuple[str, ...] = ()
    record: str = ""


def found(steps: Sequence[Step]) -> Finding | None:
    """A claim holds if every comparison does, and does not if one comes out the other way. None: there is none."""
    if not steps:
        return None
    places: dict[str, list[Step]] = {}
    for step in steps:
        places.setdefault(step.at, []).append(step)
    order = (FAILS, OPEN, HOLDS)
    weakest = [min(those, key=lambda step: (order.index(step.verdict), step.mean)) for those in places.values()]
    verdict = min((step.verdict for step in weakest), key=order.index)
    return Finding(verdict, tuple(f"{step.at}: {step.text}" if step.at else step.text for step in weakest))


def by(compared: Callable[..., Sequence[Step]], *arguments: Any, **options: Any) -> Callable[[Record], Finding | None]:
    """A judge that makes these comparisons of a record."""
    return lambda record: found(compared(record, *arguments, **options))


def mean_over(tasks: Sequence[str], which: str) -> str:
    """`mean of the 14 tasks that all have`."""
    return f"mean of the {len(tasks)} task{'s' * (len(tasks) > 1)} {which}"


@dataclass(frozen=True)
class Quote:
    """Numbers of one of the paper's tables."""

    table: str
    encodings: tuple[str, ...]
    columns: tuple[str, ...] = ("2048", "4096", "8192")
    size: str = "base"

    def text(self, papers: Papers, tasks: Sequence[str] = ()) -> str:
        """`FIRE 3.054, 3.046, 3.056; Kerple 3.170, …; at 2,048, 4,096, 8,192`.

        An average that the paper does not state is the mean of its figures. Where ours is that of fewer tasks, its own
        over the same stands beside it.
        """
        table = [row for row in papers.get(self.table, ()) if row["size"] == self.size]
        quoted = [row for row in table if row["encoding"] in self.encodings]
        text = self._listed(quoted)
        if AVERAGE not in self.columns or not tasks:
            return text
        same = [f"{row['label']} {_number(average(row, tasks), 2)}" for row in quoted]
        return f"{text}<br>{mean_over(tasks, 'of ours')}: {'; '.join(same)}"

    def _listed(self, quoted: Sequence[Mapping[str, Any]]) -> str:
        rows = [(row["label"], [_value(row, column) for column in self.columns]) for row in quoted]
        places = max((len(str(value).partition(".")[2]) for _, values in rows for value in values if value), default=0)
        shown = [f"{label} {', '.join(_number(value, places) for value in values)}" for label, values in rows]
        lengths = [f"{int(column):,}" for column in self.columns if column.isdigit()]
        return "; ".join(shown) + (f"; at {', '.join(lengths)} tokens" if lengths else "")


@dataclass(frozen=True)
class Claim:
    """Of the paper, in our words."""

    where: str
    """In the paper."""
    says: str
    records: tuple[str, ...]
    """It is judged by the first of these that has what it needs."""
    judge: Callable[[Record], Finding | None]
    """None: the record has nothing of it."""
    paper: Quote | str | tuple[Quote | str, ...] = "a picture, without numbers"

    def judged(self, records: Records) -> Finding:
        """By what there is."""
        for name in self.records:
            if name in records and (finding := self.judge(records[name])) is not None:
                return Finding(finding.verdict, finding.numbers, name)
        return Finding(MISSING)

    def quoted(self, papers: Papers, tasks: Sequence[str] = ()) -> str:
        """The paper's numbers, and its means over these tasks, if there are any."""
        parts = self.paper if isinstance(self.paper, tuple) else (self.paper,)
        return "; ".join(part if isinstance(part, str) else part.text(papers, tasks) for part in parts)


def _value(row: Mapping[str, Any], column: str) -> float | None:
    if column != AVERAGE or row[AVERAGE] is not None:
        return row.get(column)
    tasks = [key for key in row if key not in (*ABOUT, AVERAGE)]
    mean = average(row, tasks)
    return None if mean is None else round(mean, 2)


def _number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:.{places}f}"
