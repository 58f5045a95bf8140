"""Learned biases in numbers: FIRE's c and threshold L, and how far each head looks back."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from longfire.encodings import FIRE, PositionEncoding

LOCAL, ANTI_LOCAL = 0.8, 1.2
"""Heads with a look-back below the first are local, above the second anti-local."""


def learned_c(encoding: PositionEncoding) -> float | None:
    """FIRE's |c|; None without a c or with one per head."""
    c = getattr(encoding, "c", None) if isinstance(encoding, FIRE) else None
    return abs(float(c.detach())) if isinstance(c, Tensor) and c.numel() == 1 else None


def learned_L(encoding: PositionEncoding) -> float | None:
    """FIRE's threshold; None without one."""
    L = encoding.L if isinstance(encoding, FIRE) else None
    return None if L is None else float(L.detach())


def learned_by_layer(encodings: Iterable[PositionEncoding], query: int) -> list[dict[str, Any]]:
    """For each FIRE: layer, c, L and the heads' look-back from a query (counted from 1)."""
    return [
        {
            "layer": layer,
            "c": learned_c(encoding),
            "L": learned_L(encoding),
            "look_back": [round(head, 4) for head in look_back(encoding, query).tolist()],
        }
        for layer, encoding in enumerate(encodings)
        if isinstance(encoding, FIRE)
    ]


@torch.no_grad()
def bias_of(encoding: PositionEncoding, query: int, distances: Iterable[int]) -> Tensor:
    """The bias of each head (H, distances) for a query (counted from 1), on the CPU."""
    device = next((one.device for one in (*encoding.parameters(), *encoding.buffers())), None)
    keys = torch.tensor([query - 1 - distance for distance in distances], device=device)
    bias = encoding(torch.tensor([query - 1], device=device), keys)
    assert bias is not None
    return bias[:, 0].cpu()


def look_back(encoding: PositionEncoding, query: int) -> Tensor:
    """How far back each head looks if all keys up to the query are equal, (H,): 1 is a head without a bias.

    The mean distance under the softmax of the bias, relative to uniform attention.
    """
    distances = torch.arange(query)
    weights = bias_of(encoding, query, distances.tolist()).double().softmax(-1)
    return weights @ distances.double() / max((query - 1) / 2, 1e-9) if query > 1 else torch.ones(len(weights))
