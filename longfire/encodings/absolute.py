"""Absolute encodings: Vaswani et al., Attention Is All You Need (NeurIPS 2017). Added once, to the token embeddings.

sinusoidal: e_i[2k] = sin(i / 10000^(2k/C)),  e_i[2k + 1] = cos(i / 10000^(2k/C))        learned: a table of vectors
"""

import torch
from torch import Tensor, nn

from longfire.encodings.base import PositionEncoding, at_least_float32
from longfire.encodings.positions import can_check_values, check_fit, check_same_device
from longfire.encodings.registry import register
from longfire.validation import at_least, positive


class Absolute(PositionEncoding):
    """Base class: one vector per position."""

    scope = "model"
    bidirectional = True

    def __init__(self, width: int) -> None:
        super().__init__()
        at_least("width", width, 1)
        self.width = width

    def vectors(self, positions: Tensor) -> Tensor:
        """Positions (…, T) → vectors (…, T, C), in at least float32."""
        raise NotImplementedError(f"{type(self).__name__} must define vectors")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        check_fit(positions, x, "B T C")
        if x.shape[-1] != self.width:
            raise ValueError(f"x has width {x.shape[-1]}, but {type(self).__name__} has {self.width}.")
        return (x + self.vectors(positions).to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


@register("sinusoidal")
class Sinusoidal(Absolute):
    """Sines and cosines of geometrically spaced wavelengths (Vaswani et al. 2017). Nothing is learned.

    e_i[2k] = scale · sin(i / 10000^(2k/C)),  e_i[2k + 1] = scale · cos(i / 10000^(2k/C))

    Args:
        width: width C of the embeddings, even.
        scale: factor of the vectors. Use the standard deviation of the token embeddings, which is 1 in the paper and
            0.02 in most models today; a scale of 1 would drown those out.
    """

    takes = ("width",)
    shown = ("width", "scale")

    def __init__(self, width: int, *, scale: float = 1.0) -> None:
        super().__init__(width)
        positive("scale", scale)
        self.scale = scale
        if width % 2:
            raise ValueError(f"width must be even (pairs of sine and cosine), not {width}.")

    def vectors(self, positions: Tensor) -> Tensor:
        k = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device)
        angles = positions[..., None] * 10000.0 ** (-k / self.width)  # float64: accurate at any position
        return self.scale * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


@register("learned")
class Learned(Absolute):
    """A learned vector per position (as in GPT-2). Positions at or beyond `max_length` are an error.

    Args:
        width: width C of the embeddings.
        max_length: the number of positions.
    """

    takes = shown = ("width", "max_length")
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
                f"learned positions end at {self.max_length - 1} (max_length={self.max_length}), but a token is at "
                f"{last}. Train with a larger max_length, or use an encoding that extrapolates, such as 'fire'."
            )
        return self.table[positions.long()]
