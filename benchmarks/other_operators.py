"""Operators without a significance test: equality, times, parameter counts, and what FIRE learned.

The theorem holds if the error is only rounding. One time is below another if its slowest call beats the other's
fastest. What FIRE learned must show in every seed, of three or more.
"""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.names import display_name
from benchmarks.perplexity_operators import find_line
from benchmarks.verdicts import DISAGREE, FAILS, HOLDS, OPEN, UNMEASURED, Comparison, Finding, too_few
from longfire.bench.benchmark import FORWARD
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.significance import ENOUGH
from longfire.report.speed import best_rows
from longfire.report.summary import Record, seeds_of

Layers = Sequence[dict[str, Any]]
"""The result of `longfire.evaluation.learned.learned_by_layer`."""


def equal(record: Record, margin: float) -> list[Comparison]:
    """FIRE's error, relative to the largest bias, is at most `margin` for each encoding."""
    return [
        Comparison(
            display_name(row["encoding"]),
            f"error {row['error']:.0g} of the largest bias, to {row['max_length']:,} tokens",
            HOLDS if row["error"] <= margin else FAILS,
        )
        for row in record["rows"]
    ]


def faster(record: Record, one: str, others: Sequence[str], at: int) -> list[Comparison]:
    """A forward pass over `at` tokens is faster than with each of the others, each on its fastest engine."""
    rows = {row["encoding"]: row for row in best_rows(record) if row["kind"] == FORWARD and row["n"] == at}
    if one not in rows or not any(other in rows for other in others):
        return []
    own, comparisons = rows[one], []
    for other in others:
        name = display_name(other)
        if (row := rows.get(other)) is None:
            comparisons.append(Comparison(name, "not measured", OPEN, why=(UNMEASURED,)))
            continue
        verdict = HOLDS if own["slowest"] < row["fastest"] else FAILS if row["slowest"] < own["fastest"] else OPEN
        why = ("times overlap",) if verdict == OPEN else ()
        comparisons.append(Comparison(name, f"{_time(row)}; {display_name(one)} {_time(own)}", verdict, why=why))
    return comparisons


def few_more_parameters(record: Record, one: str, others: Sequence[str], margin: float) -> list[Comparison]:
    """A model has at most `margin` (a fraction) more parameters than with each of the others."""
    runs = {run["encoding"]: run for run in record["runs"] if run.get("parameters")}
    if one not in runs:
        return []
    own, name, comparisons = runs[one], display_name(one), []
    for other in [other for other in others if other in runs]:
        theirs = runs[other]["parameters"]
        more = own["parameters"] / theirs - 1
        of_encoding = [run.get("position_parameters") for run in (own, runs[other])]
        text = f"{own['parameters']:,} with {name}, {theirs:,} with {display_name(other)} ({100 * more:+.2f} %)"
        if None not in of_encoding:
            text += ", of which the encoding has {:,} and {:,}".format(*of_encoding)
        comparisons.append(Comparison(display_name(other), text, HOLDS if more <= margin else FAILS))
    return comparisons


def near_and_far_heads(record: Record) -> Finding | None:
    """FIRE has heads that look near and heads that look far, from the last query of the training length."""

    def heads(layers: Layers) -> list[float]:
        return [look for layer in layers for look in layer["look_back"]]

    def condition(layers: Layers) -> bool:
        return min(heads(layers)) < LOCAL and max(heads(layers)) > ANTI_LOCAL

    def text(layers: Layers) -> str:
        looks = heads(layers)
        near, far = sum(look < LOCAL for look in looks), sum(look > ANTI_LOCAL for look in looks)
        return f"of {len(looks)} heads {near} look near and {far} far, the farthest {max(looks):.2f} × a uniform head"

    return _in_every_seed(record, condition, text)


def thresholds_between(record: Record, low: float, high: float) -> Finding | None:
    """The learned L of every layer is between these fractions of the training length."""
    trained = record["setting"]["trained_length"]

    def condition(layers: Layers) -> bool:
        return all(layer["L"] is not None and low * trained <= layer["L"] <= high * trained for layer in layers)

    def text(layers: Layers) -> str:
        found = ", ".join(f"{layer['L']:.0f}" for layer in layers if layer["L"] is not None)
        return f"L by layer {found} of {trained:,}"

    return _in_every_seed(record, condition, text)


def _in_every_seed(
    record: Record, condition: Callable[[Layers], bool], text: Callable[[Layers], str]
) -> Finding | None:
    """Holds if the condition is met in every seed, fails if in none."""
    line = find_line(record, "fire")
    runs = {run["seed"]: run["learned"] for run in (line.runs if line else []) if run.get("learned")}
    if not runs:
        return None
    outcomes = {condition(layers) for layers in runs.values()}
    verdict, why = OPEN, ""
    if len(runs) < len(seeds_of(record)):
        why = UNMEASURED
    elif len(runs) < ENOUGH:
        why = too_few(len(runs))
    elif len(outcomes) > 1:
        why = DISAGREE
    else:
        verdict = HOLDS if outcomes == {True} else FAILS
    numbers = tuple(f"seed {seed}: {text(layers)}" for seed, layers in sorted(runs.items()))
    return Finding(verdict, numbers, why=why)


def _time(row: dict[str, Any]) -> str:
    engine = f", {row['engine']}" if row.get("engine") else ""
    return f"{row['ms']:.2f} ms ({row['fastest']:.2f} to {row['slowest']:.2f}{engine})"
