"""What a FIRE has learned in two numbers: c of its logarithm, and its threshold L."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from longfire.encodings import FIRE, PositionEncoding


def learned_c(encoding: PositionEncoding) -> float | None:
    """FIRE's c, which only its size matters of; None where there is none, or one per head."""
    c = getattr(encoding, "c", None) if isinstance(encoding, FIRE) else None
    return abs(float(c.detach())) if isinstance(c, Tensor) and c.numel() == 1 else None


def learned_L(encoding: PositionEncoding) -> float | None:
    """FIRE's threshold; None where there is none."""
    L = encoding.L if isinstance(encoding, FIRE) else None
    return None if L is None else float(L.detach())


def learned_by_layer(encodings: Iterable[PositionEncoding]) -> list[dict[str, Any]]:
    """Layer, c and L of each FIRE that has one of them."""
    found = ({"layer": i, "c": learned_c(one), "L": learned_L(one)} for i, one in enumerate(encodings))
    return [one for one in found if one["c"] is not None or one["L"] is not None]
