"""Compute a bias once for many layers, as in FIRE-S, where all layers share one encoding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longfire.custom_ops import HAS_TRITON
from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, check_pair, has_values, is_transformed
from longfire.engines.fused.bias import SampledBias, compute_dtype, interpolates, refuses, sample_bias
from longfire.engines.fused.layout import counts_segments
from longfire.engines.fused.segments import segment_table
from longfire.engines.fused.zones import Zones, decode_nodes
from longfire.engines.layout import Span, check_causal, check_segment_ids, check_window, segment_positions


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class PreparedBias:
    """An encoding's bias at fixed positions. Gradients from all uses add up."""

    encoding: PositionEncoding
    q_positions: Tensor  # (T,) or (B, T)
    k_positions: Tensor  # (S,) or (B, S)
    in_order: bool = False
    """The caller guarantees that keys are 0…S−1 (in each segment) and queries the last T; positions are not read."""
    padding: Tensor | None = None
    """(B,): the caller guarantees that positions are in order after this many keys of each sequence."""
    tensor: Tensor | None = None
    """(H, T, S) or (B, H, T, S), if prepared as a dense tensor."""
    fused: SampledBias | None = None
    """The form that the fused engine reads, if prepared for it."""
    interpolated_row: bool = False
    """The tensor is for single queries: interpolated along the distance, −inf at keys after them."""
    key_mask: Tensor | None = None
    """(B, S): the tensor is −inf at keys that this mask hides."""
    causal: bool = True
    """Whether it is for keys up to the query alone."""
    window: int | None = None
    """The window it is for. None: any."""
    segment_ids: Tensor | None = None
    """(B, S): the segments it is for. None: any."""

    def __repr__(self) -> str:
        fused = self.fused or self.interpolated_row
        form = "fused" if fused else None if self.tensor is None else tuple(self.tensor.shape)
        return f"PreparedBias({form}: {self.q_positions.shape[-1]} queries, {self.k_positions.shape[-1]} keys)"

    @property
    def heads(self) -> int | None:
        """None if nothing was computed: the encoding has no bias."""
        if self.fused is not None:
            return self.fused.heads
        return None if self.tensor is None else self.tensor.shape[-3]

    def dense(self) -> Tensor | None:
        """The bias as a dense tensor, computed now if necessary."""
        return self.encoding(self.q_positions, self.k_positions) if self.tensor is None else self.tensor

    def part(self, q_positions: Tensor, k_positions: Tensor, keys: slice, in_order: bool) -> "PreparedBias":
        """The bias at some of these positions, a range of the keys, for any layout."""
        return replace(
            self,
            q_positions=q_positions,
            k_positions=k_positions,
            in_order=in_order,
            padding=None,
            tensor=None if self.tensor is None else self.tensor[..., keys],
            fused=None,  # it is for all keys
            key_mask=None if self.key_mask is None else self.key_mask[:, keys],
            window=None,
            segment_ids=None,
        )

    def check_same(self, q_positions: Tensor | None, k_positions: Tensor | None, key_mask: Tensor | None) -> None:
        """Refuse positions or a mask other than those it was prepared for."""
        for name, given, own in (("q", q_positions, self.q_positions), ("k", k_positions, self.k_positions)):
            if not _same(given, own):
                raise ValueError(
                    f"the bias was prepared for other {name}_positions. Pass no positions to use the prepared ones, or "
                    f"prepare a bias for these."
                )
        if self.key_mask is not None and not _same(key_mask, self.key_mask):
            raise ValueError(
                "the bias was prepared for another key_mask. Prepare it for this one, or without key_mask."
            )

    def check_layout(self, causal: bool, window: int | None, segment_ids: Tensor | None) -> None:
        """Refuse a layout that it was not prepared for: it may lack the bias of keys that are seen there."""
        if self.causal and not causal:
            raise ValueError("the bias was prepared for causal attention: prepare it with causal=False.")
        if self.window is not None and window != self.window:
            raise ValueError(
                f"the bias was prepared for window={self.window}, not {window}: pass attention the same window, or "
                f"prepare a bias without one."
            )
        if self.segment_ids is not None and (segment_ids is None or not _same(segment_ids, self.segment_ids)):
            raise ValueError(
                "the bias was prepared for other segment_ids: pass attention the same ones, or prepare a bias without."
            )


def _same(given: Tensor | None, own: Tensor) -> bool:
    """Whether both are equal. None counts as equal, and so do values that cannot be read."""
    if given is None or given is own:
        return True
    if given.shape != own.shape or given.device != own.device:
        return False
    return not (_can_read(given) and _can_read(own)) or bool(torch.equal(given, own))


def _can_read(tensor: Tensor) -> bool:
    return has_values(tensor) and not is_transformed(tensor)


def prepare_bias(
    encoding: PositionEncoding,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    in_order: bool = False,
    padding: Tensor | None = None,
    key_mask: Tensor | None = None,
    like: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    segment_ids: Tensor | None = None,
) -> PreparedBias:
    """The encoding's bias at these positions, for `longfire.attention` in every layer that shares it.

    On a GPU, in the form that the fused engine reads if it serves the encoding; otherwise a dense tensor.

    Args:
        encoding: any with a bias.
        q_positions: (T,) or (B, T).
        k_positions: (S,) or (B, S).
        in_order: guarantee that keys are 0…S−1 and queries the last T of them, so that positions need not be read; a
            compiled graph cannot read them. With `segment_ids`, keys count up from 0 in each segment.
        padding: (B,) integers, with `in_order`: each sequence starts with this many keys of padding, all at position 0
            and hidden by `key_mask`.
        key_mask: the mask that will be passed to attention; with `like`, it is applied here already.
        like: a tensor with q's precision and head size (last dimension), if attention uses the default scale. What the
            fused engine reads is then computed now; otherwise by the first layer, or by every layer of a compiled
            graph.
        causal: as in attention. A bias prepared with False serves causal attention too, not the other way round.
        window: of attention, which then must be given the same one. Without it, the bias serves any window.
        segment_ids: likewise.
    """
    if not isinstance(encoding, PositionEncoding):
        raise TypeError(f"encoding must be a PositionEncoding, not {type(encoding).__name__}.")
    encoding.refuse_without_bias()
    check_causal(causal)
    if not causal:
        encoding.refuse_causal_only()
    check_pair(q_positions, k_positions)
    check_window(window)
    if segment_ids is not None:
        check_segment_ids(segment_ids, "segment_ids", len(segment_ids), k_positions.shape[-1], k_positions)
    if padding is not None and (not in_order or segment_ids is not None):
        raise ValueError("padding needs in_order=True, and no segment_ids: it says where positions in order begin.")
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if in_order:
        _check_in_order(q_positions, k_positions, padding, segment_ids)
    elif segment_ids is not None and T <= S:
        spans = Span(q_positions, segment_ids[:, S - T :]), Span(k_positions, segment_ids)
        tensors = q_positions, k_positions, segment_ids, key_mask
        readable = all(tensor is None or _can_read(tensor) for tensor in tensors)
        in_order = readable and counts_segments(*spans, key_mask)
    in_order = in_order and padding is None
    decoding = T == 1 and not torch.is_grad_enabled()
    layout: dict[str, Any] = {"causal": causal, "window": window, "segment_ids": segment_ids}
    form: dict[str, Any] = {}
    fits = (in_order or segment_ids is None) and (causal or padding is None) and refuses(encoding, S) is None
    if HAS_TRITON and q_positions.is_cuda and encoding.has_bias and not decoding and fits:
        keys, first = S, S - T if in_order else 0
        if segment_ids is not None:
            keys, first = segment_table(segment_ids, Zones.of(encoding, 1, 0).smooth, window).longest, 0
        dtype = torch.float32 if like is None or segment_ids is not None else compute_dtype(like)
        tabulate = not interpolates(encoding, keys, window, dtype)
        fused = sample_bias(encoding, keys, first, q_positions.device, causal, tabulate)
        if like is not None:
            fused.expanded(compute_dtype(like) != torch.float32, like.shape[-1] ** -0.5, window, keep=True)
        form["fused"] = fused
    elif causal and (rows := prepare_rows([encoding], q_positions, k_positions, key_mask, like)) is not None:
        return replace(rows[0], **layout)
    else:
        form["tensor"] = encoding(q_positions, k_positions)
    form |= {"q_positions": q_positions, "k_positions": k_positions, "in_order": in_order, "padding": padding}
    return PreparedBias(encoding=encoding, **form, **layout)


def _check_in_order(
    q_positions: Tensor, k_positions: Tensor, padding: Tensor | None, segment_ids: Tensor | None
) -> None:
    """Refuse positions that contradict `in_order`, where reading values is free."""
    tensors = (q_positions, k_positions, padding, segment_ids)
    if not all(tensor is None or can_check_values(tensor) for tensor in tensors):
        return
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    keys = torch.arange(S) if segment_ids is None else segment_positions(segment_ids)
    keys = keys if padding is None else (keys - padding[:, None]).clamp(min=0)
    for name, positions, expected in (("k", k_positions, keys), ("q", q_positions, keys[..., max(S - T, 0) :])):
        if positions.shape[-1] != expected.shape[-1] or not bool((positions == expected).all()):
            raise ValueError(
                f"in_order=True needs keys at 0…{S - 1}, after any padding or in each segment, and queries at the last "
                f"{T} of them, but {name}_positions differ. Pass in_order=False."
            )


def prepare_rows(
    encodings: Sequence[PositionEncoding],
    q_positions: Tensor,
    k_positions: Tensor,
    key_mask: Tensor | None,
    like: Tensor | None,
) -> list[PreparedBias] | None:
    """The biases of single queries, as in cached decoding, for the encodings of all layers at once.

    None where that is no faster: on a CPU, in float32, for few keys or many queries. Arguments as in `prepare_bias`.
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
