"""Turn comparisons into a verdict.

A comparison is one number per seed, positive if it supports the claim. Two encodings at one length are compared as in
every table (`longfire.report.significance`, corrected for all pairs of the record at that length). Everything else
(one encoding at two lengths, scores on tasks) gets a two-sided t-test over the seeds at the same level, uncorrected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from longfire.report.significance import ENOUGH, FEW, LEVEL, p_value

HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "undecided", "not measured"
VERDICTS = (HOLDS, FAILS, OPEN, MISSING)
UNMEASURED, DISAGREE, INSIGNIFICANT = "incomplete", "seeds disagree", "not significant"
"""Why a comparison is undecided. Insignificant: all seeds have the same sign, but that could be chance."""


def too_few(seeds: int) -> str:
    """Why one or two seeds decide nothing."""
    return f"not testable with {FEW[seeds]}"


def decide(by_seed: Sequence[float], seeds: int, p: float | None = None) -> str:
    """Whether the numbers are significantly above or below 0. `p` replaces the p-value of a t-test on them."""
    if len(by_seed) < max(seeds, ENOUGH) or (p_value(by_seed) if p is None else p) > LEVEL:
        return OPEN
    return HOLDS if fmean(by_seed) > 0 else FAILS


def why_undecided(by_seed: Sequence[float], seeds: int) -> str:
    """The reason in a few words."""
    if seeds < ENOUGH and by_seed:
        return too_few(seeds)
    if not by_seed or len(by_seed) < seeds:
        return UNMEASURED
    return DISAGREE if min(by_seed) <= 0 <= max(by_seed) else INSIGNIFICANT


@dataclass(frozen=True)
class Comparison:
    """One comparison that a claim rests on."""

    at: str
    """Where, such as a length. Only the weakest comparison at each place is shown."""
    text: str
    verdict: str
    mean: float = 0.0
    why: tuple[str, ...] = ()
    """Why it is undecided."""

    @classmethod
    def of_seeds(cls, at: str, text: str, by_seed: Sequence[float], seeds: int, p: float | None = None) -> "Comparison":
        """From one number per seed, positive if it supports the claim."""
        verdict = decide(by_seed, seeds, p)
        why = (why_undecided(by_seed, seeds),) if verdict == OPEN else ()
        return cls(at, text, verdict, fmean(by_seed) if by_seed else float("-inf"), why)

    @classmethod
    def missing(cls, at: str, text: str) -> "Comparison":
        """A comparison that lacks data and leaves the claim undecided."""
        return cls(at, text, OPEN, float("-inf"), (UNMEASURED,))


@dataclass(frozen=True)
class Finding:
    """What a record says about a claim."""

    verdict: str
    numbers: tuple[str, ...] = ()
    record: str = ""
    why: str = ""
    """Why it is undecided, how the comparisons split, or what is missing."""
    notes: tuple[str, ...] = ()
    """Other records that disagree."""


def summarise(comparisons: Sequence[Comparison]) -> Finding | None:
    """A claim holds if every comparison does, and fails if one is significant the other way. None if there are none."""
    if not comparisons:
        return None
    order = (FAILS, OPEN, HOLDS)
    places: dict[str, list[Comparison]] = {}
    for one in comparisons:
        places.setdefault(one.at, []).append(one)
    weakest = [min(group, key=lambda one: (order.index(one.verdict), one.mean)) for group in places.values()]
    verdict = min((one.verdict for one in weakest), key=order.index)
    numbers = tuple(f"{one.at}: {one.text}" if one.at else one.text for one in weakest)
    why = ""
    if verdict == OPEN:
        why = ", ".join(dict.fromkeys(reason for one in comparisons for reason in one.why))
    elif verdict == FAILS:
        why = _tally([one.verdict for one in comparisons])
    return Finding(verdict, numbers, why=why)


def _tally(verdicts: Sequence[str]) -> str:
    """`9 of 10 comparisons for, 1 against`; empty for a single one."""
    if len(verdicts) == 1:
        return ""
    undecided = f", {verdicts.count(OPEN)} undecided" if OPEN in verdicts else ""
    return f"{verdicts.count(HOLDS)} of {len(verdicts)} comparisons for, {verdicts.count(FAILS)} against{undecided}"
