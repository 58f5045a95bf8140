"""A bias made once and used by many layers: FIRE-S, where all layers share one encoding."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, check_pair
from longfire.operators import HAS_TRITON

if TYPE_CHECKING:
    from longfire.engines.fused.bias import FusedBias
    from longfire.engines.fused.row import RowBias


@dataclass(frozen=True, repr=False, eq=False)
class PreparedBias:
    """An encoding's bias at given positions. Gradients from every use add up."""

    encoding: PositionEncoding
    q_positions: Tensor  # (T,) or (B, T)
    k_positions: Tensor  # (S,) or (B, S)
    in_order: bool = False
    """Keys are 0…S−1 and queries the last T of them, by promise: nobody looks at the positions."""
    padding: Tensor | None = None
    """(B,): positions are in order, by promise, after so many keys of each sequence."""
    tensor: Tensor | None = None
    """(H, T, S) or (B, H, T, S), where it was made as a dense tensor."""
    fused: "FusedBias | None" = None
    """As the fused engine takes it, where it was made for that."""
    row: "RowBias | None" = None
    """As the fused engine takes that of a single query, where it was made for that."""

    def __repr__(self) -> str:
        form = "fused" if self.fused or self.row else None if self.tensor is None else tuple(self.tensor.shape)
        return f"PreparedBias({form}: {self.q_positions.shape[-1]} queries, {self.k_positions.shape[-1]} keys)"

    def dense(self) -> Tensor | None:
        """As a dense tensor, made now if it was not."""
        return self.encoding.bias(self.q_positions, self.k_positions) if self.tensor is None else self.tensor

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


def prepare_bias(
    encoding: PositionEncoding,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    in_order: bool = False,
    padding: Tensor | None = None,
    like: Tensor | None = None,
) -> PreparedBias:
    """The encoding's bias at these positions, for `longfire.attention` in as many layers as share it.

    On a GPU, as the fused engine takes it if that can serve the encoding; as a dense tensor otherwise.

    Args:
        encoding: whose bias.
        q_positions: (T,) or (B, T).
        k_positions: (S,) or (B, S).
        in_order: you promise that keys are 0…S−1 and queries the last T of them. Then nobody has to look at the
            positions, which in a compiled graph nobody can.
        padding: (B,) whole numbers, part of the promise: so many keys of each sequence are padding before its first
            one, which has position 0 as they do, and `key_mask` hides them.
        like: a tensor of the precision and head size (its last dimension) that q will have, if it is scaled as usual:
            what the fused engine reads is then made now. Otherwise it is made for the first layer that asks, or, where
            each layer is compiled by itself, by all of them.
    """
    if not isinstance(encoding, PositionEncoding):
        raise TypeError(f"prepare_bias takes a PositionEncoding, not {type(encoding).__name__}.")
    check_pair(q_positions, k_positions)
    if padding is not None and not in_order:
        raise ValueError("padding is part of the promise that positions are in order: give in_order=True with it.")
    in_order = in_order and padding is None
    from longfire.engines.fused.bias import fused_bias, refuses

    T, S = q_positions.shape[-1], k_positions.shape[-1]
    decodes = T == 1 and not torch.is_grad_enabled()  # a row, which the fused engine takes as it is
    if HAS_TRITON and q_positions.is_cuda and encoding.has_bias and not decodes and refuses(encoding, S) is None:
        fused = fused_bias(encoding, S, S - T if in_order else 0, q_positions.device)
        if like is not None:
            fused.expand(like)
        return PreparedBias(encoding, q_positions, k_positions, in_order, padding, fused=fused)
    if decodes and like is not None and HAS_TRITON and q_positions.is_cuda:
        from longfire.engines.fused.bias import computed_in
        from longfire.engines.fused.row import nodes_of, row_bias

        nodes = nodes_of(encoding)
        if nodes is not None and nodes < S and computed_in(like) != torch.float32:
            row = row_bias(encoding, q_positions)
            return PreparedBias(encoding, q_positions, k_positions, in_order, padding, row=row)
    bias = encoding.bias(q_positions, k_positions)
    return PreparedBias(encoding, q_positions, k_positions, in_order, padding, tensor=bias)
