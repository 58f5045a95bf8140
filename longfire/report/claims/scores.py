"""Comparisons of scores on tasks, for claims.

A comparison counts if seeds agree, as everywhere here, if neither score is near chance, and if it would come out the
same way with other questions: in every seed it is so wherever in their 95 % intervals the two scores may lie.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import fmean
from typing import Any

from longfire.report.claims.claim import FAILS, HOLDS, OPEN, UNMEASURED, Finding, Step, found
from longfire.report.claims.names import written
from longfire.report.claims.quote import mean_over
from longfire.report.claims.rows import (
    FARTHEST,
    Row,
    at,
    fewer_tasks,
    lengths_in_range,
    rows_of,
    shared_tasks,
    stretched,
    tuned_length,
)
from longfire.report.summary import Record, mean_and_deviation
from longfire.tasks import SUITES, TASKS

Measure = Callable[[float, float], float]
"""Of two scores: above 0 where a claim is borne out."""
NEAR, QUESTIONS = "near chance", "other questions might turn it"
"""Why a comparison is open, beside what seeds say."""
STEEP = 0.5
"""Of the score at the fine-tuning length: a drop to less is steep. The paper's RoPE-PI drops to a tenth."""


@dataclass(frozen=True)
class Score:
    """Of one seed, with its 95 % interval over questions; None where it has none."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Scores:
    """Of an encoding, one for each seed."""

    label: str
    of: list[Score]
    near_chance: bool

    def __str__(self) -> str:
        mean, deviation = mean_and_deviation(score.value for score in self.of)
        spread = "" if deviation is None else f" ± {deviation:.2f}"
        if len(self.of) == 1 and (ends := self.of[0].interval):
            spread = f" ({ends[0]:.2f} to {ends[1]:.2f})"
        return f"{self.label} {mean:.2f}{spread}{', near chance' * self.near_chance}"


def mean_of(rows: Sequence[Row], tasks: Sequence[str], length: int) -> Scores | None:
    """Mean score of each row over tasks. It is near chance if half of what it is made of is."""
    if not rows or not tasks or not all(task in at(row, length) for row in rows for task in tasks):
        return None
    scores = [[at(row, length)[task] for task in tasks] for row in rows]
    near = fmean(bool(one.get("near_chance")) for of_row in scores for one in of_row) >= 0.5
    one_label = len({row["label"] for row in rows}) == 1
    label = rows[0]["label"] if one_label else rows[0]["label"].partition(" (")[0]
    return Scores(label, [_mean(of_row) for of_row in scores], near)


def _mean(scores: Sequence[dict[str, Any]]) -> Score:
    """Tasks have different questions, so their intervals' halves add as independent errors do."""
    mean, ends = fmean(one["score"] for one in scores), [one.get("interval") for one in scores]
    if not all(ends):
        return Score(mean, None)
    below, above = (hypot(*(one["score"] - one["interval"][end] for one in scores)) / len(scores) for end in (0, 1))
    return Score(mean, (mean - below, mean + above))


def compared(where: str, own: Scores, other: Scores, measure: Measure) -> Step:
    """A step, open where either is near chance, or other questions might turn it."""
    pairs = list(zip(own.of, other.of, strict=False))
    by_seed = [measure(a.value, b.value) for a, b in pairs]
    step = Step.of(where, f"{own}; {other}", by_seed, max(len(own.of), len(other.of)))
    why = [NEAR] * (own.near_chance or other.near_chance)
    why += [QUESTIONS] * (not all(_stands(a, b, measure) for a, b in pairs))
    return replace(step, verdict=OPEN, why=(*step.why, *why)) if why else step


def _stands(one: Score, other: Score, measure: Measure) -> bool:
    if one.interval is None or other.interval is None:
        return False
    corners = [measure(a, b) for a in one.interval for b in other.interval]
    return min(corners) > 0 or max(corners) < 0


def against(record: Record, one: str, others: Sequence[str], measure: Measure) -> list[Step]:
    """A comparison with all rows of each of the others, at every length."""
    return [
        step
        for length in lengths_in_range(record)
        for step in _on(record, one, others, measure, shared_tasks(record, length), length)
    ]


def _on(
    record: Record, one: str, others: Sequence[str], measure: Measure, tasks: Sequence[str], length: int
) -> list[Step]:
    owns, theirs = rows_of(record, one), {name: rows_of(record, name) for name in others}
    if not owns or not any(theirs.values()):
        return []
    where, steps = _place(record, length), []
    for name, groups in theirs.items():
        for own in (mean_of(rows, tasks, length) for rows in owns):
            for other in [mean_of(rows, tasks, length) for rows in groups] or [None]:
                if own is None or other is None:
                    text = f"{written(one if own is None else name)} was not measured"
                    steps.append(Step(where, text, OPEN, float("-inf"), (UNMEASURED,)))
                else:
                    steps.append(compared(where, own, other, measure))
    return steps


def _place(record: Record, length: int) -> str:
    tasks = fewer_tasks(record, length)
    return f"{length:,}, {mean_over(tasks, 'that all have')}" if tasks else f"{length:,}"


def higher(record: Record, one: str, others: Sequence[str], by_over: float = 0.0) -> list[Step]:
    """Whether an encoding's score is above each of the others', by more than a margin."""
    return against(record, one, others, lambda own, other: own - other - by_over)


def on_a_par(record: Record, one: str, others: Sequence[str], within: float) -> list[Step]:
    """Whether it is no more than `within` below each of them."""
    return higher(record, one, others, -within)


def drops(record: Record, rows: Sequence[Row]) -> list[Step]:
    """Whether a score falls by half or more beyond the fine-tuning length."""
    return _beyond(record, rows, lambda near, far: STEEP * near - far)


def stays(record: Record, rows: Sequence[Row]) -> list[Step]:
    """Whether it does not."""
    return _beyond(record, rows, lambda near, far: far - STEEP * near)


def _beyond(record: Record, rows: Sequence[Row], measure: Measure) -> list[Step]:
    tuned, steps = tuned_length(record), []
    for length in [n for n in lengths_in_range(record) if n > tuned]:
        tasks = [task for task in shared_tasks(record, length) if task in shared_tasks(record, tuned)]
        near, far = (mean_of(rows, tasks, n) for n in (tuned, length))
        if near is not None and far is not None:
            steps.append(compared(f"{tuned:,} and {length:,}", near, far, measure))
    return steps


def stretched_is_worse(record: Record) -> list[Step]:
    """Whether RoPE-PI stretched to four times the fine-tuning length is behind the other up to that length."""
    steps = []
    for length in [n for n in record["setting"]["lengths"] if n <= tuned_length(record)]:
        tasks = shared_tasks(record, length)
        less, more = (mean_of(stretched(record, times), tasks, length) for times in (1, FARTHEST))
        if less is not None and more is not None:
            steps.append(compared(_place(record, length), less, more, lambda own, other: own - other))
    return steps


def best_on(record: Record, one: str, others: Sequence[str], at_least: int) -> Finding | None:
    """Whether an encoding is above all others on so many tasks of a suite; those not measured may be either."""
    outcomes: dict[str, list[str]] = {HOLDS: [], FAILS: [], OPEN: []}
    why: dict[str, None] = {}
    length = tuned_length(record)
    suite = SUITES[TASKS[record["setting"]["tasks"][0]].suite]
    for task in suite:
        finding = found(_on(record, one, others, lambda own, other: own - other, [task], length))
        if finding is None:
            return None
        outcomes[finding.verdict].append(f"`{task}`")
        why |= dict.fromkeys(finding.why.split(", ") if finding.verdict == OPEN else ())
    verdict = OPEN
    if len(outcomes[HOLDS]) >= at_least:
        verdict = HOLDS
    elif len(outcomes[FAILS]) > len(suite) - at_least:
        verdict = FAILS
    words = {HOLDS: "best on", FAILS: "not best on", OPEN: "cannot be told on"}
    numbers = tuple(f"{words[key]} {', '.join(tasks)}" for key, tasks in outcomes.items() if tasks)
    return Finding(verdict, numbers, why=", ".join(why) if verdict == OPEN else "")
