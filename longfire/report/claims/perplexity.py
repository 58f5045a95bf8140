"""Sections 4.1 and B.5: language modelling beyond the training length."""

from dataclasses import replace

from longfire.report.claims.claim import Claim, Finding, Quote, Step, by, found
from longfire.report.claims.lengths import (
    BASELINES,
    LONGER,
    PAPERS_RANGE,
    SHORT,
    lead_grows,
    lower,
    on_other_texts,
    rises,
    stays,
)
from longfire.report.summary import Record

RECORDS = ("reproduce/perplexity-base", "compare/encodings", "compare/books-small")
STEADY = 0.01
"""A rise of log perplexity that is none. The paper's FIRE rises by 0.002."""
STEEP = 0.1
"""A rise by more is a loss of grip. The paper's RoPE rises by 0.3 at twice the training length."""


def other_texts(record: Record) -> list[Step]:
    """FIRE below each baseline on every other text."""
    return [
        replace(step, at=f"{name}, {step.at}")
        for name, one in on_other_texts(record)
        for step in lower(one, "fire", BASELINES, PAPERS_RANGE)
    ]


def trained_at_512(record: Record) -> Finding | None:
    """The same, where models were trained at 512 tokens, as the small ones are, too."""
    return found(lower(record, "fire", BASELINES, PAPERS_RANGE)) if record["setting"]["trained_length"] == 512 else None


def of_large_models(record: Record) -> Finding | None:
    """The same, where the models are the paper's large ones."""
    size = (record["setting"].get("recipe") or {}).get("size")
    return found(lower(record, "fire", BASELINES, PAPERS_RANGE)) if size == "large" else None


CLAIMS = (
    Claim(
        "Figure 1",
        "Up to the training length FIRE's perplexity is below every baseline's.",
        RECORDS,
        by(lower, "fire", BASELINES, SHORT),
        Quote("perplexity", ("fire", "rope", "t5"), ("512", "1024", "2048")),
    ),
    Claim(
        "Figure 1",
        "At two and four times the training length FIRE's perplexity is below every baseline's.",
        RECORDS,
        by(lower, "fire", BASELINES, LONGER),
        Quote("perplexity", ("fire", "kerple_log", "t5"), ("4096", "8192")),
    ),
    Claim(
        "Figure 7",
        "On texts of other kinds than the training text it is below every baseline's, too.",
        RECORDS,
        by(other_texts),
    ),
    Claim(
        "Section 4.1",
        "FIRE's lead over the best baseline is larger at four times the training length than at it.",
        RECORDS,
        by(lead_grows, "fire", BASELINES, 4),
        Quote("perplexity", ("fire", "kerple_log", "t5"), ("2048", "8192")),
    ),
    Claim(
        "Section 2, Figure 1",
        f"Up to four times the training length FIRE loses nothing (no more than {STEADY}).",
        RECORDS,
        by(stays, "fire", LONGER, STEADY),
        Quote("perplexity", ("fire",)),
    ),
    Claim(
        "Section 3.1",
        "Since its input stays within [0, 1], FIRE is below every baseline at any length: here at eight and sixteen "
        "times the training length, beyond the paper's own test.",
        RECORDS,
        by(lower, "fire", BASELINES, (8, 16)),
        "none at these lengths",
    ),
    Claim(
        "Section 4.1",
        "Up to the training length RoPE is strong: below NoPE, ALiBi and Kerple.",
        RECORDS,
        by(lower, "rope", ("nope", "alibi", "kerple_log"), SHORT),
        Quote("perplexity", ("nope", "rope", "alibi", "kerple_log"), ("512", "1024", "2048")),
    ),
    Claim(
        "Section 4.1",
        f"RoPE loses its grip soon: more than {STEEP} worse at two and four times the training length than at it.",
        RECORDS,
        by(rises, "rope", LONGER, STEEP),
        Quote("perplexity", ("rope",)),
    ),
    Claim(
        "Figure 1",
        f"NoPE loses its grip soon (more than {STEEP} worse at two and four times the training length).",
        RECORDS,
        by(rises, "nope", LONGER, STEEP),
        Quote("perplexity", ("nope",)),
    ),
    Claim(
        "Figure 1",
        f"ALiBi loses its grip soon (more than {STEEP} worse at two and four times the training length).",
        RECORDS,
        by(rises, "alibi", LONGER, STEEP),
        Quote("perplexity", ("alibi",)),
    ),
    Claim(
        "Figure 1",
        f"Up to four times the training length Kerple loses nothing (no more than {STEADY}).",
        RECORDS,
        by(stays, "kerple_log", LONGER, STEADY),
        Quote("perplexity", ("kerple_log",)),
    ),
    Claim(
        "Section 4.1",
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
        "Figure 6",
        "Trained at 512 tokens, FIRE is below every baseline at all lengths up to four times that.",
        ("reproduce/perplexity-512", *RECORDS),
        trained_at_512,
    ),
    Claim(
        "Figure 2",
        "Large models (350M) with FIRE are below those with every baseline up to four times the training length.",
        ("reproduce/perplexity-large",),
        of_large_models,
    ),
)
