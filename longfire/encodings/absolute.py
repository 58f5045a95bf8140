"""Absolute encodings: Vaswani et al., Attention Is All You Need (NeurIPS 2017). Added to the token embeddings, once.

sinusoidal: e_i[2k] = sin(i / 10000^(2k/C)),  e_i[2k + 1] = cos(i / 10000^(2k/C))        learned: a table of vectors
"""

import torch
from torch import Tensor, nn

from longfire.encodings.base import PositionEncoding, at_least_float32
from longfire.encodings.positions import can_check_values, check_fit, check_same_device
from longfire.encodings.registry import register
from longfire.validation import at_least, positive


class Absolute(PositionEncoding):
    """What the two share: vectors of the model's width, one per position."""

    scope = "model"

    def __init__(self, width: int) -> None:
        super().__init__()
        at_least("width", width, 1)
        self.width = width

    def vectors(self, positions: Tensor) -> Tensor:
        """Positions (…, T) → vectors (…, T, C), in float32 at least."""
        raise NotImplementedError(f"{type(self).__name__} must define vectors")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        check_fit(positions, x, "B T C")
        if x.shape[-1] != self.width:
            raise ValueError(f"embeddings are {x.shape[-1]} wide, but this {type(self).__name__} is for {self.width}.")
        return (x + self.vectors(positions).to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    def extra_repr(self) -> str:
        return f"width={self.width}" + (f", max_length={self.max_length}" if self.max_length else "")


@register("sinusoidal")
class Sinusoidal(Absolute):
    """Sines and cosines of geometrically spaced wavelengths. Nothing is learned.

    Args:
        width: of the embeddings.
        scale: what the vectors are multiplied by. In their paper's model embeddings have a deviation of 1. Where they
            begin smaller, with 0.02 in most models of today, that as the scale keeps the proportion; 1 drowns them.
    """

    takes = ("width",)

    def __init__(self, width: int, *, scale: float = 1.0) -> None:
        super().__init__(width)
        positive("scale", scale)
        self.scale = scale
        if width % 2:
            raise ValueError(f"sinusoidal needs an even width (a sine and a cosine per wavelength), not {width}.")

    def vectors(self, positions: Tensor) -> Tensor:
        k = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device)
        angles = positions[..., None] * 10000.0 ** (-k / self.width)  # float64: exact far out
        return self.scale * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


@register("learned")
class Learned(Absolute):
    """A learned vector per position, up to `max_length`; there is nothing beyond."""

    takes = ("width", "max_length")
    max_length: int

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__(width)
        at_least("max_length", max_length, 1)
        self.max_length = max_length
        self.table = nn.Parameter(torch.empty(max_length, width, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def vectors(self, positions: Tensor) -> Tensor:
        check_same_device("positions are", positions, f"{type(self).__name__} is", self.table)
        if can_check_values(positions) and positions.numel() and (last := int(positions.max())) >= self.max_length:
            raise ValueError(
                f"learned positions end at {self.max_length - 1} (max_length={self.max_length}), but position {last} "
                f"was asked for. Train with a larger max_length, or take an encoding that goes on, such as 'fire'."
            )
        return self.table[positions.long()]
