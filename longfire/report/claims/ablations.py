"""Appendix B, and section 4.6 on sharing: what FIRE's parts do."""

from longfire.report.claims.claim import Claim, by
from longfire.report.claims.lengths import (
    BASELINES,
    LONGER,
    PAPERS_RANGE,
    SHORT,
    alike,
    lead_grows,
    lower,
)
from longfire.report.claims.names import FINAL, FIXED, GELU, LINEAR, NO_THRESHOLD, ONE_LAYER, PLAIN
from longfire.report.claims.quote import Quote

SHARED_COSTS = 0.1
"""What FIRE-S may cost. In the paper it is 0.07 at most."""
SAME = 0.01


CLAIMS = (
    Claim(
        "Table 3",
        "The logarithm lowers perplexity at all lengths (both without a threshold).",
        ("reproduce/ablation-transform",),
        by(lower, NO_THRESHOLD, (PLAIN,), PAPERS_RANGE),
        Quote("transform", (PLAIN, NO_THRESHOLD)),
    ),
    Claim(
        "Table 3",
        "The logarithm helps most on long sequences: at four times the training length, and by more than at it.",
        ("reproduce/ablation-transform",),
        by(lead_grows, NO_THRESHOLD, (PLAIN,), 4),
        Quote("transform", (PLAIN, NO_THRESHOLD), ("2048", "8192")),
    ),
    Claim(
        "Table 3",
        "The threshold lowers perplexity at all lengths.",
        ("reproduce/ablation-transform", "reproduce/ablation-baselines"),
        by(lower, "fire", (NO_THRESHOLD,), PAPERS_RANGE),
        Quote("transform", (NO_THRESHOLD, "fire")),
    ),
    Claim(
        "Table 4",
        "Even without a threshold FIRE is below every baseline at all lengths.",
        ("reproduce/ablation-baselines",),
        by(lower, NO_THRESHOLD, BASELINES, PAPERS_RANGE),
        Quote("transform_baselines", ("kerple_log", "t5", NO_THRESHOLD)),
    ),
    Claim(
        "Appendix B.1",
        "A learned threshold is better than a fixed one.",
        ("reproduce/ablation-transform", "compare/threshold"),
        by(lower, "fire", (FIXED,), PAPERS_RANGE),
        "none",
    ),
    Claim(
        "Appendix B.1",
        "With a fixed threshold, too, FIRE is below every baseline at all lengths.",
        ("compare/threshold + compare/encodings", "compare/threshold"),
        by(lower, FIXED, BASELINES, PAPERS_RANGE),
        "none",
    ),
    Claim(
        "Table 5",
        "A linear map in place of the MLP is worse than one hidden layer at all lengths.",
        ("reproduce/ablation-depth",),
        by(lower, ONE_LAYER, (LINEAR,), PAPERS_RANGE),
        Quote("depth", (LINEAR, ONE_LAYER)),
    ),
    Claim(
        "Table 5",
        "The hidden layer helps most on long sequences: at four times the training length, and by more than at it.",
        ("reproduce/ablation-depth",),
        by(lead_grows, ONE_LAYER, (LINEAR,), 4),
        Quote("depth", (LINEAR, ONE_LAYER), ("2048", "8192")),
    ),
    Claim(
        "Table 5",
        "Two hidden layers are better than one at all lengths.",
        ("reproduce/ablation-depth",),
        by(lower, "fire", (ONE_LAYER,), PAPERS_RANGE),
        Quote("depth", (ONE_LAYER, "fire")),
    ),
    Claim(
        "Table 6",
        "ReLU is better than GELU up to the training length.",
        ("reproduce/ablation-activation",),
        by(lower, "fire", (GELU,), SHORT),
        Quote("activation", ("fire", GELU), ("512", "1024", "2048")),
    ),
    Claim(
        "Table 6",
        f"Beyond the training length ReLU and GELU are alike (within {SAME}).",
        ("reproduce/ablation-activation",),
        by(alike, "fire", GELU, LONGER, SAME),
        Quote("activation", ("fire", GELU), ("4096", "8192")),
    ),
    Claim(
        "Table 7",
        "An activation at the MLP's end does harm beyond the training length.",
        ("reproduce/ablation-final",),
        by(lower, ONE_LAYER, (FINAL,), LONGER),
        Quote("final_activation", (FINAL, ONE_LAYER), ("4096", "8192")),
    ),
    Claim(
        "Table 2",
        f"One encoding for all layers (FIRE-S) costs little: less than {SHARED_COSTS}.",
        ("reproduce/sharing", "compare/encodings"),
        by(lower, "fire-s", ("fire",), PAPERS_RANGE, SHARED_COSTS),
        Quote("sharing", ("fire", "fire-s")),
    ),
    Claim(
        "Section 4.6, Tables 2 and 4",
        "FIRE-S is still below every baseline at four times the training length.",
        ("reproduce/perplexity-base", "compare/encodings"),
        by(lower, "fire-s", BASELINES, (4,)),
        (Quote("sharing", ("fire-s",), ("8192",)), Quote("perplexity", ("kerple_log",), ("8192",))),
    ),
)
