"""Rows of a downstream record that differ only in their seed."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
COMPARED = (
    *("encoding", "options", "start", "horizon", "parameters", "trained_length", "extended_to", "tokens_seen"),
    *("corpus", "finetuned_length", "finetuned_on"),
)


def alike(one: Row, other: Row) -> bool:
    """Whether two rows agree in everything but the seed."""
    return all(one.get(name) == other.get(name) for name in COMPARED) and _finetuning(one) == _finetuning(other)


def are_seeds(rows: Sequence[Row]) -> bool:
    """Whether rows differ only in their pretraining seeds, all distinct. Such rows share a label."""
    seeds = [row.get("seed") for row in rows]
    return None not in seeds and len(set(seeds)) == len(seeds) and all(alike(row, rows[0]) for row in rows)


def with_seed(row: Row) -> str:
    """Label and seed: `FIRE, seed 1`."""
    return f"{row['label']}, seed {row['seed']}"


def _finetuning(row: Row) -> dict[str, Any]:
    """How the checkpoint was fine-tuned before, without the seed."""
    return {name: value for name, value in (row.get("finetuned") or {}).items() if name != "seed"}
