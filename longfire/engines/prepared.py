"""A bias made once and used by many layers: FIRE-S, where all layers share one encoding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, check_pair


@dataclass(frozen=True, repr=False, eq=False)
class PreparedBias:
    """An encoding's bias at given positions. Gradients from every use add up."""

    tensor: Tensor | None  # (H, T, S), (B, H, T, S), or None for encodings without a bias
    q_positions: Tensor  # (T,) or (B, T)
    k_positions: Tensor  # (S,) or (B, S)

    def __repr__(self) -> str:
        shape = None if self.tensor is None else tuple(self.tensor.shape)
        return f"PreparedBias({shape}: {self.q_positions.shape[-1]} queries, {self.k_positions.shape[-1]} keys)"

    def check_same(self, q_positions: Tensor | None, k_positions: Tensor | None) -> None:
        """Refuse other positions than those it was made for."""
        for name, given, own in (("q", q_positions, self.q_positions), ("k", k_positions, self.k_positions)):
            if given is None or given is own:
                continue
            same = given.shape == own.shape
            if same and can_check_values(given) and can_check_values(own):
                same = bool(torch.equal(given, own))
            if not same:
                raise ValueError(
                    f"the bias was prepared for other {name}_positions than these. Leave positions out (the prepared "
                    f"ones are used), or prepare a bias for these."
                )


def prepare_bias(encoding: PositionEncoding, q_positions: Tensor, k_positions: Tensor) -> PreparedBias:
    """The encoding's bias at these positions, for `longfire.attention` in as many layers as share it."""
    if not isinstance(encoding, PositionEncoding):
        raise TypeError(f"prepare_bias takes a PositionEncoding, not {type(encoding).__name__}.")
    check_pair(q_positions, k_positions)
    return PreparedBias(encoding.bias(q_positions, k_positions), q_positions, k_positions)
