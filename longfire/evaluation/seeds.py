"""Rows of a downstream record that differ only in their seed."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
COMPARED = (
    *("encoding", "options", "start", "horizon", "parameters", "trained_length", "extended_to", "tokens_seen"),
    *("corpus", "finetuned_length", "finetuned_on"),
)


def are_seeds(rows: Sequence[Row]) -> bool:
    """Whether rows differ only in their pretraining seeds, all distinct. Such rows share a label."""
    seeds = [row.get("seed") for row in rows]
    same = all(_without_seed(row) == _without_seed(rows[0]) for row in rows)
    return None not in seeds and len(set(seeds)) == len(seeds) and same


def with_seed(row: Row) -> str:
    """Label and seed: `FIRE, seed 1`."""
    return f"{row['label']}, seed {row['seed']}"


def _without_seed(row: Row) -> dict[str, Any]:
    """What the row's checkpoint is, and how it was fine-tuned before."""
    finetuned = {name: value for name, value in (row.get("finetuned") or {}).items() if name != "seed"}
    return {**{name: row.get(name) for name in COMPARED}, "finetuned": finetuned}
