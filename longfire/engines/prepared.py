"""A bias made once and used by many layers: FIRE-S, where all layers share one encoding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longfire.custom_ops import HAS_TRITON
from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, check_pair, has_values, is_transformed

if TYPE_CHECKING:
    from longfire.engines.fused.bias import FusedBias


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
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
    drawn: bool = False
    """The tensor is of single queries, with lines between its nodes, and −inf at keys after them."""
    key_mask: Tensor | None = None
    """(B, S): the tensor is −inf at keys that it hides."""

    def __repr__(self) -> str:
        form = "fused" if self.fused or self.drawn else None if self.tensor is None else tuple(self.tensor.shape)
        return f"PreparedBias({form}: {self.q_positions.shape[-1]} queries, {self.k_positions.shape[-1]} keys)"

    def dense(self) -> Tensor | None:
        """As a dense tensor, made now if it was not."""
        return self.encoding(self.q_positions, self.k_positions) if self.tensor is None else self.tensor

    def check_same(self, q_positions: Tensor | None, k_positions: Tensor | None, key_mask: Tensor | None) -> None:
        """Refuse other positions and another mask than those it was made for."""
        for name, given, own in (("q", q_positions, self.q_positions), ("k", k_positions, self.k_positions)):
            if not _same(given, own):
                raise ValueError(
                    f"the bias was prepared for other {name}_positions than these. Leave positions out (the prepared "
                    f"ones are used), or prepare a bias for these."
                )
        if self.key_mask is not None and not _same(key_mask, self.key_mask):
            raise ValueError("the bias was prepared for another key_mask than this. Prepare one for this, or for none.")


def _same(given: Tensor | None, own: Tensor) -> bool:
    """Not given is the same; what cannot be looked at is, if it has the same shape."""
    if given is None or given is own:
        return True
    if given.shape != own.shape or given.device != own.device:
        return False
    unseen = any(is_transformed(tensor) or not has_values(tensor) for tensor in (given, own))
    return unseen or bool(torch.equal(given, own))


def prepare_bias(
    encoding: PositionEncoding,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    in_order: bool = False,
    padding: Tensor | None = None,
    key_mask: Tensor | None = None,
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
        key_mask: what attention will be given as such, with `like`: it need not look at it again then.
        like: a tensor of the precision and head size (its last dimension) that q will have, if it is scaled as usual:
            what the fused engine reads is then made now. Otherwise it is made for the first layer that asks, or, where
            each layer is compiled by itself, by all of them.
    """
    if not isinstance(encoding, PositionEncoding):
        raise TypeError(f"prepare_bias takes a PositionEncoding, not {type(encoding).__name__}.")
    encoding.refuse_without_bias()
    check_pair(q_positions, k_positions)
    if padding is not None and not in_order:
        raise ValueError("padding is part of the promise that positions are in order: give in_order=True with it.")
    if in_order:
        _check_promise(q_positions, k_positions, padding)
    in_order = in_order and padding is None
    from longfire.engines.fused.bias import fused_bias, refuses

    made_for: dict[str, Any] = {"encoding": encoding, "q_positions": q_positions, "k_positions": k_positions}
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    decodes = T == 1 and not torch.is_grad_enabled()  # a row, which the fused engine takes as it is
    if HAS_TRITON and q_positions.is_cuda and encoding.has_bias and not decodes and refuses(encoding, S) is None:
        fused = fused_bias(encoding, S, S - T if in_order else 0, q_positions.device)
        if like is not None:
            fused.expand(like)
        return PreparedBias(**made_for, in_order=in_order, padding=padding, fused=fused)
    rows = prepare_rows([encoding], q_positions, k_positions, key_mask, like)
    if rows is not None:
        return rows[0]
    bias = encoding(q_positions, k_positions)
    return PreparedBias(**made_for, in_order=in_order, padding=padding, tensor=bias)


def _check_promise(q_positions: Tensor, k_positions: Tensor, padding: Tensor | None) -> None:
    """On a CPU, that positions are in order as promised: keys 0…S−1 after padding at 0, queries the last T of them."""
    tensors = (q_positions, k_positions, *(() if padding is None else (padding,)))
    if not all(map(can_check_values, tensors)):
        return
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    keys = torch.arange(S) if padding is None else (torch.arange(S) - padding[:, None]).clamp(min=0)
    for name, given, promised in (("k", k_positions, keys), ("q", q_positions, keys[..., max(S - T, 0) :])):
        if given.shape[-1] != promised.shape[-1] or not bool((given == promised).all()):
            raise ValueError(
                f"in_order promises keys at 0…{S - 1}, after any padding, and queries at the last {T} of them, and "
                f"{name}_positions are others. Leave in_order out."
            )


def prepare_rows(
    encodings: Sequence[PositionEncoding],
    q_positions: Tensor,
    k_positions: Tensor,
    key_mask: Tensor | None,
    like: Tensor | None,
) -> list[PreparedBias] | None:
    """The biases of single queries, as in cached decoding, for the layers' encodings at once.

    None where that is no gain: on a CPU, in float32, for few keys or many queries. Arguments are `prepare_bias`'s.
    """
    from longfire.engines.fused.bias import computed_in
    from longfire.engines.fused.decode_bias import nodes_of, row_biases

    one = q_positions.shape[-1] == 1 and not torch.is_grad_enabled()
    if not (one and HAS_TRITON and q_positions.is_cuda) or like is None or computed_in(like) == torch.float32:
        return None
    if any((nodes_of(encoding) or math.inf) >= k_positions.shape[-1] for encoding in encodings):
        return None
    rows = row_biases(encodings, q_positions, k_positions, key_mask)
    return [
        PreparedBias(
            encoding=encoding,
            q_positions=q_positions,
            k_positions=k_positions,
            tensor=row[:, :, None],
            drawn=True,
            key_mask=key_mask,
        )
        for encoding, row in zip(encodings, rows, strict=True)
    ]
