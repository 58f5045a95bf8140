"""Comparisons of perplexity by length, for claims. Lengths are multiples of the training length, as it differs."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from longfire.report.claims.claim import FAILS, HOLDS, Step
from longfire.report.compare import number
from longfire.report.summary import Line, Record, lengths_of, lines_of, seeds_of, texts_of

PAPERS_RANGE = (0.25, 0.5, 1, 2, 4)
LONGER = (2, 4)
"""Than in training, as far as the paper tests perplexity."""
SHORT = (0.25, 0.5, 1)
BASELINES = ("nope", "rope", "alibi", "kerple_log", "t5")
"""The paper's."""


def line_of(record: Record, encoding: str) -> Line | None:
    """An encoding's, if it has a run that ended well."""
    return next((line for line in lines_of(record) if line.encoding == encoding and line.runs), None)


def tested(record: Record, multiples: Sequence[float]) -> list[int]:
    """Those of these multiples of the training length that were tested."""
    asked = [round(multiple * record["setting"]["trained_length"]) for multiple in multiples]
    return [length for length in asked if length in lengths_of(record)]


def lower(
    record: Record, one: str, others: Sequence[str], multiples: Sequence[float], margin: float = 0.0
) -> list[Step]:
    """Whether one encoding is below each of the others (or above by less than `margin`) at these multiples."""
    own, seeds = line_of(record, one), len(seeds_of(record))
    theirs = [(other, line_of(record, other)) for other in others]
    if own is None or not any(line for _, line in theirs):
        return []
    steps = []
    for length in tested(record, multiples):
        for other, line in theirs:
            if line is None:
                steps.append(Step.of(_at(length), f"{other} was not measured", [], seeds))
                continue
            by_seed = [margin + b - a for a, b in _paired(own, length, line, length)]
            text = f"{_mean(own, length)}, {_mean(line, length)}{_spread([value - margin for value in by_seed])}"
            steps.append(Step.of(_at(length), text, by_seed, seeds))
    return steps


def alike(record: Record, one: str, other: str, multiples: Sequence[float], margin: float) -> list[Step]:
    """Whether two encodings differ by less than `margin` either way."""
    a, b, seeds = line_of(record, one), line_of(record, other), len(seeds_of(record))
    if a is None or b is None:
        return []
    steps = []
    for length in tested(record, multiples):
        apart = [y - x for x, y in _paired(a, length, b, length)]
        text = f"{_mean(a, length)}, {_mean(b, length)}{_spread(apart)}"
        steps.append(Step.of(_at(length), text, [margin - abs(value) for value in apart], seeds))
    return steps


def rises(record: Record, encoding: str, multiples: Sequence[float], by: float) -> list[Step]:
    """Whether an encoding's perplexity is more than `by` above that at the training length."""
    line, trained, seeds = line_of(record, encoding), record["setting"]["trained_length"], len(seeds_of(record))
    if line is None or trained not in lengths_of(record):
        return []
    steps = []
    for length in tested(record, multiples):
        by_seed = [b - a for a, b in _paired(line, trained, line, length)]
        text = f"{_mean(line, trained)} at {trained:,}, {number(line, length)}{_spread(by_seed)}"
        steps.append(Step.of(_at(length), text, [value - by for value in by_seed], seeds))
    return steps


def stays(record: Record, encoding: str, multiples: Sequence[float], within: float) -> list[Step]:
    """Whether it is at most `within` above that."""
    return [_turned(step) for step in rises(record, encoding, multiples, within)]


def lead_grows(record: Record, one: str, others: Sequence[str], longer: float) -> list[Step]:
    """Whether one's lead over the best of the others is larger at a longer length than at the training length."""
    own, seeds = line_of(record, one), len(seeds_of(record))
    lines = [line for other in others if (line := line_of(record, other))]
    lengths = tested(record, (1, longer))
    if own is None or not lines or len(lengths) < 2:
        return []
    near, far = (_leads(own, lines, length) for length in lengths)
    shared = [seed for seed in near if seed in far]
    text = ", ".join(
        f"{fmean(leads[seed] for seed in shared):+.3f} at {length:,}"
        for length, leads in zip(lengths, (near, far), strict=True)
        if shared
    )
    rivals = lines[0].label if len(lines) == 1 else "the best of the others"
    return [Step.of("", f"{own.label}'s lead over {rivals}: {text}", [far[s] - near[s] for s in shared], seeds)]


def on_other_texts(record: Record) -> Iterator[tuple[str, Record]]:
    """The record as each text but the corpus's own has it."""
    yield from list(texts_of(record).items())[1:]


def _leads(own: Line, others: Sequence[Line], length: int) -> dict[int, float]:
    best = {
        seed: min(values[seed] for line in others if seed in (values := line.values(length)))
        for seed in own.values(length)
        if all(seed in line.values(length) for line in others)
    }
    return {seed: best[seed] - value for seed, value in own.values(length).items() if seed in best}


def _paired(one: Line, at: int, other: Line, other_at: int) -> list[tuple[float, float]]:
    a, b = one.values(at), other.values(other_at)
    return [(a[seed], b[seed]) for seed in a if seed in b]


def _turned(step: Step) -> Step:
    return Step(step.at, step.text, {HOLDS: FAILS, FAILS: HOLDS}.get(step.verdict, step.verdict), -step.mean)


def _at(length: int) -> str:
    return f"{length:,}"


def _mean(line: Line, length: int) -> str:
    return f"{line.label} {number(line, length)}"


def _spread(by_seed: Sequence[float]) -> str:
    """The difference, and its range over seeds."""
    if not by_seed:
        return " (no seed has both)"
    seeds = f", in the seeds {min(by_seed):+.3f} to {max(by_seed):+.3f}" if len(by_seed) > 1 else ""
    return f" ({fmean(by_seed):+.3f}{seeds})"
