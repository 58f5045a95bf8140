"""A claim of the paper: what it says, its numbers there, and what the records in results/ say of it.

A claim rests on comparisons, each a number for every seed, above 0 where the claim is borne out. Two encodings at one
length are compared as in every table, by `longfire.report.significance`, corrected for all pairs of the record at that
length. What is not in such a table (one encoding at two lengths, scores on tasks) is decided by a two-sided t-test over
the seeds at the same level, uncorrected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from longfire.report.claims.quote import Papers, Quote, quoted
from longfire.report.claims.runs import AND, Records, record_named, run_keys, unfit
from longfire.report.significance import ENOUGH, FEW, LEVEL, p_value
from longfire.report.summary import Record, seeds_of

HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "cannot be told", "not measured"
VERDICTS = (HOLDS, FAILS, OPEN, MISSING)
UNMEASURED, DISAGREE, UNCLEAR = "not all measured", "the seeds disagree", "not significant"
"""Why a comparison is open. The last: all seeds have the same sign, and it may be chance."""


def not_testable(seeds: int) -> str:
    """With one seed, or two."""
    return f"not testable with {FEW[seeds]}"


def decided(by_seed: Sequence[float], seeds: int, p: float | None = None) -> str:
    """Whether numbers are above 0, below it, or neither as far as these seeds tell; `p` if their own is not meant."""
    if len(by_seed) < max(seeds, ENOUGH):
        return OPEN
    if (p_value(by_seed) if p is None else p) > LEVEL:
        return OPEN
    return HOLDS if fmean(by_seed) > 0 else FAILS


def undecided(by_seed: Sequence[float], seeds: int) -> str:
    """Why seeds do not tell."""
    if seeds < ENOUGH and by_seed:
        return not_testable(seeds)
    if not by_seed or len(by_seed) < seeds:
        return UNMEASURED
    return DISAGREE if min(by_seed) <= 0 <= max(by_seed) else UNCLEAR


@dataclass(frozen=True)
class Step:
    """One comparison."""

    at: str
    """Of those at one place, such as a length, only the weakest is shown."""
    text: str
    verdict: str
    mean: float = 0.0
    why: tuple[str, ...] = ()
    """It is open."""

    @classmethod
    def of(cls, at: str, text: str, by_seed: Sequence[float], seeds: int, p: float | None = None) -> "Step":
        """From the numbers of all seeds, above 0 where the claim is borne out."""
        verdict = decided(by_seed, seeds, p)
        why = (undecided(by_seed, seeds),) if verdict == OPEN else ()
        return cls(at, text, verdict, fmean(by_seed) if by_seed else float("-inf"), why)


@dataclass(frozen=True)
class Finding:
    """What a record says of a claim."""

    verdict: str
    numbers: tuple[str, ...] = ()
    record: str = ""
    why: str = ""
    """The verdict, where it is not plain: what keeps it open, how many comparisons there are, what is missing."""
    notes: tuple[str, ...] = ()
    """Of other records."""


def found(steps: Sequence[Step]) -> Finding | None:
    """A claim holds if every comparison does, and does not if one comes out the other way. None: there is none."""
    if not steps:
        return None
    places: dict[str, list[Step]] = {}
    for step in steps:
        places.setdefault(step.at, []).append(step)
    order = (FAILS, OPEN, HOLDS)
    weakest = [min(those, key=lambda step: (order.index(step.verdict), step.mean)) for those in places.values()]
    verdict = min((step.verdict for step in weakest), key=order.index)
    numbers = tuple(f"{step.at}: {step.text}" if step.at else step.text for step in weakest)
    why = {OPEN: ", ".join(dict.fromkeys(reason for step in steps for reason in step.why)), FAILS: _tally(steps)}
    return Finding(verdict, numbers, why=why.get(verdict, ""))


def _tally(steps: Sequence[Step]) -> str:
    """`9 of 10 comparisons for, 1 against`; of one alone nothing."""
    counts = {verdict: sum(step.verdict == verdict for step in steps) for verdict in (HOLDS, FAILS, OPEN)}
    still = f", {counts[OPEN]} open" if counts[OPEN] else ""
    return f"{counts[HOLDS]} of {len(steps)} comparisons for, {counts[FAILS]} against{still}" if len(steps) > 1 else ""


def by(compared: Callable[..., Sequence[Step]], *arguments: Any, **options: Any) -> Callable[[Record], Finding | None]:
    """A judge that makes these comparisons of a record."""
    return lambda record: found(compared(record, *arguments, **options))


@dataclass(frozen=True)
class Claim:
    """Of the paper, in our words."""

    where: str
    """In the paper."""
    says: str
    records: tuple[str, ...]
    """That may have what it needs: the one with most seeds decides, and of those that have as many the first."""
    judge: Callable[[Record], Finding | None]
    """None: the record has nothing of it."""
    paper: Quote | str | tuple[Quote | str, ...] = "a picture, without numbers"
    needs: str = ""
    """What has to be measured, if no record has it."""
    part_of: str = ""
    """Another claim, with which it is counted: a comparison counts once."""

    def judged(self, records: Records) -> Finding:
        """By what there is."""
        candidates = [(name, record) for name in self.records if (record := record_named(records, name)) is not None]
        findings = [
            (replace(_capped(finding, record), record=name), record)
            for name, record in candidates
            if (finding := self.judge(record)) is not None
        ]
        measured = [(finding, record) for finding, record in findings if finding.verdict != MISSING]
        if not measured:
            absent = [part for name in self.records for part in name.split(AND) if part not in records]
            why = self.needs or ("no record has it" if candidates else f"there is no record `{absent[0]}`")
            return replace(findings[0][0], record="") if findings else Finding(MISSING, why=why)
        best, own = max(measured, key=lambda one: (not unfit(one[1]), _seeds(one[1])))
        notes = [
            f"by `{finding.record}` it {finding.verdict}"
            for finding, record in measured
            if finding.verdict in (HOLDS, FAILS) and finding.verdict != best.verdict
            if not run_keys(record) & run_keys(own)
        ]
        return replace(best, notes=tuple(notes))

    def quoted(self, papers: Papers, tasks: Sequence[str] = ()) -> str:
        """The paper's numbers, and its means over these tasks, if there are any."""
        return quoted(self.paper if isinstance(self.paper, tuple) else (self.paper,), papers, tasks)


def _capped(finding: Finding, record: Record) -> Finding:
    """Open, if by a record that decides nothing."""
    reason = unfit(record)
    if not reason or finding.verdict == MISSING:
        return finding
    before = finding.why if finding.verdict == OPEN else ""
    return replace(finding, verdict=OPEN, why=", ".join(filter(None, (reason, before))))


def _seeds(record: Record) -> int:
    return len(seeds_of(record)) if "runs" in record else 0
