"""Comparisons of perplexity by length, for claims. Lengths are multiples of the training length, as it differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from longfire.report.claims.claim import FAILS, HOLDS, OPEN, UNMEASURED, Step
from longfire.report.claims.names import WRITTEN, written
from longfire.report.significance import pairwise_p_values
from longfire.report.summary import Line, Record, is_number, lengths_of, lines_of, over_seeds, seeds_of, texts_of

PAPERS_RANGE = (0.25, 0.5, 1, 2, 4)
LONGER = (2, 4)
"""Than in training, as far as the paper tests perplexity."""
SHORT = (0.25, 0.5, 1)
TO_SIXTEEN = (1, 2, 4, 8, 16)
BASELINES = ("nope", "rope", "alibi", "kerple_log", "t5")
"""The paper's."""
UNTESTED = "not tested here"


def line_of(record: Record, encoding: str) -> Line | None:
    """An encoding's, if it has a run that ended well."""
    return next((line for line in lines_of(record) if line.encoding == encoding and line.runs), None)


@dataclass(frozen=True)
class Place:
    """A length to compare at: tested, or else the first tokens of sequences that are longer.

    Models are causal: up to a position, a sequence has the losses that it would have if it were cut there.
    """

    length: int
    read: int
    """Tokens in the sequences that were tested."""

    def __str__(self) -> str:
        return f"{self.length:,}" if self.read == self.length else f"first {self.length:,} tokens"

    def values(self, line: Line) -> dict[int, float]:
        """Log perplexity by seed."""
        return line.values(self.length) if self.read == self.length else _of_first(line, self.read, self.length)

    def shown(self, line: Line) -> str:
        """`FIRE 3.834 ± 0.010`."""
        return f"{_called(line)} {over_seeds(self.values(line).values())}"

    def compared(self, one: Line, other: Line) -> tuple[list[float], str]:
        """What the other is above one, in each seed that both have, and all of it in words."""
        apart = _apart(self.values(one), self.values(other))
        return apart, f"{self.shown(one)}, {self.shown(other)}{_spread(apart)}" if apart else UNTESTED


def places(record: Record, multiples: Sequence[float]) -> Iterator[Place]:
    """These multiples of the training length; those that were not tested are parts of it, if they can be."""
    trained, lengths = record["setting"]["trained_length"], lengths_of(record)
    for multiple in multiples:
        length = round(multiple * trained)
        yield Place(length, trained if length < trained and length not in lengths else length)


def lower(
    record: Record, one: str, others: Sequence[str], multiples: Sequence[float], margin: float = 0.0
) -> list[Step]:
    """Whether one encoding is below each of the others (or above by less than `margin`) at these multiples.

    Tested among all encodings of the record, as in its table.
    """
    own, seeds = line_of(record, one), len(seeds_of(record))
    theirs = [(other, line_of(record, other)) for other in others]
    if own is None or not any(line for _, line in theirs):
        return []
    steps = []
    for place in places(record, multiples):
        values = {line.label: place.values(line) for line in lines_of(record)}
        values[own.label] = {seed: value - margin for seed, value in values[own.label].items()}
        p = pairwise_p_values(values, seeds_of(record))
        for other, line in theirs:
            if line is None:
                steps.append(_unmeasured(str(place), other))
                continue
            apart, text = place.compared(own, line)
            found = p.get(frozenset((own.label, line.label)))
            steps.append(Step.of(str(place), text, [margin + value for value in apart], seeds, found))
    return steps


def alike(record: Record, one: str, other: str, multiples: Sequence[float], margin: float) -> list[Step]:
    """Whether two encodings differ by less than `margin` either way."""
    a, b, seeds = line_of(record, one), line_of(record, other), len(seeds_of(record))
    if a is None or b is None:
        return []
    steps = []
    for place in places(record, multiples):
        apart, text = place.compared(a, b)
        steps.append(Step.of(str(place), text, [margin - abs(value) for value in apart], seeds))
    return steps


def rises(record: Record, encoding: str, multiples: Sequence[float], by: float) -> list[Step]:
    """Whether an encoding's perplexity is more than `by` above that at the training length."""
    line, trained, seeds = line_of(record, encoding), record["setting"]["trained_length"], len(seeds_of(record))
    if line is None or trained not in lengths_of(record):
        return []
    steps = []
    for place in places(record, multiples):
        apart = _apart(line.values(trained), place.values(line))
        before = f"{Place(trained, trained).shown(line)} at {trained:,}"
        now = over_seeds(place.values(line).values())
        text = f"{before}, {now}{_spread(apart)}" if apart else UNTESTED
        steps.append(Step.of(str(place), text, [value - by for value in apart], seeds))
    return steps


def stays(record: Record, encoding: str, multiples: Sequence[float], within: float) -> list[Step]:
    """Whether it is at most `within` above that."""
    return [_turned(step) for step in rises(record, encoding, multiples, within)]


def lead_grows(record: Record, one: str, others: Sequence[str], longer: float) -> list[Step]:
    """Whether one leads the best of the others at a longer length, and by more than at the training length."""
    own, seeds = line_of(record, one), len(seeds_of(record))
    lines = {other: line_of(record, other) for other in others}
    there = [line for line in lines.values() if line is not None]
    if own is None or not there:
        return []
    absent = [_unmeasured("", other) for other, line in lines.items() if line is None]
    both = list(places(record, (1, longer)))
    near, far = (_leads(place, own, there) for place in both)
    shared = [seed for seed in near if seed in far]
    rivals = _called(there[0]) if len(there) == 1 else "the best of the others"
    leads = ((place, [by_seed[seed] for seed in shared]) for place, by_seed in zip(both, (near, far), strict=True))
    shown = ", ".join(f"{fmean(lead):+.3f} at {place} ({_ends(lead)})" for place, lead in leads if lead)
    text = f"{_called(own)}'s lead over {rivals}: {shown}" if shared else UNTESTED
    return [*absent, Step.of("", text, [min(far[seed], far[seed] - near[seed]) for seed in shared], seeds)]


def on_other_texts(record: Record) -> Iterator[tuple[str, Record]]:
    """The record as each text but the corpus's own has it."""
    yield from list(texts_of(record).items())[1:]


def _of_first(line: Line, read: int, length: int) -> dict[int, float]:
    """The mean loss of the first tokens of sequences, by seed, where it is known up to just there."""
    found = {}
    for run in line.runs:
        tested = run.get("perplexity", {})
        for row in tested.get("rows", ()) if tested.get("protocol") == "paper" else ():
            parts = [part for part in row.get("by_position", ()) if part["to"] <= length and row["length"] == read]
            if parts and parts[-1]["to"] == length and all(is_number(part["loss"]) for part in parts):
                tokens = [part["tokens"] for part in parts]
                losses = (part["loss"] * count for part, count in zip(parts, tokens, strict=True))
                found[run["seed"]] = sum(losses) / sum(tokens)
    return found


def _leads(place: Place, own: Line, others: Sequence[Line]) -> dict[int, float]:
    theirs = [place.values(line) for line in others]
    return {
        seed: min(values[seed] for values in theirs) - value
        for seed, value in place.values(own).items()
        if all(seed in values for values in theirs)
    }


def _apart(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """What the other is above one, in each seed that both have."""
    return [other[seed] - one[seed] for seed in one if seed in other]


def _unmeasured(at: str, encoding: str) -> Step:
    return Step(at, f"{written(encoding)} was not measured", OPEN, float("-inf"), (UNMEASURED,))


def _turned(step: Step) -> Step:
    verdict = {HOLDS: FAILS, FAILS: HOLDS}.get(step.verdict, step.verdict)
    return Step(step.at, step.text, verdict, -step.mean, step.why)


def _called(line: Line) -> str:
    return WRITTEN.get(line.encoding, line.label)


def _spread(by_seed: Sequence[float]) -> str:
    """The difference, and its range over seeds."""
    return f" ({fmean(by_seed):+.3f}{'; ' + _ends(by_seed) if len(by_seed) > 1 else ''})"


def _ends(by_seed: Sequence[float]) -> str:
    return f"{min(by_seed):+.3f} to {max(by_seed):+.3f}"
