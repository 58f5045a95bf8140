"""Rows of a record of tasks that have one label: the same encoding, with other seeds of pretraining."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from longfire.evaluation.seeds import with_seed

Record = dict[str, Any]


def with_seeds(record: Record) -> Record:
    """The record, with rows of one label side by side, each with its seed behind it; and then their mean."""
    rows = []
    for label, same in by_label(record["rows"]).items():
        if len(same) == 1:
            rows += same
            continue
        rows += [{**row, "label": with_seed(row)} for row in same]
        rows.append({**_mean(same), "label": f"{label}, mean of {len(same)}"})
    return {**record, "rows": rows}


def with_means(record: Record) -> Record:
    """The record, with one row for each label: the mean of its seeds, from the least to the most."""
    rows = [same[0] if len(same) == 1 else _mean(same, ranged=True) for same in by_label(record["rows"]).values()]
    return {**record, "rows": rows}


def by_label(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """The rows of each."""
    return {row["label"]: [one for one in rows if one["label"] == row["label"]] for row in rows}


def how_many(rows: Sequence[Record]) -> str:
    """`, 3 seeds each`; `, 1 to 3 seeds each` where they differ; nothing where there is one of each."""
    counts = sorted({len(of) for of in by_label(rows).values()})
    if counts in ([], [1]):
        return ""
    return f", {' to '.join(str(n) for n in dict.fromkeys([counts[0], counts[-1]]))} seeds each"


def _mean(rows: Sequence[Record], ranged: bool = False) -> Record:
    """A row of the mean scores of all, where all have one."""
    found = [{(one["task"], one["length"]): one for one in row["scores"] if "failed" not in one} for row in rows]
    scores = []
    for where, first in found[0].items():
        if all(where in of for of in found):
            values = [of[where]["score"] for of in found]
            ends = [min(values), max(values)] if ranged else None
            about = {key: first[key] for key in ("task", "length", "examples", "groups", "chance") if key in first}
            near = all(of[where].get("near_chance") for of in found)
            scores.append({**about, "score": fmean(values), "interval": ends, "near_chance": near})
    return {**rows[0], "parts": [], "scores": scores}
