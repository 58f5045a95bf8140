"""NoPE: no position encoding (Haviv et al. 2022; Kazemnejad et al., NeurIPS 2023)."""

from longfire.encodings.base import PositionEncoding
from longfire.encodings.registry import register


@register("nope")
class NoPE(PositionEncoding):
    """No position encoding: positions are only implied by the causal mask."""

    symmetric = True
