"""Sections 4.1 and B.5: language modelling beyond the training length."""

from collections.abc import Callable
from dataclasses import replace
from math import exp
from statistics import fmean

from longfire.report.claims.claim import FAILS, HOLDS, MISSING, Claim, Finding, Step, by, found
from longfire.report.claims.lengths import (
    BASELINES,
    LONGER,
    PAPERS_RANGE,
    SHORT,
    TO_SIXTEEN,
    lead_grows,
    line_of,
    lower,
    on_other_texts,
    places,
    rises,
    stays,
)
from longfire.report.claims.names import CONSTANT, OURS, OURS_AT_128, written
from longfire.report.claims.quote import Quote
from longfire.report.summary import Record

FIGURE = "Figure 1, Table 4"
"""The numbers of the picture are in the table."""
RECORDS = ("reproduce/perplexity-base", "compare/encodings", "compare/encodings-base")
STEADY = 0.01
"""A rise of log perplexity that is none. The paper's FIRE rises by 0.002."""
STEEP = 0.1
"""A rise by more is a loss of grip. The paper's RoPE rises by 0.3 at twice the training length."""
REPRESENTED, HARDLY_MORE = ("alibi", "kerple_log", "t5"), 0.01
"""What FIRE can be, and the share of parameters that a model may have more with it."""
OF_512 = "it needs models of the paper's base shape, trained at 512"
OF_350M = "it needs models of 350M parameters"
BELOW = "At two and four times the training length FIRE's perplexity is below every baseline's."


def other_texts(record: Record) -> list[Step]:
    """FIRE below each baseline on every other text."""
    return [
        replace(step, at=f"{name}, {step.at}")
        for name, one in on_other_texts(record)
        for step in lower(one, "fire", BASELINES, PAPERS_RANGE)
    ]


def in_points(record: Record) -> list[Step]:
    """FIRE below Kerple at four times the training length, as perplexity."""
    lines = [line_of(record, name) for name in ("fire", "kerple_log")]
    steps = lower(record, "fire", ("kerple_log",), (4,))
    place = next(places(record, (4,)))
    logs = [list(place.values(line).values()) for line in lines if line is not None]
    if len(logs) < 2 or not all(logs):
        return steps
    means = " and ".join(f"{exp(fmean(values)):.2f}" for values in logs)
    return [replace(step, text=f"{step.text}, perplexity {means}") for step in steps]


def with_models(size: str, needs: str) -> Callable[[Record], Finding | None]:
    """FIRE below each baseline, where the models are of the paper's size: what smaller ones say is said above."""

    def judge(record: Record) -> Finding | None:
        if (record["setting"].get("recipe") or {}).get("size") != size:
            return Finding(MISSING, why=needs)
        return found(lower(record, "fire", BASELINES, PAPERS_RANGE))

    return judge


def parameters(record: Record) -> list[Step]:
    """Whether a model has hardly more parameters with FIRE than with each baseline that FIRE can be."""
    runs = {run["encoding"]: run for run in record["runs"] if run.get("parameters")}
    if "fire" not in runs:
        return []
    own, steps = runs["fire"], []
    for other in [name for name in REPRESENTED if name in runs]:
        theirs = runs[other]["parameters"]
        more = own["parameters"] / theirs - 1
        of_encoding = [run.get("position_parameters") for run in (own, runs[other])]
        text = f"{own['parameters']:,} with FIRE, {theirs:,} with {written(other)} ({100 * more:+.2f} %)"
        if None not in of_encoding:
            text += ", of these {:,} and {:,} the encoding's own".format(*of_encoding)
        steps.append(Step(written(other), text, HOLDS if more <= HARDLY_MORE else FAILS))
    return steps


CLAIMS = (
    Claim(
        FIGURE,
        "Up to the training length FIRE's perplexity is below every baseline's.",
        RECORDS,
        by(lower, "fire", BASELINES, SHORT),
        Quote("perplexity", ("fire", "rope", "t5"), ("512", "1024", "2048")),
    ),
    Claim(
        FIGURE,
        BELOW,
        RECORDS,
        by(lower, "fire", BASELINES, LONGER),
        Quote("perplexity", ("fire", "kerple_log", "t5"), ("4096", "8192")),
    ),
    Claim(
        "Section 4.1",
        "At four times the training length FIRE is below Kerple, the best baseline there.",
        RECORDS,
        by(in_points),
        "21.24 v.s. 23.52 perplexity at 8,192 tokens",
        part_of=BELOW,
    ),
    Claim(
        "Figure 7",
        "On texts of other kinds than the training text it is below every baseline's, too.",
        RECORDS,
        by(other_texts),
    ),
    Claim(
        "Section 4.1, Table 4",
        "FIRE leads the best baseline at four times the training length, and by more than at it.",
        RECORDS,
        by(lead_grows, "fire", BASELINES, 4),
        Quote("perplexity", ("fire", "kerple_log", "t5"), ("2048", "8192")),
    ),
    Claim(
        f"Section 2, {FIGURE}",
        f"Up to four times the training length FIRE loses nothing (no more than {STEADY}).",
        RECORDS,
        by(stays, "fire", LONGER, STEADY),
        Quote("perplexity", ("fire",)),
    ),
    Claim(
        "Section 4.1, Table 4",
        "Up to the training length RoPE is strong: below NoPE, ALiBi and Kerple.",
        RECORDS,
        by(lower, "rope", ("nope", "alibi", "kerple_log"), SHORT),
        Quote("perplexity", ("nope", "rope", "alibi", "kerple_log"), ("512", "1024", "2048")),
    ),
    Claim(
        "Section 4.1, Table 4",
        f"RoPE loses its grip soon: more than {STEEP} worse at two and four times the training length than at it.",
        RECORDS,
        by(rises, "rope", LONGER, STEEP),
        Quote("perplexity", ("rope",)),
    ),
    Claim(
        FIGURE,
        f"NoPE loses its grip soon (more than {STEEP} worse at two and four times the training length).",
        RECORDS,
        by(rises, "nope", LONGER, STEEP),
        Quote("perplexity", ("nope",)),
    ),
    Claim(
        FIGURE,
        f"ALiBi loses its grip soon (more than {STEEP} worse at two and four times the training length).",
        RECORDS,
        by(rises, "alibi", LONGER, STEEP),
        Quote("perplexity", ("alibi",)),
    ),
    Claim(
        FIGURE,
        f"T5's RPE is worse at four times the training length than at it (more than {STEEP}).",
        RECORDS,
        by(rises, "t5", (4,), STEEP),
        Quote("perplexity", ("t5",)),
    ),
    Claim(
        FIGURE,
        f"Up to four times the training length Kerple loses nothing (no more than {STEADY}).",
        RECORDS,
        by(stays, "kerple_log", LONGER, STEADY),
        Quote("perplexity", ("kerple_log",)),
    ),
    Claim(
        "Section 4.1, Table 4",
        "Kerple is the best of the baselines at four times the training length.",
        RECORDS,
        by(lower, "kerple_log", ("nope", "rope", "alibi", "t5"), (4,)),
        Quote("perplexity", BASELINES, ("8192",)),
    ),
    Claim(
        "Section 2.1",
        f"Absolute (sinusoidal) positions lose their grip beyond the training length (more than {STEEP}).",
        ("compare/encodings", *RECORDS),
        by(rises, "sinusoidal", LONGER, STEEP),
        "none",
    ),
    Claim(
        "Figures 1 and 7",
        "YaRN, although tuned further on long sequences, is behind FIRE at two and four times the training length.",
        RECORDS,
        by(lower, "fire", ("yarn",), LONGER),
    ),
    Claim(
        "Figures 1 and 7",
        "YaRN gives up quality on short sequences: up to the training length it is behind the RoPE it was made of.",
        RECORDS,
        by(lower, "rope", ("yarn",), SHORT),
    ),
    Claim(
        "Appendix B.5, Figure 6",
        "Trained at 512 tokens, too, FIRE is below every baseline at all lengths up to four times that.",
        ("reproduce/perplexity-512", "reproduce/perplexity-large", "compare/encodings-base"),
        with_models("base", OF_512),
        needs=OF_512,
    ),
    Claim(
        "Figure 2",
        "Large models (350M) with FIRE are below those with every baseline up to four times the training length.",
        ("reproduce/perplexity-large",),
        with_models("large", OF_350M),
        needs=OF_350M,
    ),
    Claim(
        "Section 3.1",
        "A fixed maximum length in place of the query's position as the normaliser is worse beyond that length.",
        ("compare/normaliser", "compare/encodings"),
        by(lower, "fire", (CONSTANT,), LONGER),
        "none: an argument",
        needs="no run has such a normaliser",
    ),
)
PARAMETERS = (
    Claim(
        "Section 3.2",
        f"FIRE takes nearly the same number of parameters: a model has at most {100 * HARDLY_MORE:g} % more with it "
        "than with ALiBi, Kerple or T5's RPE.",
        RECORDS,
        by(parameters),
        "“up to a constant factor”, without numbers",
    ),
)
BEYOND = (
    Claim(
        "Section 3.1",
        "At eight and sixteen times the training length, too, FIRE is below every baseline: its input stays within "
        "[0, 1] at any length.",
        RECORDS,
        by(lower, "fire", BASELINES, (8, 16)),
        "nothing of these lengths",
    ),
    Claim(
        "Not in the paper",
        "Begun as Kerple-log and with a horizon, FIRE is below every baseline, Kerple-power and FIRE as published at "
        "every length from the training length to sixteen times it.",
        ("compare/encodings",),
        by(lower, OURS, (*BASELINES, "kerple_power", "fire"), TO_SIXTEEN),
        "[FIRE as we train it](log.md)",
    ),
    Claim(
        "Not in the paper",
        "In models of the paper's base shape, too, it is below ALiBi, both Kerples, T5's RPE, RoPE and FIRE as "
        "published at each of these lengths.",
        ("compare/encodings-base",),
        by(lower, OURS, ("alibi", "kerple_log", "kerple_power", "t5", "rope", "fire"), TO_SIXTEEN),
        "[FIRE as we train it](log.md)",
    ),
    Claim(
        "Not in the paper",
        "Trained at 128 tokens, too, it is below every baseline, Kerple-power and FIRE as published at each of these "
        "multiples.",
        ("compare/encodings-128",),
        by(lower, OURS_AT_128, (*BASELINES, "kerple_power", "fire"), TO_SIXTEEN),
        "[FIRE as we train it](log.md)",
    ),
)
