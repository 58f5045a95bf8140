"""Operators on task scores.

Beyond significance over seeds, a comparison counts only if neither score is near chance and if other questions could
not reverse it: in every seed, all values within the two 95 % intervals give the same result.

A record has a row per checkpoint. Rows with the same label are seeds (`longfire.evaluation.seeds`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import fmean
from typing import Any

from benchmarks.names import display_name
from benchmarks.verdicts import FAILS, HOLDS, OPEN, Comparison, Finding, summarise
from longfire.report.metric import mean_and_deviation
from longfire.report.summary import Record
from longfire.report.task_rows import encoding_of, scores_at
from longfire.tasks import SUITES, TASKS

Row = dict[str, Any]
Measure = Callable[[float, float], float]
"""Of two scores: positive if it supports the claim."""
NEAR_CHANCE, QUESTIONS = "near chance", "other questions might reverse it"
STEEP = 0.5
"""A drop is steep if it leaves less than this share of the score at the fine-tuning length. RoPE-PI keeps 0.1."""
FARTHEST = 4
"""The paper tests up to this multiple of the fine-tuning length."""


@dataclass(frozen=True)
class Score:
    """One seed's score with its 95 % interval over questions, if it has one."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Scores:
    """An encoding's scores, one per seed."""

    label: str
    by_seed: list[Score]
    near_chance: bool

    def __str__(self) -> str:
        mean, deviation = mean_and_deviation(score.value for score in self.by_seed)
        spread = "" if deviation is None else f" ± {deviation:.2f}"
        if len(self.by_seed) == 1 and (ends := self.by_seed[0].interval):
            spread = f" ({ends[0]:.2f} to {ends[1]:.2f})"
        return f"{self.label} {mean:.2f}{spread}{', near chance' * self.near_chance}"


def higher(record: Record, one: str, others: Sequence[str], margin: float = 0.0) -> list[Comparison]:
    """An encoding's mean score is above each of the others' by more than `margin`, at every length.

    With a negative margin: it is at most that much below.
    """
    return [
        comparison
        for length in lengths_in_range(record)
        for comparison in _against(
            record, one, others, lambda own, other: own - other - margin, shared_tasks(record, length), length
        )
    ]


def best_on_tasks(record: Record, one: str, others: Sequence[str], at_least: int) -> Finding | None:
    """An encoding is above all others on at least `at_least` tasks of a suite. Unmeasured tasks may go either way."""
    outcomes: dict[str, list[str]] = {HOLDS: [], FAILS: [], OPEN: []}
    why: dict[str, None] = {}
    suite = SUITES[TASKS[record["setting"]["tasks"][0]].suite]
    for task in suite:
        found = _against(record, one, others, lambda own, other: own - other, [task], finetuning_length(record))
        if (finding := summarise(found)) is None:
            return None
        outcomes[finding.verdict].append(f"`{task}`")
        why |= dict.fromkeys(finding.why.split(", ") if finding.verdict == OPEN else ())
    verdict = OPEN
    if len(outcomes[HOLDS]) >= at_least:
        verdict = HOLDS
    elif len(outcomes[FAILS]) > len(suite) - at_least:
        verdict = FAILS
    words = {HOLDS: "best on", FAILS: "not best on", OPEN: "undecided on"}
    numbers = tuple(f"{words[key]} {', '.join(tasks)}" for key, tasks in outcomes.items() if tasks)
    return Finding(verdict, numbers, why=", ".join(why) if verdict == OPEN else "")


def score_drops(record: Record, one: str, stretched_by: int | None = None) -> list[Comparison]:
    """The score falls by half or more beyond the fine-tuning length. `stretched_by` selects RoPE-PI by its stretch."""
    return _beyond(record, one, stretched_by, lambda near, far: STEEP * near - far)


def score_stays(record: Record, one: str, stretched_by: int | None = None) -> list[Comparison]:
    """The score does not fall by half or more beyond the fine-tuning length."""
    return _beyond(record, one, stretched_by, lambda near, far: far - STEEP * near)


def stretching_costs(record: Record) -> list[Comparison]:
    """RoPE-PI stretched to four times the fine-tuning length is behind one stretched to it, up to that length."""
    comparisons = []
    for length in [n for n in record["setting"]["lengths"] if n <= finetuning_length(record)]:
        tasks = shared_tasks(record, length)
        less, more = (mean_scores(_stretched(record, times), tasks, length) for times in (1, FARTHEST))
        if less is not None and more is not None:
            comparisons.append(_compare(_place(record, length), less, more, lambda own, other: own - other))
    return comparisons


def seed_rows(record: Record, encoding: str) -> list[list[Row]]:
    """An encoding's rows by seed, in one list; RoPE-PI has a list per length that it is stretched to.

    Of checkpoints that differ in more than their seed, the first counts.
    """
    rows = [row for row in record["rows"] if encoding_of(row) == encoding]
    labels = {row.get("extended_to") or 0: row["label"] for row in reversed(rows)}
    return [[row for row in rows if row["label"] == labels[target]] for target in sorted(labels)]


def finetuning_length(record: Record) -> int:
    """The fine-tuning length, in this record or before; 0 if unknown."""
    before = [row.get("finetuned_length") for row in record["rows"]]
    return int(record["setting"].get("length") or next(filter(None, before), 0))


def finetuned_on(record: Record) -> list[str]:
    """The tasks that models were fine-tuned on, in this record or before."""
    here = [task for mixture in record["setting"].get("mixtures") or () for task in mixture["tasks"]]
    before = [task for row in record["rows"] for task in row.get("finetuned_on") or ()]
    return list(dict.fromkeys([*here, *before]))


def lengths_in_range(record: Record) -> list[int]:
    """Tested lengths up to the paper's largest multiple of the fine-tuning length."""
    tuned = finetuning_length(record)
    return [length for length in record["setting"]["lengths"] if not tuned or length <= FARTHEST * tuned]


def shared_tasks(record: Record, length: int) -> list[str]:
    """Tasks that every row with a score at this length has."""
    found = [scores for row in record["rows"] if (scores := scores_at(row, length))]
    return [task for task in record["setting"]["tasks"] if all(task in scores for scores in found)]


def partial_tasks(record: Record, length: int) -> list[str]:
    """The shared tasks if they are not the whole suite; empty for a record of a single task."""
    tasks, asked = shared_tasks(record, length), record["setting"]["tasks"]
    return tasks if len(asked) > 1 and set(tasks) != set(SUITES[TASKS[asked[0]].suite]) else []


def mean_over(tasks: Sequence[str], which: str) -> str:
    """`mean of the 14 tasks that all have`."""
    return f"mean of the {len(tasks)} task{'s' * (len(tasks) > 1)} {which}"


def mean_scores(rows: Sequence[Row], tasks: Sequence[str], length: int) -> Scores | None:
    """Each row's mean over tasks. It is near chance if at least half of its scores are."""
    if not rows or not tasks or not all(task in scores_at(row, length) for row in rows for task in tasks):
        return None
    scores = [[scores_at(row, length)[task] for task in tasks] for row in rows]
    near = fmean(bool(one.get("near_chance")) for of_row in scores for one in of_row) >= 0.5
    return Scores(rows[0]["label"], [_mean(of_row) for of_row in scores], near)


def _mean(scores: Sequence[Row]) -> Score:
    """Tasks have different questions, so their half-intervals add like independent errors."""
    mean = fmean(one["score"] for one in scores)
    if not all(one.get("interval") for one in scores):
        return Score(mean, None)
    below, above = (hypot(*(one["score"] - one["interval"][end] for one in scores)) / len(scores) for end in (0, 1))
    return Score(mean, (mean - below, mean + above))


def _compare(where: str, own: Scores, other: Scores, measure: Measure) -> Comparison:
    """A comparison that is undecided if either is near chance or other questions might reverse it."""
    pairs = list(zip(own.by_seed, other.by_seed, strict=False))
    by_seed = [measure(a.value, b.value) for a, b in pairs]
    found = Comparison.of_seeds(where, f"{own}; {other}", by_seed, max(len(own.by_seed), len(other.by_seed)))
    why = [NEAR_CHANCE] * (own.near_chance or other.near_chance)
    why += [QUESTIONS] * (not all(_is_robust(a, b, measure) for a, b in pairs))
    return replace(found, verdict=OPEN, why=(*found.why, *why)) if why else found


def _is_robust(one: Score, other: Score, measure: Measure) -> bool:
    if one.interval is None or other.interval is None:
        return False
    corners = [measure(a, b) for a in one.interval for b in other.interval]
    return min(corners) > 0 or max(corners) < 0


def _against(
    record: Record, one: str, others: Sequence[str], measure: Measure, tasks: Sequence[str], length: int
) -> list[Comparison]:
    """Compare an encoding with all rows of each of the others, over these tasks."""
    owns, theirs = seed_rows(record, one), {name: seed_rows(record, name) for name in others}
    if not owns or not any(theirs.values()):
        return []
    where, comparisons = _place(record, length), []
    for name, groups in theirs.items():
        for own in (mean_scores(rows, tasks, length) for rows in owns):
            for other in [mean_scores(rows, tasks, length) for rows in groups] or [None]:
                if own is None or other is None:
                    absent = display_name(one if own is None else name)
                    comparisons.append(Comparison.missing(where, f"{absent} was not measured"))
                else:
                    comparisons.append(_compare(where, own, other, measure))
    return comparisons


def _beyond(record: Record, one: str, stretched_by: int | None, measure: Measure) -> list[Comparison]:
    """Compare the score at the fine-tuning length with each longer one."""
    tuned, comparisons = finetuning_length(record), []
    for rows in seed_rows(record, one) if stretched_by is None else [_stretched(record, stretched_by)]:
        for length in [n for n in lengths_in_range(record) if n > tuned]:
            tasks = [task for task in shared_tasks(record, length) if task in shared_tasks(record, tuned)]
            near, far = (mean_scores(rows, tasks, n) for n in (tuned, length))
            if near is not None and far is not None:
                comparisons.append(_compare(f"{tuned:,} and {length:,}", near, far, measure))
    return comparisons


def _stretched(record: Record, times: int) -> list[Row]:
    """RoPE-PI stretched to `times` the fine-tuning length."""
    target = times * finetuning_length(record)
    return next((rows for rows in seed_rows(record, "rope_pi") if rows[0].get("extended_to") == target), [])


def _place(record: Record, length: int) -> str:
    tasks = partial_tasks(record, length)
    return f"{length:,}, {mean_over(tasks, 'that all have')}" if tasks else f"{length:,}"
