"""The result of a comparison on a synthetic task: which encodings solve the longest length, and where others fail."""

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile

from longfire.report.metric import percent
from longfire.report.significance import FEW
from longfire.report.summary import LISTED, Record, lines_of, metric_of, seeds_of, some_names

SOLVED, LEARNED = 90.0, 50.0
"""Medians of exact match in percent: a length is solved from the first on; a model below the second at the training
length has not learned the task."""
MANY_SEEDS = 5

Medians = Mapping[int, float]
"""Exact match by length."""


def task_verdict(record: Record, measured: Sequence[int]) -> list[str]:
    """Sentences on the encodings that solve the longest length, those that fail before it, and the number of seeds."""
    setting, unit, seeds = record["setting"], metric_of(record).unit, len(seeds_of(record))
    bands = {line.label: {n: line.band(n) for n in measured} for line in lines_of(record)}
    medians = {label: {n: band[0] for n, band in one.items() if band} for label, one in bands.items()}
    medians = {label: one for label, one in medians.items() if one}
    trained, far = setting["trained_length"], measured[-1]
    over = f"median of {seeds} seeds" if seeds > 1 else "one seed"
    base = max((n for n in measured if n <= trained), default=None)
    if base is not None and (learned := {label: one[base] for label, one in medians.items() if base in one}):
        best = max(learned, key=lambda label: learned[label])
        if learned[best] < LEARNED:
            return [
                f"Too early to tell: the models have not learned the task. At {base:,} {unit}, within the training "
                f"length, the best ({best}) answers {percent(learned[best])} % of questions exactly ({over})."
            ]
    at_far = {label: one[far] for label, one in medians.items() if far in one}
    clauses = [_at_the_longest(at_far, f"{far:,} {unit} ({far / trained:.3g}×)", over), *_failures(medians, far)]
    no_result = {label: max(one) for label, one in medians.items() if far not in one and _solved(min(one.values()))}
    few = FEW.get(seeds, f"{seeds} seeds")
    return [
        f"{setting['corpus']['title']}, trained on up to {trained:,} {unit}: {'; '.join(clauses)}.",
        *(f"{label} has no result past {n:,}." for label, n in no_result.items()),
        *([f"With {few}, results may be chance: variance over seeds is large."] if seeds < MANY_SEEDS else []),
    ]


def _at_the_longest(medians: Mapping[str, float], place: str, over: str) -> str:
    """Who solves the longest length, best first; if nobody does, the best."""
    ordered = sorted(medians, key=lambda label: -medians[label])
    groups = [(shown, list(labels)) for shown, labels in groupby(ordered, lambda label: percent(medians[label]))]
    (shown, labels), *others = [group for group in groups if _solved(medians[group[1][0]])] or groups[:1]
    answer = f"answer{'s' * (len(labels) == 1)} {shown} % of questions exactly ({over})"
    if _solved(medians[labels[0]]):
        parts = [f"{some_names(one)} {each} %" for each, one in others]
        if len(parts) >= LISTED:
            rest = sum(len(one) for _, one in others[LISTED - 2 :])
            parts[LISTED - 2 :] = [f"{rest} others at least {others[-1][0]} %"]
        return ", ".join([f"at {place} {some_names(labels)} {answer}", *parts])
    if len(medians) == 1:
        return f"{labels[0]} does not solve {place}, where it {answer}"
    best = "all" if len(labels) == len(medians) else f"the best, {some_names(labels)},"
    return f"no encoding solves {place}, where {best} {answer}"


def _solved(value: float) -> bool:
    return round(value) >= SOLVED  # as tables show it


def _holds_to(medians: Medians) -> int:
    """The longest length before the first that is not solved; 0 if that is the shortest."""
    return max(takewhile(lambda n: _solved(medians[n]), sorted(medians)), default=0)


def _failures(medians: Mapping[str, Medians], far: int) -> list[str]:
    """`RoPE and NoPE fail (below 90 %) past 60`, encodings that hold longest first."""
    failing: dict[tuple[int, int], list[str]] = {}
    for label, one in medians.items():
        if not _solved(one.get(far, min(one.values()))):
            failing.setdefault((_holds_to(one), min(one)), []).append(label)
    return [
        f"{some_names(labels)} fail{'s' * (len(labels) == 1)}{f' (below {SOLVED:.0f} %)' * (not i)} "
        f"{f'past {held:,}' if held else f'at {first:,} already'}"
        for i, ((held, first), labels) in enumerate(sorted(failing.items(), reverse=True))
    ]
