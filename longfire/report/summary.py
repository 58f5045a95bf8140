"""Read a comparison's record: a line per encoding, texts, lengths, seeds, means and deviations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

Record = dict[str, Any]

COLORS = {  # on white, on black
    "fire": ("#dc143c", "#ff5470"),
    "kerple_log": ("#1f6fc4", "#62b0ff"),
    "alibi": ("#2b8a3e", "#63d17a"),
    "rope": ("#1d1d1f", "#f0f0f0"),
    "nope": ("#868e96", "#8d969e"),
    "t5": ("#8443c4", "#c59bf5"),
    "kerple_power": ("#0b8fa3", "#4fd6e8"),
    "sandwich": ("#8c564b", "#d3a091"),
    "learned": ("#857c00", "#dcd44d"),
    "sinusoidal": ("#c2379a", "#f79add"),
    "rope_pi": ("#4a6079", "#a3bdd9"),
    "yarn": ("#00705c", "#3fcfb0"),
    "fire-s": ("#f2789f", "#ffb3c7"),
}
SPARE = [("#e07b00", "#ffae42"), *(COLORS[name] for name in ("sinusoidal", "learned", "sandwich", "yarn", "rope_pi"))]
"""Colours for encodings without one, and for a second line of the same encoding."""


@dataclass(frozen=True)
class Line:
    """One encoding with all its seeds."""

    label: str
    encoding: str
    colors: tuple[str, str]
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Runs that did not fail."""

    def rows(self, length: int) -> dict[int, dict[str, Any]]:
        """Evaluation at a length, by seed."""
        return {
            run["seed"]: row
            for run in self.runs
            for row in run.get("perplexity", {}).get("rows", ())
            if row["length"] == length
        }

    def values(self, length: int) -> dict[int, float]:
        """Log perplexity at a length, by seed, without seeds that have no finite number."""
        rows = self.rows(length).items()
        return {seed: float(row["log_perplexity"]) for seed, row in rows if is_number(row.get("log_perplexity"))}

    def mean(self, length: int) -> float | None:
        """Mean log perplexity over seeds."""
        return mean_and_deviation(self.values(length).values())[0]


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def assign_colors(encodings: Sequence[str]) -> list[tuple[str, str]]:
    """A colour for each line of a chart: the encoding's, or a spare one if it has none or it is taken."""
    spare = iter(SPARE * len(encodings))
    return [
        COLORS[one] if one in COLORS and one not in encodings[:i] else next(spare) for i, one in enumerate(encodings)
    ]


def lines_of(record: Record) -> list[Line]:
    """A line per encoding, in order of its first run, including encodings that failed."""
    runs = record["runs"]
    encodings = {label_of(run): str(run["encoding"]) for run in reversed(runs)}
    labels = list(dict.fromkeys(map(label_of, runs)))
    colors = assign_colors([encodings[label] for label in labels])
    return [
        Line(label, encodings[label], color, [run for run in runs if label_of(run) == label and "failed" not in run])
        for label, color in zip(labels, colors, strict=True)
    ]


def texts_of(record: Record) -> dict[str, Record]:
    """A record per evaluation text, by name: the corpus first, then the others."""
    texts = {str((record["setting"].get("corpus") or {}).get("name") or "corpus"): record}
    for name in dict.fromkeys(name for run in record["runs"] for name in run.get("also", {})):
        runs = [{**run, "perplexity": run["also"].get(name, {})} if "also" in run else run for run in record["runs"]]
        texts[f"{name} (second text)" if name in texts else name] = {**record, "runs": runs}
    return texts


def label_of(run: dict[str, Any]) -> str:
    """The display name of a run's encoding."""
    return str(run.get("label") or run["encoding"])


def lengths_of(record: Record) -> list[int]:
    """The test lengths, ascending."""
    return sorted(record["setting"]["lengths"])


def seeds_of(record: Record) -> list[int]:
    """The requested seeds or, if the record does not list them, those of the runs."""
    return list(record["setting"].get("seeds") or dict.fromkeys(run["seed"] for run in record["runs"]))


def mean_and_deviation(values: Iterable[float]) -> tuple[float | None, float | None]:
    """The mean and, for two or more values, the sample standard deviation."""
    numbers = list(values)
    return (fmean(numbers) if numbers else None), (stdev(numbers) if len(numbers) > 1 else None)


def over_seeds(values: Iterable[float], places: int = 3) -> str:
    """Mean ± deviation, or a dash."""
    mean, deviation = mean_and_deviation(values)
    if mean is None:
        return "–"
    return f"{mean:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


def amount(number: float) -> str:
    """1,234,567 as 1.23M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:,.0f}"


def amounts(numbers: Iterable[float]) -> str:
    """The range of several amounts: `1M to 2M`, or a single one if both ends look the same."""
    ordered = sorted(numbers)
    return " to ".join(dict.fromkeys([amount(ordered[0]), amount(ordered[-1])])) if ordered else ""


def join_words(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
