"""Which differences between encodings are significant. There is one test, `adjusted_p_values`, and `RULE` states it.

Encodings × seeds is a two-way layout: what a seed shifts for all encodings drops out, and the residual variance is
pooled over encodings, since three seeds of one pair cannot carry a correction. Seeds scatter far more for an encoding
that has diverged, so a pair pools only the encodings whose mean is near one of its two (`NEAR`), and never takes less
than its own variance. Holm's correction is over all pairs at a length. Over the pairs with the best alone it would be
too weak: the best is chosen by the same numbers, and 9 to 17 % of comparisons of 7 to 14 equal encodings would err.
docs/claims.md has the error rates found by simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import atan, cos, inf, pi, sin, sqrt
from statistics import fmean

from longfire.report.summary import Record, in_a_row, lengths_of, lines_of, seeds_of

ENOUGH = 3
"""Seeds. Fewer are not tested."""
FEW = {1: "one seed", 2: "two seeds"}
"""How many fewer are."""
LEVEL = 0.05
NEAR = 0.25
"""Nats. Under normal errors means are independent of residuals, so choosing by them does not bias the variance."""
RULE = (
    "two-sided t-tests over the seeds, with the variance pooled over encodings and Holm's correction over all pairs at "
    "a length: if all encodings were equal and varied alike from seed to seed, at most 1 length in 20 would show a "
    "significant difference"
)
LISTED = 8
"""Encodings at most; of more only how many."""
BEST = "significantly better than every other encoding."
"""What is marked in a table, `clear_best`."""

Rows = Mapping[str, Sequence[float]]
"""An encoding's values, one for each seed, in the same order for all."""


@dataclass(frozen=True)
class Difference:
    """Between two encodings at one length."""

    length: int
    better: str
    worse: str
    p: float
    """Adjusted for the number of pairs."""

    @property
    def significant(self) -> bool:
        """Whether it is."""
        return self.p <= LEVEL


def adjusted_p_values(rows: Rows) -> dict[frozenset[str], float]:
    """Two-sided, of every pair of encodings, Holm-adjusted."""
    means = {label: fmean(row) for label, row in rows.items()}
    pooled = cache(lambda near: _residual_variance([rows[label] for label in near]))
    found = {}
    for pair in combinations(rows, 2):
        near = tuple(label for label in rows if any(abs(means[label] - means[one]) <= NEAR for one in pair))
        within, degrees = pooled(near)
        by_seed = [b - a for a, b in zip(*(rows[one] for one in pair), strict=True)]
        found[frozenset(pair)] = p_value(by_seed, (2 * within, degrees))
    adjusted, least = {}, 0.0
    for before, (both, p) in enumerate(sorted(found.items(), key=lambda one: one[1])):
        adjusted[both] = least = max(least, min(1.0, p * (len(found) - before)))
    return adjusted


def p_value(by_seed: Sequence[float], pooled: tuple[float, int] | None = None) -> float:
    """Two-sided, of a mean of 0, by the numbers' own variance, or a pooled one (with its degrees) if that is larger."""
    mean = fmean(by_seed)
    own = sum((value - mean) ** 2 for value in by_seed) / (len(by_seed) - 1)
    used, degrees = (max(own, pooled[0]), pooled[1]) if pooled else (own, len(by_seed) - 1)
    t = abs(mean) / sqrt(used / len(by_seed)) if used else (inf if mean else 0.0)
    return _beyond(t, degrees)


def _residual_variance(rows: Sequence[Sequence[float]]) -> tuple[float, int]:
    """And its degrees of freedom, after the means of rows and of seeds. Rows of the same numbers count once."""
    rows = list(dict.fromkeys(map(tuple, rows)))
    seeds = len(rows[0])
    if len(rows) < 2:
        return 0.0, seeds - 1
    shifts = [fmean(column) for column in zip(*rows, strict=True)]
    centred = [[value - shift for value, shift in zip(row, shifts, strict=True)] for row in rows]
    total = sum((value - mean) ** 2 for row in centred for mean in [fmean(row)] for value in row)
    degrees = (len(rows) - 1) * (seeds - 1)
    return total / degrees, degrees


def _beyond(t: float, degrees: int) -> float:
    """P(|T| > t) of Student's t, by the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3–4)."""
    angle = atan(t / sqrt(degrees))
    term, total = (cos(angle), 0.0) if degrees % 2 else (1.0, 0.0)
    for k in range(1 + degrees % 2, degrees, 2):
        total += term
        term *= k / (k + 1) * cos(angle) ** 2
    inside = 2 / pi * (angle + sin(angle) * total) if degrees % 2 else sin(angle) * total
    return max(0.0, 1.0 - inside)


def tested(lines: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> dict[frozenset[str], float]:
    """Adjusted p-values of encodings' values by seed: of those that have every seed, if there are enough."""
    rows = {
        label: [values[seed] for seed in seeds] for label, values in lines.items() if all(s in values for s in seeds)
    }
    return adjusted_p_values(rows) if len(rows) > 1 and len(seeds) >= ENOUGH else {}


def differences(record: Record, length: int) -> list[Difference]:
    """Of all pairs at a length that can be tested, the better encoding first."""
    lines = _measured(record, length)
    order = sorted(lines, key=lambda label: fmean(lines[label].values()))
    p = tested(lines, seeds_of(record))
    pairs = ((better, worse, p.get(frozenset((better, worse)))) for better, worse in combinations(order, 2))
    return [Difference(length, better, worse, p) for better, worse, p in pairs if p is not None]


def clear_best(record: Record, length: int) -> str | None:
    """The label of the encoding at a length that is significantly better than each of the others."""
    others = len(_measured(record, length)) - 1
    leads = [one.better for one in differences(record, length) if one.significant]
    return next((label for label in leads if leads.count(label) == others), None)


def _measured(record: Record, length: int) -> dict[str, dict[int, float]]:
    return {line.label: values for line in lines_of(record) if (values := line.values(length))}


def seeds_verdict(record: Record, rule: str = RULE) -> str:
    """How many differences between encodings are significant, by which rule, and what is not behind the best."""
    seeds = len(seeds_of(record))
    if len(lines_of(record)) < 2:
        return ""
    if seeds < ENOUGH:
        return f"Differences are not testable with {FEW[seeds]}: that takes three or more."
    by_length = [found for length in lengths_of(record) if (found := differences(record, length))]
    if not by_length:
        return "Differences are not testable: no two encodings have every seed."
    clear = [one.significant for found in by_length for one in found]
    said = [
        f"{sum(clear)} of {len(clear)} differences between two encodings at one length "
        f"{'is' if sum(clear) == 1 else 'are'} significant ({rule})."
    ]
    said += [f"Not significantly behind the best: {level}."] if any(clear) and (level := _level(by_length)) else []
    said += [f"Not tested, as a seed is missing: {', '.join(lacking)}."] if (lacking := _lacking(record)) else []
    return " ".join(said)


def _level(by_length: Sequence[Sequence[Difference]]) -> str:
    """Encodings that are not significantly behind the best, and where; if they are many, how many."""
    found: dict[str, list[int]] = {}
    for pairs in by_length:
        for pair in pairs:
            if pair.better == pairs[0].better and not pair.significant:
                found.setdefault(pair.worse, []).append(pair.length)
    if len(found) > LISTED:
        lengths = sorted(length for those in found.values() for length in those)
        return ", ".join(f"{lengths.count(length)} at {length:,}" for length in dict.fromkeys(lengths))
    everywhere = "every length" if len(by_length) > 1 else f"{by_length[0][0].length:,}"
    where = {label: in_a_row([f"{n:,}" for n in those]) for label, those in found.items()}
    return "; ".join(
        f"{label} at {everywhere if len(found[label]) == len(by_length) else where[label]}" for label in found
    )


def _lacking(record: Record) -> list[str]:
    """Encodings that have some seeds at a length, and not all."""
    seeds, lengths = set(seeds_of(record)), lengths_of(record)
    return [line.label for line in lines_of(record) if any(set() < set(line.values(n)) < seeds for n in lengths)]
