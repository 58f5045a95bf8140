"""Read a comparison's record: its metric, a line per encoding, texts, lengths, seeds, and summaries over seeds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longfire.encodings import ENCODINGS
from longfire.encodings.labels import label_title, parse_label
from longfire.report.metric import EXACT_MATCH, LOG_PERPLEXITY, Metric, mean_and_deviation
from longfire.tasks.synthetic import synthetic_task

Record = dict[str, Any]

COLORS = {  # on white, on black
    "recommended": ("#dc143c", "#ff5470"),
    "fire": ("#e07b00", "#ffae42"),
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
    "yarn": ("#6f9f00", "#a8e03a"),
    "fire-s": ("#f2789f", "#ffb3c7"),
    "fire:threshold=None": ("#16207f", "#8c9eff"),
}
"""By encoding. FIRE as published is `fire`, and as recommended `recommended`, however it was typed."""
SPARE = [COLORS[name] for name in ("sinusoidal", "fire:threshold=None", "learned", "sandwich", "yarn", "rope_pi")]
"""Colours for encodings without one, and for a second line of the same encoding."""
FIRES = ("FIRE (recommended)", "FIRE")
"""Labels of FIRE as recommended and as published."""
LISTED = 4
"""Maximum number of encodings to name one by one."""


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def metric_of(record: Record) -> Metric:
    """Exact match for a comparison on a synthetic task, log perplexity for one on text."""
    task = (record["setting"].get("recipe") or {}).get("task")
    if not task and not any("accuracy" in run for run in record["runs"]):
        return LOG_PERPLEXITY
    unit = str((record["setting"].get("corpus") or {}).get("unit") or "tokens")
    return replace(EXACT_MATCH, unit=unit, length_axis=f"length in {unit}")


@dataclass(frozen=True)
class Line:
    """One encoding with all its seeds."""

    label: str
    encoding: str
    colors: tuple[str, str]
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Runs that did not fail."""
    metric: Metric = LOG_PERPLEXITY

    @property
    def is_fire(self) -> bool:
        """Whether this is FIRE as recommended or as published, which charts emphasise."""
        return self.label in FIRES

    def rows(self, length: int) -> dict[int, dict[str, Any]]:
        """Evaluation at a length, by seed."""
        return {
            run["seed"]: row
            for run in self.runs
            for row in run.get(self.metric.test, {}).get("rows", ())
            if row["length"] == length
        }

    def values(self, length: int) -> dict[int, float]:
        """The metric at a length, by seed, without seeds that have no finite number."""
        rows, key = self.rows(length).items(), self.metric.key
        return {seed: float(row[key]) for seed, row in rows if is_number(row.get(key))}

    def band(self, length: int) -> tuple[float, float, float] | None:
        """(middle, low, high) over seeds."""
        values = list(self.values(length).values())
        return self.metric.band(values) if values else None

    def cell(self, length: int) -> str:
        """The metric over seeds, or a dash."""
        return self.metric.cell(self.values(length).values())

    def mean(self, length: int) -> float | None:
        """Mean log perplexity over seeds."""
        return mean_and_deviation(self.values(length).values())[0]


def assign_colors(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """A colour for each line of a chart: the encoding's, or a spare one if it has none or it is taken.

    Args:
        lines: label and encoding of each.
    """
    keys = [_color_key(*line) for line in lines]
    own = [COLORS.get(key) if key not in keys[:i] else None for i, key in enumerate(keys)]
    spare = iter([color for color in SPARE if color not in own] + SPARE * len(lines))
    return [next(spare) if color is None else color for color in own]


def _color_key(label: str, encoding: str) -> str:
    """The key in `COLORS`. For FIRE, the label tells what the recipe and the options make of it."""
    own = {FIRES[0]: "recommended", FIRES[1]: "fire"}
    return own.get(label, label if encoding == "fire" else encoding)


def lines_of(record: Record, metric: Metric | None = None) -> list[Line]:
    """A line per encoding, in order of its first run, including encodings that failed. None: the record's metric."""
    runs, metric = record["runs"], metric or metric_of(record)
    encodings = {label_of(run): str(run["encoding"]) for run in reversed(runs)}
    labels = list(dict.fromkeys(map(label_of, runs)))
    colors = assign_colors([(label, encodings[label]) for label in labels])
    return [
        Line(
            label,
            encodings[label],
            color,
            [run for run in runs if label_of(run) == label and "failed" not in run],
            metric,
        )
        for label, color in zip(labels, colors, strict=True)
    ]


def texts_of(record: Record) -> dict[str, Record]:
    """A record per evaluation text, by name: the corpus first, then the others."""
    texts = {str((record["setting"].get("corpus") or {}).get("name") or "corpus"): record}
    for name in dict.fromkeys(name for run in record["runs"] for name in run.get("also", {})):
        runs = [{**run, "perplexity": run["also"].get(name, {})} if "also" in run else run for run in record["runs"]]
        texts[f"{name} (second text)" if name in texts else name] = {**record, "runs": runs}
    return texts


def with_titles(record: Record) -> Record:
    """A comparison's record with labels by the current rule; earlier releases wrote `FIRE` whatever the recipe's."""
    recipe = record["setting"].get("recipe") or {}
    horizon = training_tokens(recipe) if recipe.get("horizon") == "length" else recipe.get("horizon")
    trained = training_tokens(recipe) if "length" in recipe else None

    def title(run: dict[str, Any]) -> str:
        if parse_label(str(run["encoding"]))[0] not in ENCODINGS:
            return label_of(run)
        return label_title(run["encoding"], init=recipe.get("init"), horizon=horizon, trained=trained)

    return {**record, "runs": [{**run, "label": title(run)} for run in record["runs"]]}


def label_of(run: dict[str, Any]) -> str:
    """The display name of a run's encoding."""
    return str(run.get("label") or run["encoding"])


def lengths_of(record: Record) -> list[int]:
    """The test lengths, ascending."""
    return sorted(record["setting"]["lengths"])


def measured_lengths(record: Record) -> list[int]:
    """The test lengths at which some encoding has a result, ascending."""
    lines = lines_of(record)
    return [n for n in lengths_of(record) if any(line.values(n) for line in lines)]


def seeds_of(record: Record) -> list[int]:
    """The requested seeds or, if the record does not list them, those of the runs."""
    return list(record["setting"].get("seeds") or dict.fromkeys(run["seed"] for run in record["runs"]))


def finished_seeds(record: Record) -> list[int]:
    """The seeds with a finished run, fewer than requested after an interruption; without any, all seeds."""
    seeds, done = seeds_of(record), {run["seed"] for run in record["runs"] if "failed" not in run}
    return [seed for seed in seeds if seed in done] or seeds


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


def some_names(labels: Sequence[str]) -> str:
    """All names, or the first ones and the number of others."""
    return join_words(
        labels if len(labels) <= LISTED else [*labels[: LISTED - 1], f"{len(labels) - LISTED + 1} others"]
    )


def training_tokens(recipe: Record) -> int:
    """Tokens in a recipe's longest training sequence."""
    length: int = recipe["length"]
    return synthetic_task(recipe["task"]).sequence_length(length) if recipe.get("task") else length
