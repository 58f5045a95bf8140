"""Which checkpoints are the same but for the seed of pretraining: those share a label."""

from collections.abc import Mapping, Sequence
from typing import Any

ALIKE = (
    *("encoding", "options", "start", "parameters", "trained_length", "extended_to", "tokens_seen", "corpus"),
    *("finetuned_length", "finetuned_on", "finetuned"),
)


def are_seeds(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether their seeds tell rows of a record apart, and nothing else does that it says of checkpoints."""
    seeds = [row.get("seed") for row in rows]
    about = [[row.get(name) for name in ALIKE] for row in rows]
    return None not in seeds and len(set(seeds)) == len(seeds) and all(one == about[0] for one in about)
