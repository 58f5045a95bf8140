"""Load the paper's claims from claims.toml, and quote the paper's numbers for them."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.score_operators import mean_over
from longfire.evaluation.metrics import average
from longfire.report.metric import fixed
from longfire.report.table import places

FILE = Path(__file__).with_name("claims.toml")
NO_NUMBERS = "a figure without numbers"
AVERAGE, NOT_TASKS = "average", ("size", "encoding", "label", "extended_to", "average")
LENGTHS = (512, 1024, 2048, 4096, 8192)
Papers = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows of the paper's tables by name, from `longfire.lab.reported`."""


@dataclass(frozen=True)
class Quote:
    """Numbers from one of the paper's tables, with as many digits as there."""

    table: str
    rows: Sequence[str]
    at: Sequence[int | str] = LENGTHS
    size: str = "base"

    def text(self, papers: Papers, tasks: Sequence[str] = ()) -> str:
        """`FIRE 3.054, 3.046, 3.056<br>Kerple 3.170, …`.

        An average that the paper does not state is the mean of its figures. If ours is over fewer tasks (`tasks`), the
        paper's mean over the same tasks follows.
        """
        table = [row for row in papers.get(self.table, ()) if row["size"] == self.size]
        quoted, digits = [row for row in table if row["encoding"] in self.rows], places(table)
        text = self.separator.join(
            f"{row['label']} {', '.join(fixed(_value(row, str(column)), digits) for column in self.at)}"
            for row in quoted
        )
        if AVERAGE not in self.at or not tasks:
            return text
        means = [(row["label"], average(row, tasks)) for row in quoted]
        same = [f"{label} {fixed(mean, 2)}" for label, mean in means if mean is not None]
        return f"{text}<br>{mean_over(tasks, 'we have')}: {'; '.join(same)}" if same else text

    @property
    def separator(self) -> str:
        """Rows of several numbers get a line each."""
        return "<br>" if len(self.at) > 1 else "; "

    @property
    def lengths(self) -> str:
        """`at 2,048, 4,096, 8,192 tokens`, or nothing."""
        found = [f"{column:,}" for column in self.at if isinstance(column, int)]
        return f"at {', '.join(found)} tokens" if found else ""


@dataclass(frozen=True)
class Claim:
    """One claim; claims.toml explains the fields."""

    section: str
    where: str
    says: str
    test: Mapping[str, Any]
    records: tuple[str, ...]
    paper: tuple[Quote | str, ...] = (NO_NUMBERS,)
    needs: str = ""
    size: str = ""
    tuned_on: str = ""
    part_of: str = ""

    def quoted(self, papers: Papers, tasks: Sequence[str] = ()) -> str:
        """The paper's numbers. Lengths shared by consecutive quotes are named once, after the last."""
        shown = []
        for part, after in zip(self.paper, (*self.paper[1:], ""), strict=True):
            if isinstance(part, str):
                shown.append(part)
                continue
            shown.append(part.text(papers, tasks))
            if part.lengths and not (isinstance(after, Quote) and after.lengths == part.lengths):
                shown.append(part.lengths)
        return (self.paper[0].separator if isinstance(self.paper[0], Quote) else "; ").join(shown)


def load_claims() -> dict[str, Claim]:
    """All claims by id, such as `by_length.fire_long`, in the order of the file."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    sets = content.pop("sets")

    def expand(value: Any) -> Any:
        return sets[value] if isinstance(value, str) and value in sets else value

    def quotes(value: Any) -> tuple[Quote | str, ...]:
        parts = value if isinstance(value, list) else [value]
        return tuple(
            part if isinstance(part, str) else Quote(**{k: expand(v) for k, v in part.items()}) for part in parts
        )

    claims = {}
    for section, members in content.items():
        shared = {key: value for key, value in members.items() if not isinstance(value, dict)}
        title = shared.pop("title")
        for name, own in members.items():
            if not isinstance(own, dict):
                continue
            fields = {"paper": NO_NUMBERS, **shared, **own}
            fields["test"] = {key: expand(value) for key, value in fields["test"].items()}
            fields |= {"records": tuple(expand(fields["records"])), "paper": quotes(fields["paper"])}
            claims[f"{section}.{name}"] = Claim(title, **fields)
    return claims


CLAIMS = load_claims()
BEYOND = "Beyond the paper"
"""Claims in this section are not counted."""


def _value(row: Mapping[str, Any], column: str) -> float | None:
    if column != AVERAGE or row[AVERAGE] is not None:
        return row.get(column)
    mean = average(row, [key for key in row if key not in NOT_TASKS])
    return None if mean is None else round(mean, 2)
