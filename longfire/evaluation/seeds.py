"""Which rows of a record of tasks are seeds: of checkpoints that differ in nothing else that it says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
ALIKE = (
    *("encoding", "options", "start", "horizon", "parameters", "trained_length", "extended_to", "tokens_seen"),
    *("corpus", "finetuned_length", "finetuned_on"),
)


def alike(one: Row, other: Row) -> bool:
    """Whether two are the same, but for seeds."""
    return all(one.get(name) == other.get(name) for name in ALIKE) and _tuning(one) == _tuning(other)


def are_seeds(rows: Sequence[Row]) -> bool:
    """Whether rows are alike, and the seeds of their pretraining tell them apart: then they share a label."""
    seeds = [row.get("seed") for row in rows]
    return None not in seeds and len(set(seeds)) == len(seeds) and all(alike(row, rows[0]) for row in rows)


def with_seed(row: Row) -> str:
    """The label of one of several that share it: `FIRE, seed 1`."""
    return f"{row['label']}, seed {row['seed']}"


def _tuning(row: Row) -> dict[str, Any]:
    """How it was fine-tuned before, but for the seed."""
    return {name: value for name, value in (row.get("finetuned") or {}).items() if name != "seed"}
