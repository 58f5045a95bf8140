"""Significance of differences between encodings: one test, stated by `RULE`, for tables, pages and claims.

Encodings × seeds is a two-way layout: a seed's effect on all encodings cancels. The residual variance is pooled over
encodings, because three seeds of a pair leave too few degrees of freedom for a correction. Seeds of a diverged encoding
scatter far more, so a pair pools only encodings with a mean close to one of its own (`NEAR`), and never uses less than
its own variance. Holm's correction covers all pairs at a length. Correcting only for pairs with the best would be too
weak, because the best is chosen by the same numbers: 9 to 17 % of comparisons of 7 to 14 equal encodings would err.
docs/claims.md has simulated error rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import atan, cos, inf, pi, sin, sqrt
from statistics import fmean

from longfire.report.summary import Record, join_words, lengths_of, lines_of, seeds_of

ENOUGH = 3
"""Minimum number of seeds for a test."""
FEW = {1: "one seed", 2: "two seeds"}
LEVEL = 0.05
NEAR = 0.25
"""Nats. With normal errors, means are independent of residuals, so selecting by mean does not bias the variance."""
RULE = (
    "two-sided t-tests over seeds, variance pooled over encodings, Holm-corrected for all pairs at a length: if all "
    "encodings were equal and equally variable, at most 1 length in 20 would show a significant difference"
)
LISTED = 8
"""Maximum number of pairs to list; more are counted."""

Rows = Mapping[str, Sequence[float]]
"""Values of each encoding, one per seed, in the same order of seeds."""


@dataclass(frozen=True)
class Difference:
    """The difference between two encodings at a length."""

    length: int
    better: str
    worse: str
    p: float
    """Corrected for all pairs."""

    @property
    def significant(self) -> bool:
        """At the 5 % level, after correction."""
        return self.p <= LEVEL


def adjusted_p_values(rows: Rows) -> dict[frozenset[str], float]:
    """Two-sided, Holm-adjusted p-values of every pair of encodings."""
    means = {label: fmean(row) for label, row in rows.items()}
    pooled = cache(lambda near: _residual_variance([rows[label] for label in near]))
    p_values = {}
    for pair in combinations(rows, 2):
        near = tuple(label for label in rows if any(abs(means[label] - means[one]) <= NEAR for one in pair))
        within, degrees = pooled(near)
        by_seed = [b - a for a, b in zip(*(rows[one] for one in pair), strict=True)]
        p_values[frozenset(pair)] = p_value(by_seed, (2 * within, degrees))
    adjusted, least = {}, 0.0
    for rank, (both, p) in enumerate(sorted(p_values.items(), key=lambda one: one[1])):
        adjusted[both] = least = max(least, min(1.0, p * (len(p_values) - rank)))
    return adjusted


def p_value(by_seed: Sequence[float], pooled: tuple[float, int] | None = None) -> float:
    """Two-sided p-value of a zero mean, from the sample variance or a larger pooled one (variance, degrees)."""
    mean = fmean(by_seed)
    sample = sum((value - mean) ** 2 for value in by_seed) / (len(by_seed) - 1)
    variance, degrees = (max(sample, pooled[0]), pooled[1]) if pooled else (sample, len(by_seed) - 1)
    t = abs(mean) / sqrt(variance / len(by_seed)) if variance else (inf if mean else 0.0)
    return _student_tail(t, degrees)


def _residual_variance(rows: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Variance and degrees of freedom after removing row and seed means. Identical rows count once."""
    rows = list(dict.fromkeys(map(tuple, rows)))
    seeds = len(rows[0])
    if len(rows) < 2:
        return 0.0, seeds - 1
    shifts = [fmean(column) for column in zip(*rows, strict=True)]
    centred = [[value - shift for value, shift in zip(row, shifts, strict=True)] for row in rows]
    total = sum((value - mean) ** 2 for row in centred for mean in [fmean(row)] for value in row)
    degrees = (len(rows) - 1) * (seeds - 1)
    return total / degrees, degrees


def _student_tail(t: float, degrees: int) -> float:
    """P(|T| > t) of Student's t, by the finite sums for integer degrees (Abramowitz and Stegun, 26.7.3–4)."""
    angle = atan(t / sqrt(degrees))
    term, total = (cos(angle), 0.0) if degrees % 2 else (1.0, 0.0)
    for k in range(1 + degrees % 2, degrees, 2):
        total += term
        term *= k / (k + 1) * cos(angle) ** 2
    inside = 2 / pi * (angle + sin(angle) * total) if degrees % 2 else sin(angle) * total
    return max(0.0, 1.0 - inside)


def pairwise_p_values(lines: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> dict[frozenset[str], float]:
    """Adjusted p-values of the encodings with every seed, from values by seed; empty with too few seeds."""
    rows = {
        label: [values[seed] for seed in seeds] for label, values in lines.items() if all(s in values for s in seeds)
    }
    return adjusted_p_values(rows) if len(rows) > 1 and len(seeds) >= ENOUGH else {}


def differences(record: Record, length: int) -> list[Difference]:
    """All testable pairs at a length, better encodings first."""
    lines = {line.label: values for line in lines_of(record) if (values := line.values(length))}
    order = sorted(lines, key=lambda label: fmean(lines[label].values()))
    p = pairwise_p_values(lines, seeds_of(record))
    pairs = ((better, worse, p.get(frozenset((better, worse)))) for better, worse in combinations(order, 2))
    return [Difference(length, better, worse, p) for better, worse, p in pairs if p is not None]


@dataclass(frozen=True)
class Ranking:
    """The encodings at a length, relative to the one with the lowest mean."""

    best: str
    level: list[str]
    """Not significantly behind the best."""
    behind: list[str]
    """Significantly behind the best."""
    untested: list[str]
    """Too few seeds, or a seed is missing."""


def ranking(record: Record, length: int) -> Ranking | None:
    """The ranking at a length; None if fewer than two encodings have a result."""
    means = {line.label: mean for line in lines_of(record) if (mean := line.mean(length)) is not None}
    if len(means) < 2:
        return None
    best, *others = sorted(means, key=lambda label: means[label])
    significant = {one.worse: one.significant for one in differences(record, length) if one.better == best}
    level = [one for one in others if significant.get(one) is False]
    behind = [one for one in others if significant.get(one) is True]
    return Ranking(best, level, behind, [one for one in others if one not in significant])


def significance_summary(record: Record, rule: str = RULE) -> str:
    """How many differences are significant by the rule, and which encodings are not significantly behind the best."""
    seeds, lengths = seeds_of(record), lengths_of(record)
    if len(lines_of(record)) < 2:
        return ""
    if len(seeds) < ENOUGH:
        return f"Differences cannot be tested with {FEW[len(seeds)]}; that takes three or more."
    by_length = [pairs for length in lengths if (pairs := differences(record, length))]
    if not by_length:
        return "Differences cannot be tested: no two encodings have every seed."
    significant = [pair.significant for pairs in by_length for pair in pairs]
    parts = [f"{sum(significant)} of {len(significant)} pairwise differences are significant ({rule})."]
    if any(significant) and (level := _not_significant(by_length)):
        parts.append(f"Not significant: {level}.")
    untested = [line.label for line in lines_of(record) if any(0 < len(line.values(n)) < len(seeds) for n in lengths)]
    if untested:
        parts.append(f"Not tested, because a seed is missing: {join_words(untested)}.")
    return " ".join(parts)


def _not_significant(by_length: Sequence[Sequence[Difference]]) -> str:
    """`Kerple-log vs FIRE at 512`: encodings not significantly behind the best, or their number if there are many."""
    level: dict[tuple[str, str], list[int]] = {}
    for pairs in by_length:
        for pair in pairs:
            if pair.better == pairs[0].better and not pair.significant:
                level.setdefault((pair.worse, pair.better), []).append(pair.length)
    if len(level) > LISTED:
        lengths = sorted(length for pair_lengths in level.values() for length in pair_lengths)
        return "vs the best, " + ", ".join(f"{lengths.count(n)} encodings at {n:,}" for n in dict.fromkeys(lengths))
    everywhere = len(by_length) if len(by_length) > 1 else 0
    return "; ".join(
        f"{worse} vs {better} at "
        f"{'every length' if len(lengths) == everywhere else join_words([f'{n:,}' for n in lengths])}"
        for (worse, better), lengths in level.items()
    )
