"""NoPE: no position encoding (Haviv et al. 2022; Kazemnejad et al. 2023). The causal mask tells positions apart."""

from longfire.encodings.base import PositionEncoding
from longfire.encodings.registry import register


@register("nope")
class NoPE(PositionEncoding):
    """Does nothing."""
