"""Figures 4 and 8, and appendix B.1: what FIRE has learned."""

from collections.abc import Callable, Sequence
from typing import Any

from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.claims.claim import DISAGREE, FAILS, HOLDS, OPEN, UNMEASURED, Claim, Finding, not_testable
from longfire.report.claims.lengths import line_of
from longfire.report.significance import ENOUGH
from longfire.report.summary import Record, seeds_of

RECORDS = ("reproduce/biases", "reproduce/perplexity-base", "compare/encodings")
L_RANGE = (1200 / 2048, 1600 / 2048)
"""Of the training length: where the paper's learned L end."""

Layers = Sequence[dict[str, Any]]
"""As `longfire.evaluation.learned.learned_by_layer` has them."""


def of_every_seed(record: Record, is_so: Callable[[Layers], bool], text: Callable[[Layers], str]) -> Finding | None:
    """Whether something is so of FIRE's model with every seed, of three or more; it is not, if of none."""
    line = line_of(record, "fire")
    runs = {run["seed"]: run["learned"] for run in (line.runs if line else []) if run.get("learned")}
    if not runs:
        return None
    outcomes = {is_so(layers) for layers in runs.values()}
    verdict, why = OPEN, ""
    if len(runs) < len(seeds_of(record)):
        why = UNMEASURED
    elif len(runs) < ENOUGH:
        why = not_testable(len(runs))
    elif len(outcomes) > 1:
        why = DISAGREE
    else:
        verdict = HOLDS if outcomes == {True} else FAILS
    numbers = tuple(f"seed {seed}: {text(layers)}" for seed, layers in sorted(runs.items()))
    return Finding(verdict, numbers, why=why)


def both_patterns(record: Record) -> Finding | None:
    """Heads that look near and heads that look far, at the last query of the training length."""

    def heads(layers: Layers) -> list[float]:
        return [look for layer in layers for look in layer["look_back"]]

    def is_so(layers: Layers) -> bool:
        return min(heads(layers)) < LOCAL and max(heads(layers)) > ANTI_LOCAL

    def text(layers: Layers) -> str:
        looks = heads(layers)
        near, far = sum(look < LOCAL for look in looks), sum(look > ANTI_LOCAL for look in looks)
        return f"of {len(looks)} heads {near} look near and {far} far, the farthest {max(looks):.2f} times an even head"

    return of_every_seed(record, is_so, text)


def thresholds(record: Record) -> Finding | None:
    """L of every layer where the paper's are."""
    trained = record["setting"]["trained_length"]
    low, high = (share * trained for share in L_RANGE)

    def is_so(layers: Layers) -> bool:
        return all(layer["L"] is not None and low <= layer["L"] <= high for layer in layers)

    def text(layers: Layers) -> str:
        found = ", ".join(f"{layer['L']:.0f}" for layer in layers if layer["L"] is not None)
        return f"L by layer {found} of {trained:,}"

    return of_every_seed(record, is_so, text)


CLAIMS = (
    Claim(
        "Figures 4 and 8",
        f"FIRE learns heads that look near (less than {LOCAL} times as far as a head without a bias would) and others "
        f"that look far (more than {ANTI_LOCAL} times).",
        RECORDS,
        both_patterns,
    ),
    Claim(
        "Appendix B.1",
        "The learned thresholds L of all layers end between {:.2f} and {:.2f} of the training length.".format(*L_RANGE),
        RECORDS,
        thresholds,
        "1,200 to 1,600 of 2,048",
    ),
)
