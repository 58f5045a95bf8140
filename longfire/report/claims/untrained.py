"""Theorem 3.1, and the figure of inference time: what is not trained, and so needs no seeds.

The theorem is an equality: it holds where the error is that of rounding. A time is less than another where the
slowest of its calls is faster than the fastest of the other's.
"""

from collections.abc import Sequence
from typing import Any

from longfire.bench.benchmark import FIRE_S, FORWARD
from longfire.report.claims.claim import FAILS, HOLDS, OPEN, UNMEASURED, Claim, Step, by
from longfire.report.claims.names import written
from longfire.report.speed import best_rows
from longfire.report.summary import Record

ROUNDING = 1e-9
"""In float64, relative to the largest bias."""
OVERLAP = "the times overlap"
PICTURE = "a picture, without numbers: the base model's forward, 2,048 tokens, 4 TPUv2 chips, mean of 10 runs"
SPEEDS = ("bench/h200-model", "reproduce/speed")


def equal(record: Record) -> list[Step]:
    """Whether FIRE's error is no more than rounding, for each encoding."""
    verdicts = ((row, HOLDS if row["error"] <= ROUNDING else FAILS) for row in record["rows"])
    return [
        Step(
            written(row["encoding"]),
            f"error {row['error']:.0g} of the largest bias, to {row['max_length']:,} tokens",
            verdict,
        )
        for row, verdict in verdicts
    ]


def faster(record: Record, one: str, others: Sequence[str]) -> list[Step]:
    """Whether a forward pass takes less time with one encoding than with each of the others, on the fastest engine."""
    rows = {row["encoding"]: row for row in best_rows(record) if row["kind"] == FORWARD and row["n"] == 2048}
    if one not in rows or not any(other in rows for other in others):
        return []
    own, steps = rows[one], []
    for other in others:
        if (row := rows.get(other)) is None:
            steps.append(Step(written(other), "not measured", OPEN, why=(UNMEASURED,)))
            continue
        verdict = HOLDS if own["slowest"] < row["fastest"] else FAILS if row["slowest"] < own["fastest"] else OPEN
        why = (OVERLAP,) if verdict == OPEN else ()
        steps.append(Step(written(other), f"{_time(row)}; {written(one)} {_time(own)}", verdict, why=why))
    return steps


def _time(row: dict[str, Any]) -> str:
    on = f", {row['engine']}" if row.get("engine") else ""
    return f"{row['ms']:.2f} ms ({row['fastest']:.2f} to {row['slowest']:.2f}{on})"


THEOREM = (
    Claim(
        "Theorem 3.1",
        "FIRE can be each of ALiBi, Kerple (both kinds), T5's RPE and Sandwich, exactly, up to any given length.",
        ("reproduce/theorem",),
        by(equal),
        "a proof",
    ),
)
SPEED = (
    Claim("Figure 5", "FIRE is faster than T5's RPE.", SPEEDS, by(faster, "fire", ("t5",)), PICTURE),
    Claim("Figure 5", "FIRE-S is faster than FIRE.", SPEEDS, by(faster, FIRE_S, ("fire",)), PICTURE),
    Claim(
        "Figure 5",
        "FIRE-S is faster than all baselines but NoPE.",
        SPEEDS,
        by(faster, FIRE_S, ("rope", "alibi", "kerple_log", "t5")),
        PICTURE,
    ),
    Claim("Figure 5", "NoPE is faster than FIRE-S.", SPEEDS, by(faster, "nope", (FIRE_S,)), PICTURE),
)
