"""Which differences between encodings the seeds bear out. There is one rule, `holds`, and `RULE` says it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, stdev

from longfire.report.summary import Line, Record, lengths_of, lines_of, seeds_of

ENOUGH = 3
"""Seeds: of fewer no difference is called one."""
FEW = {1: "one seed", 2: "two seeds"}
"""How many fewer are."""
RULE = "the same way in every seed, of three or more, and above 0 by a one-sided paired t-test over the seeds at 5 %"
T_95 = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t, 95 %, of 2, 3, … 10 degrees of freedom. Of more it is a little less: the last stands for them."""
LISTED = 8
"""Pairs of encodings at most; of more only how many."""
BEST = "better than every other one, and that holds over the seeds."
"""What is marked in a table, `clear_best`."""


def holds(by_seed: Sequence[float]) -> bool:
    """Whether numbers of seeds are above 0: all of them, and their mean by more than t · deviation / √n."""
    if len(by_seed) < ENOUGH:
        return False
    least = T_95[min(len(by_seed), ENOUGH + len(T_95) - 1) - ENOUGH] * stdev(by_seed) / sqrt(len(by_seed))
    return min(by_seed) > 0 and fmean(by_seed) > least


@dataclass(frozen=True)
class Difference:
    """Between two encodings at one length, paired over the seeds that both have."""

    length: int
    better: str
    worse: str
    by_seed: list[float]
    """What the better one is better by; below 0 in a seed where it is not."""
    seeds: int
    """How many there should be."""

    @property
    def holds(self) -> bool:
        """By the rule, and no seed is missing."""
        return len(self.by_seed) >= self.seeds and holds(self.by_seed)


def difference(one: Line, other: Line, length: int, seeds: int) -> Difference | None:
    """The better one first; None if no seed has both."""
    a, b = one.values(length), other.values(length)
    by_seed = [b[seed] - a[seed] for seed in a if seed in b]
    if not by_seed:
        return None
    if fmean(by_seed) < 0:
        return Difference(length, other.label, one.label, [-value for value in by_seed], seeds)
    return Difference(length, one.label, other.label, by_seed, seeds)


def differences(record: Record) -> list[Difference]:
    """Of all pairs at all lengths."""
    lines, lengths, seeds = lines_of(record), lengths_of(record), len(seeds_of(record))
    pairs = [difference(one, other, length, seeds) for length in lengths for one, other in combinations(lines, 2)]
    return [pair for pair in pairs if pair is not None]


def clear_best(record: Record, length: int) -> str | None:
    """The label of the best encoding at a length, if its lead over each of the others holds over the seeds."""
    lines = [line for line in lines_of(record) if line.values(length)]
    if len(lines) < 2:
        return None
    best, *others = sorted(lines, key=lambda line: fmean(line.values(length).values()))
    found = [difference(best, other, length, len(seeds_of(record))) for other in others]
    return best.label if all(one and one.better == best.label and one.holds for one in found) else None


def seeds_verdict(record: Record, rule: str = RULE) -> str:
    """Which differences between encodings hold over all seeds, in words; and the rule, or where it is."""
    seeds = len(seeds_of(record))
    found = differences(record)
    if len(lines_of(record)) < 2:
        return ""
    if not found:
        return "There are no two encodings to compare."
    if seeds < ENOUGH:
        return f"{FEW[seeds].capitalize()}: no difference is called one; three seeds or more would tell."
    failing: dict[int, list[str]] = {}
    for pair in found:
        if not pair.holds:
            failing.setdefault(pair.length, []).append(f"{pair.better}–{pair.worse}")
    holding = len(found) - sum(map(len, failing.values()))
    if not failing:
        if len(found) == 1:
            return f"The one difference between two encodings at one length holds ({rule})."
        return f"All {len(found)} differences between two encodings at one length hold ({rule})."
    if not holding:
        return f"None of the {len(found)} differences between two encodings at one length holds ({rule})."
    return (
        f"Of {len(found)} differences between two encodings at one length {holding} hold{'s' * (holding == 1)} "
        f"({rule}). Not borne out: {_listed(failing)}."
    )


def _listed(pairs: dict[int, list[str]]) -> str:
    """By length; where they are many, how many."""
    if sum(map(len, pairs.values())) > LISTED:
        return ", ".join(f"{len(those)} at {length:,}" for length, those in pairs.items())
    return "; ".join(f"{length:,}: {', '.join(those)}" for length, those in pairs.items())
