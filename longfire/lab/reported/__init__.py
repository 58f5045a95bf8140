"""The paper's numbers (Li et al. 2024, arXiv:2310.04418), one CSV file per table.

    perplexity    log perplexity by length on C4, base models trained at 2048; likewise sharing (FIRE-S) and the
                  ablations transform, transform_baselines, depth, activation and final_activation
    scrolls       base and large; FIRE-S from the table on sharing
    narrative_qa  F1 by context length, base
    glue          GLUE and SuperGLUE, base and large; averages only where the text states them

Numbers that the paper does not report are empty.
"""

import csv
from importlib.resources import files
from typing import Any

from longfire.validation import one_of

LENGTHS = ("perplexity", "sharing", "transform", "transform_baselines", "depth", "activation", "final_activation")
TABLES = (*LENGTHS, "scrolls", "narrative_qa", "glue")


def reported(name: str) -> list[dict[str, Any]]:
    """The rows of a table: `size`, `encoding`, `label`, then numbers by column; None if the paper has none."""
    one_of("the table", name, TABLES)
    text = files(__package__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    words = ("size", "encoding", "label")
    return [
        {key: value if key in words else float(value) if value else None for key, value in row.items()}
        for row in csv.DictReader(text.splitlines())
    ]
