"""Operators on perplexity by length. Lengths are multiples of the training length, because ours is not the paper's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import fmean

from benchmarks.names import display_name
from benchmarks.verdicts import FAILS, HOLDS, Comparison
from longfire.report.metric import over_seeds
from longfire.report.significance import pairwise_p_values
from longfire.report.summary import Line, Record, is_number, lengths_of, lines_of, seeds_of, texts_of

NOT_TESTED = "not tested here"


@dataclass(frozen=True)
class Place:
    """A length to compare at: one that was tested, or the first tokens of longer sequences.

    Models are causal, so the first n tokens have the same losses as a sequence cut at n.
    """

    length: int
    read: int
    """Length of the tested sequences."""

    def __str__(self) -> str:
        return f"{self.length:,}" if self.read == self.length else f"first {self.length:,} tokens"

    def values(self, line: Line) -> dict[int, float]:
        """Log perplexity by seed."""
        return line.values(self.length) if self.read == self.length else _prefix_losses(line, self.read, self.length)

    def shown(self, line: Line) -> str:
        """`FIRE 3.834 ± 0.010`."""
        return f"{_name(line)} {over_seeds(self.values(line).values())}"

    def compared(self, one: Line, other: Line) -> tuple[list[float], str]:
        """How far `other` is above `one` in each seed that both have, and the same as text."""
        gaps = _gaps(self.values(one), self.values(other))
        return gaps, f"{self.shown(one)}, {self.shown(other)}{_spread(gaps)}" if gaps else NOT_TESTED


def find_line(record: Record, encoding: str) -> Line | None:
    """An encoding's line, if one of its runs succeeded."""
    return next((line for line in lines_of(record) if line.encoding == encoding and line.runs), None)


def places(record: Record, multiples: Sequence[float]) -> Iterator[Place]:
    """These multiples of the training length. Shorter ones that were not tested become prefixes of it."""
    trained, lengths = record["setting"]["trained_length"], lengths_of(record)
    for multiple in multiples:
        length = round(multiple * trained)
        yield Place(length, trained if length < trained and length not in lengths else length)


def lower(
    record: Record,
    one: str,
    others: Sequence[str],
    at: Sequence[float],
    margin: float = 0.0,
    other_texts: bool = False,
    in_points: bool = False,
) -> list[Comparison]:
    """`one` is below each of the others, or above by less than `margin`, tested as in the record's table.

    Args:
        record: a comparison.
        one: an encoding.
        others: the encodings to compare it with.
        at: multiples of the training length.
        margin: how far it may be above.
        other_texts: compare on each of the other texts instead of the corpus.
        in_points: add perplexities to the text.
    """
    if other_texts:
        texts = list(texts_of(record).items())[1:]
        return [
            replace(found, at=f"{name}, {found.at}") for name, text in texts for found in lower(text, one, others, at)
        ]
    own, seeds = find_line(record, one), len(seeds_of(record))
    theirs = [(other, find_line(record, other)) for other in others]
    if own is None or not any(line for _, line in theirs):
        return []
    comparisons = []
    for place in places(record, at):
        values = {line.label: place.values(line) for line in lines_of(record)}
        values[own.label] = {seed: value - margin for seed, value in values[own.label].items()}
        p_values = pairwise_p_values(values, seeds_of(record))
        for other, line in theirs:
            if line is None:
                comparisons.append(_unmeasured(str(place), other))
                continue
            gaps, text = place.compared(own, line)
            if in_points and gaps:
                points = " and ".join(f"{exp(fmean(place.values(each).values())):.2f}" for each in (own, line))
                text = f"{text}, perplexity {points}"
            p = p_values.get(frozenset((own.label, line.label)))
            comparisons.append(Comparison.of_seeds(str(place), text, [margin + gap for gap in gaps], seeds, p))
    return comparisons


def alike(record: Record, one: str, other: str, at: Sequence[float], margin: float) -> list[Comparison]:
    """Two encodings differ by less than `margin`."""
    a, b, seeds = find_line(record, one), find_line(record, other), len(seeds_of(record))
    if a is None or b is None:
        return []
    comparisons = []
    for place in places(record, at):
        gaps, text = place.compared(a, b)
        comparisons.append(Comparison.of_seeds(str(place), text, [margin - abs(gap) for gap in gaps], seeds))
    return comparisons


def rises(record: Record, one: str, at: Sequence[float], margin: float) -> list[Comparison]:
    """An encoding rises more than `margin` above its own log perplexity at the training length."""
    line, trained, seeds = find_line(record, one), record["setting"]["trained_length"], len(seeds_of(record))
    if line is None or trained not in lengths_of(record):
        return []
    before = f"{Place(trained, trained).shown(line)} at {trained:,}"
    comparisons = []
    for place in places(record, at):
        gaps = _gaps(line.values(trained), place.values(line))
        text = f"{before}, {over_seeds(place.values(line).values())}{_spread(gaps)}" if gaps else NOT_TESTED
        comparisons.append(Comparison.of_seeds(str(place), text, [gap - margin for gap in gaps], seeds))
    return comparisons


def stays(record: Record, one: str, at: Sequence[float], margin: float) -> list[Comparison]:
    """An encoding rises at most `margin` above its own log perplexity at the training length."""
    opposite = {HOLDS: FAILS, FAILS: HOLDS}
    return [
        replace(found, verdict=opposite.get(found.verdict, found.verdict), mean=-found.mean)
        for found in rises(record, one, at, margin)
    ]


def lead_grows(record: Record, one: str, others: Sequence[str], at: float) -> list[Comparison]:
    """`one` leads the best of the others at `at` times the training length, by more than at the training length."""
    own, lines = find_line(record, one), {other: find_line(record, other) for other in others}
    rivals = [line for line in lines.values() if line is not None]
    if own is None or not rivals:
        return []
    absent = [_unmeasured("", other) for other, line in lines.items() if line is None]
    both = list(places(record, (1, at)))
    near, far = (_leads(place, own, rivals) for place in both)
    shared = [seed for seed in near if seed in far]
    leads = [(place, [by_seed[seed] for seed in shared]) for place, by_seed in zip(both, (near, far), strict=True)]
    over = _name(rivals[0]) if len(rivals) == 1 else "the best of the others"
    shown = ", ".join(f"{fmean(lead):+.3f} at {place} ({_range(lead)})" for place, lead in leads if lead)
    text = f"{_name(own)}'s lead over {over}: {shown}" if shared else NOT_TESTED
    growth = [min(far[seed], far[seed] - near[seed]) for seed in shared]
    return [*absent, Comparison.of_seeds("", text, growth, len(seeds_of(record)))]


def _prefix_losses(line: Line, read: int, length: int) -> dict[int, float]:
    """Mean loss of the first `length` tokens of sequences of `read`, by seed, if a bin of positions ends there."""
    found = {}
    for run in line.runs:
        measured = run.get("perplexity", {})
        for row in measured.get("rows", ()) if measured.get("protocol") == "paper" else ():
            bins = [part for part in row.get("by_position", ()) if part["to"] <= length and row["length"] == read]
            if bins and bins[-1]["to"] == length and all(is_number(part["loss"]) for part in bins):
                tokens = [part["tokens"] for part in bins]
                losses = (part["loss"] * count for part, count in zip(bins, tokens, strict=True))
                found[run["seed"]] = sum(losses) / sum(tokens)
    return found


def _leads(place: Place, own: Line, rivals: Sequence[Line]) -> dict[int, float]:
    theirs = [place.values(line) for line in rivals]
    return {
        seed: min(values[seed] for values in theirs) - value
        for seed, value in place.values(own).items()
        if all(seed in values for values in theirs)
    }


def _gaps(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """How far `other` is above `one`, in each seed that both have."""
    return [other[seed] - one[seed] for seed in one if seed in other]


def _unmeasured(at: str, encoding: str) -> Comparison:
    return Comparison.missing(at, f"{display_name(encoding)} was not measured")


def _name(line: Line) -> str:
    return display_name(line.encoding, line.label)


def _spread(gaps: Sequence[float]) -> str:
    """The mean difference, and its range over seeds."""
    return f" ({fmean(gaps):+.3f}{'; ' + _range(gaps) if len(gaps) > 1 else ''})"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):+.3f} to {max(values):+.3f}"
