"""Sections 4.2 to 4.4: fine-tuning on long texts, NarrativeQA at growing context, GLUE and SuperGLUE.

Several rows of one encoding in a record are its seeds, in their order. A score that is near chance decides nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from longfire.report.claims.claim import OPEN, Claim, Quote, Step, by
from longfire.report.summary import Record, mean_and_deviation

Measure = Callable[[float, float], float]
"""Of two scores: above 0 where a claim is borne out."""
BASELINES = ("nope", "rope", "rope_pi", "alibi", "kerple_log", "t5")
CLOSE = 1.0
"""Points between encodings that the paper calls on a par. Its own averages of these four are within 0.8."""
LITTLE = 0.5
"""Points that FIRE-S may cost. In the paper it is 0.1."""


@dataclass(frozen=True)
class Scores:
    """Of an encoding, one for each seed."""

    label: str
    values: list[float]
    near_chance: bool

    def __str__(self) -> str:
        mean, deviation = mean_and_deviation(self.values)
        spread = "" if deviation is None else f" ± {deviation:.2f}"
        return f"{self.label} {mean:.2f}{spread}{' (near chance)' * self.near_chance}"


def rows_of(record: Record, encoding: str, stretch: int | None = None) -> list[dict[str, Any]]:
    """An encoding's; of RoPE-PI those stretched to so many times the fine-tuning length, or the least stretched."""
    rows = [row for row in record["rows"] if row["encoding"] == encoding]
    targets = sorted({row["extended_to"] for row in rows if row.get("extended_to")})
    if not targets:
        return rows if stretch is None else []
    target = targets[0] if stretch is None else stretch * tuned_length(record)
    return [row for row in rows if row.get("extended_to") == target]


def tuned_length(record: Record) -> int:
    """What all were fine-tuned at, here or before; 0 where that is not known."""
    before = [row.get("finetuned_length") for row in record["rows"]]
    return int(record["setting"].get("length") or next(filter(None, before), 0))


def mean_of(record: Record, rows: Sequence[dict[str, Any]], length: int) -> Scores | None:
    """Mean score of each row over the tasks that all rows of the record have at a length."""
    tasks = [task for task in record["setting"]["tasks"] if all(task in _at(row, length) for row in record["rows"])]
    if not rows or not tasks:
        return None
    found = [[_at(row, length)[task] for task in tasks] for row in rows]
    near = [bool(one.get("near_chance")) for scores in found for one in scores]
    label = rows[0]["label"] if len(rows) == 1 else rows[0]["label"].partition(" (")[0]
    return Scores(label, [fmean(one["score"] for one in scores) for scores in found], fmean(near) >= 0.5)


def against(record: Record, one: str, others: Sequence[str], measure: Measure) -> list[Step]:
    """A comparison with each of the others at every length."""
    rows = {name: rows_of(record, name) for name in (one, *others)}
    if not rows[one] or not any(rows[other] for other in others):
        return []
    steps = []
    for length in record["setting"]["lengths"]:
        own = mean_of(record, rows[one], length)
        for name in others:
            other = mean_of(record, rows[name], length)
            if own is None or other is None:
                steps.append(Step(f"{length:,}", f"{one if own is None else name} was not measured", OPEN))
            else:
                steps.append(_step(f"{length:,}", own, other, measure))
    return steps


def _step(at: str, own: Scores, other: Scores, measure: Measure) -> Step:
    by_seed = [measure(a, b) for a, b in zip(own.values, other.values, strict=False)]
    step = Step.of(at, f"{own}, {other}", by_seed, max(len(own.values), len(other.values)))
    return Step(at, step.text, OPEN, step.mean) if own.near_chance and other.near_chance else step


def _at(row: dict[str, Any], length: int) -> dict[str, dict[str, Any]]:
    return {one["task"]: one for one in row["scores"] if one["length"] == length and "failed" not in one}


def higher(record: Record, one: str, others: Sequence[str]) -> list[Step]:
    """Whether an encoding's score is above each of the others'."""
    return against(record, one, others, lambda own, other: own - other)


def behind(record: Record, one: str, others: Sequence[str]) -> list[Step]:
    """Whether it is below each of them."""
    return against(record, one, others, lambda own, other: other - own)


def on_a_par(record: Record, one: str, others: Sequence[str], within: float) -> list[Step]:
    """Whether it is no more than `within` below each of them."""
    return against(record, one, others, lambda own, other: own - other + within)


def drops(record: Record, encoding: str, stretch: int | None = None) -> list[Step]:
    """Whether an encoding's score falls by half or more beyond the fine-tuning length."""
    rows, tuned = rows_of(record, encoding, stretch), tuned_length(record)
    own = mean_of(record, rows, tuned)
    longer = [(n, mean_of(record, rows, n)) for n in record["setting"]["lengths"] if n > tuned]
    return [_step(f"{tuned:,} and {n:,}", own, far, lambda a, b: a / 2 - b) for n, far in longer if own and far]


def stretched_is_worse(record: Record) -> list[Step]:
    """Whether RoPE-PI stretched to four times the fine-tuning length is behind the other up to that length."""
    both = [rows_of(record, "rope_pi", stretch) for stretch in (1, 4)]
    steps = []
    for length in [n for n in record["setting"]["lengths"] if n <= tuned_length(record)]:
        less, more = (mean_of(record, rows, length) for rows in both)
        if less is not None and more is not None:
            steps.append(_step(f"{length:,}", less, more, lambda own, other: own - other))
    return steps


NARRATIVE = ("512", "2048", "4096", "8192", "16384", "24576", "32768")

CLAIMS = (
    Claim(
        "Table 1",
        "Fine-tuned on SCROLLS, FIRE's average is above every baseline's.",
        ("downstream/scrolls",),
        by(higher, "fire", BASELINES),
        Quote("scrolls", ("fire", "t5", "kerple_log", "rope_pi"), ("average",)),
    ),
    Claim(
        "Table 2",
        "FIRE-S's average on SCROLLS is above those of T5's RPE, RoPE-PI and Kerple.",
        ("downstream/scrolls",),
        by(higher, "fire-s", ("t5", "rope_pi", "kerple_log")),
        Quote("scrolls", ("fire-s", "t5", "kerple_log", "rope_pi"), ("average",)),
    ),
    Claim(
        "Table 1",
        "On QMSum ALiBi is behind every other encoding.",
        ("downstream/qmsum",),
        by(behind, "alibi", ("nope", "rope", "rope_pi", "kerple_log", "t5", "fire")),
        Quote("scrolls", (*BASELINES, "fire"), ("qmsum",)),
    ),
    Claim(
        "Table 1",
        "On QMSum T5's RPE is above every other encoding.",
        ("downstream/qmsum",),
        by(higher, "t5", ("nope", "rope", "rope_pi", "alibi", "kerple_log", "fire")),
        Quote("scrolls", (*BASELINES, "fire"), ("qmsum",)),
    ),
    Claim(
        "Table 11",
        "On NarrativeQA FIRE is above every baseline at every context length.",
        ("downstream/narrative-qa",),
        by(higher, "fire", BASELINES),
        Quote("narrative_qa", ("fire", "kerple_log"), NARRATIVE),
    ),
    Claim(
        "Table 11",
        "Beyond the fine-tuning length RoPE's score falls by half or more.",
        ("downstream/narrative-qa",),
        by(drops, "rope"),
        Quote("narrative_qa", ("rope",), NARRATIVE[3:]),
    ),
    Claim(
        "Figure 3",
        "So does the score of RoPE-PI that is stretched to the fine-tuning length.",
        ("downstream/narrative-qa",),
        by(drops, "rope_pi", 1),
        Quote("narrative_qa", ("rope_pi",), NARRATIVE[3:]),
    ),
    Claim(
        "Figure 3",
        "Stretched to four times that, RoPE-PI is worse at all lengths up to it.",
        ("downstream/narrative-qa",),
        by(stretched_is_worse),
        (Quote("narrative_qa", ("rope_pi",), NARRATIVE[:4]), "so not at 2,048"),
    ),
    Claim(
        "Figure 3",
        f"On GLUE and SuperGLUE FIRE's average is on a par with RoPE's, Kerple's and T5's ({CLOSE:g} below at most).",
        ("downstream/glue",),
        by(on_a_par, "fire", ("rope", "kerple_log", "t5"), CLOSE),
        Quote("glue", ("fire",), ("average",)),
    ),
    Claim(
        "Figure 3",
        "On GLUE and SuperGLUE NoPE and ALiBi are behind FIRE.",
        ("downstream/glue",),
        by(higher, "fire", ("nope", "alibi")),
    ),
    Claim(
        "Table 2",
        f"On GLUE and SuperGLUE FIRE-S costs little ({LITTLE:g} at most).",
        ("downstream/glue",),
        by(on_a_par, "fire-s", ("fire",), LITTLE),
        Quote("glue", ("fire", "fire-s"), ("average",)),
    ),
    Claim(
        "Table 3",
        "On GLUE and SuperGLUE the threshold raises FIRE's average.",
        (),  # no record tells FIRE with and without a threshold apart by its encoding's name
        lambda record: None,
        "0.72 points",
    ),
)
