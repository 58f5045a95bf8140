"""A bias made once and used by many layers: FIRE-S, where all layers share one encoding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longfire.custom_ops import HAS_TRITON
from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, check_pair, has_values, is_transformed
from longfire.engines.fused.bias import SampledBias, compute_dtype, refuses, sample_bias
from longfire.engines.fused.zones import decode_nodes


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class PreparedBias:
    """An encoding's bias at given positions. Gradients from every use add up."""

    encoding: PositionEncoding
    q_positions: Tensor  # (T,) or (B, T)
    k_positions: Tensor  # (S,) or (B, S)
    in_order: bool = False
    """Keys are 0…S−1 and queries the last T of them, by promise: nobody reads the positions."""
    padding: Tensor | None = None
    """(B,): positions are in order, by promise, after this many keys of each sequence."""
    tensor: Tensor | None = None
    """(H, T, S) or (B, H, T, S), if it was made as a dense tensor."""
    fused: SampledBias | None = None
    """As the fused engine takes it, if it was made for that."""
    interpolated_row: bool = False
    """The tensor is of single queries, interpolated along the distance, and −inf at keys after them."""
    key_mask: Tensor | None = None
    """(B, S): the tensor is −inf at keys that it hides."""

    def __repr__(self) -> str:
        fused = self.fused or self.interpolated_row
        form = "fused" if fused else None if self.tensor is None else tuple(self.tensor.shape)
        return f"PreparedBias({form}: {self.q_positions.shape[-1]} queries, {self.k_positions.shape[-1]} keys)"

    def dense(self) -> Tensor | None:
        """As a dense tensor, made now if necessary."""
        return self.encoding(self.q_positions, self.k_positions) if self.tensor is None else self.tensor

    def check_same(self, q_positions: Tensor | None, k_positions: Tensor | None, key_mask: Tensor | None) -> None:
        """Refuse positions or a mask that differ from those it was made for."""
        for name, given, own in (("q", q_positions, self.q_positions), ("k", k_positions, self.k_positions)):
            if not _same(given, own):
                raise ValueError(
                    f"the bias was prepared for other {name}_positions. Leave positions out (the prepared ones are "
                    f"used), or prepare a bias for these."
                )
        if self.key_mask is not None and not _same(key_mask, self.key_mask):
            raise ValueError("the bias was prepared for another key_mask. Prepare one for this mask, or for none.")


def _same(given: Tensor | None, own: Tensor) -> bool:
    """None is the same; values that cannot be read are assumed to be."""
    if given is None or given is own:
        return True
    if given.shape != own.shape or given.device != own.device:
        return False
    unreadable = any(is_transformed(tensor) or not has_values(tensor) for tensor in (given, own))
    return unreadable or bool(torch.equal(given, own))


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
    """The encoding's bias at these positions, for `longfire.attention` in every layer that shares it.

    On a GPU in the form that the fused engine reads, if that engine can serve the encoding; otherwise a dense tensor.

    Args:
        encoding: whose bias.
        q_positions: (T,) or (B, T).
        k_positions: (S,) or (B, S).
        in_order: you promise that keys are 0…S−1 and queries the last T of them, so that nobody has to read the
            positions; a compiled graph cannot.
        padding: (B,) integers, part of the promise: this many keys of each sequence are padding before its first real
            one, all at position 0, and `key_mask` hides them.
        key_mask: the mask that attention will be given; with `like`, it is applied here instead of there.
        like: a tensor with the precision and head size (last dimension) of q, if q is scaled as usual. What the fused
            engine reads is then made now. Otherwise the first layer makes it; in a compiled graph, every layer.
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
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    decoding = T == 1 and not torch.is_grad_enabled()
    form: dict[str, Any] = {}
    if HAS_TRITON and q_positions.is_cuda and encoding.has_bias and not decoding and refuses(encoding, S) is None:
        fused = sample_bias(encoding, S, S - T if in_order else 0, q_positions.device)
        if like is not None:
            fused.expanded(compute_dtype(like) != torch.float32, like.shape[-1] ** -0.5, keep=True)
        form["fused"] = fused
    elif (rows := prepare_rows([encoding], q_positions, k_positions, key_mask, like)) is not None:
        return rows[0]
    else:
        form["tensor"] = encoding(q_positions, k_positions)
    form |= {"q_positions": q_positions, "k_positions": k_positions, "in_order": in_order, "padding": padding}
    return PreparedBias(encoding=encoding, **form)


def _check_promise(q_positions: Tensor, k_positions: Tensor, padding: Tensor | None) -> None:
    """Refuse positions that break the promise of `in_order`, where values can be read for free."""
    tensors = (q_positions, k_positions, *(() if padding is None else (padding,)))
    if not all(map(can_check_values, tensors)):
        return
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    keys = torch.arange(S) if padding is None else (torch.arange(S) - padding[:, None]).clamp(min=0)
    for name, given, promised in (("k", k_positions, keys), ("q", q_positions, keys[..., max(S - T, 0) :])):
        if given.shape[-1] != promised.shape[-1] or not bool((given == promised).all()):
            raise ValueError(
                f"in_order promises keys at 0…{S - 1}, after any padding, and queries at the last {T} of them, but "
                f"{name}_positions differ. Leave in_order out."
            )


def prepare_rows(
    encodings: Sequence[PositionEncoding],
    q_positions: Tensor,
    k_positions: Tensor,
    key_mask: Tensor | None,
    like: Tensor | None,
) -> list[PreparedBias] | None:
    """The biases of single queries, as in cached decoding, for the encodings of all layers at once.

    None where that gains nothing: on a CPU, in float32, for few keys or many queries. Arguments as in `prepare_bias`.
    """
    single = q_positions.shape[-1] == 1 and not torch.is_grad_enabled()
    if not (single and HAS_TRITON and q_positions.is_cuda) or like is None or compute_dtype(like) == torch.float32:
        return None
    if any((decode_nodes(encoding) or math.inf) >= k_positions.shape[-1] for encoding in encodings):
        return None
    from longfire.engines.fused.decode import decode_biases

    rows = decode_biases(encodings, q_positions, k_positions, key_mask)
    where: dict[str, Any] = {"q_positions": q_positions, "k_positions": k_positions, "key_mask": key_mask}
    return [
        PreparedBias(encoding=encoding, tensor=row[:, :, None], interpolated_row=True, **where)
        for encoding, row in zip(encodings, rows, strict=True)
    ]
