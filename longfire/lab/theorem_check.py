"""Theorem 3.1 in numbers: the error of FIRE as ALiBi, Kerple, T5 and Sandwich."""

from typing import Any

import torch

from longfire.encodings import ENCODINGS, build_encoding
from longfire.provenance import provenance
from longfire.theorem import as_fire

NAMES = ("alibi", "kerple_log", "kerple_power", "t5", "sandwich")
HEADS, HEAD_DIM = 12, 64


@torch.no_grad()
def check_theorem(max_length: int) -> dict[str, Any]:
    """The maximum error over all pairs of positions below `max_length`, relative to the largest bias, in float64."""
    rows = []
    positions = torch.arange(max_length)
    for name in NAMES:
        torch.manual_seed(0)
        options = ENCODINGS[name].example
        encoding = build_encoding(name, num_heads=HEADS, head_dim=HEAD_DIM, **options).double()
        for parameter in encoding.parameters():
            parameter.add_(torch.rand_like(parameter))  # as if trained
        fire = as_fire(encoding, max_length)
        worst = largest = 0.0
        for block in positions.split(256):
            causal = positions <= block[:, None]
            expected, actual = encoding(block, positions), fire(block, positions)
            assert expected is not None
            assert actual is not None
            worst = max(worst, float(((expected - actual).abs() * causal).max()))
            largest = max(largest, float((expected.abs() * causal).max()))
        rows.append({"encoding": name, "max_length": max_length, "largest": largest, "error": worst / (largest or 1.0)})
    return {"provenance": provenance(), "setting": {"dtype": "float64", "max_length": max_length}, "rows": rows}
