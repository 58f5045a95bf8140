"""Which layouts the kernels serve, and where each sequence's keys begin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longfire.engines.value_checks import cached


@dataclass(frozen=True)
class Layout:
    """How much padding each sequence has before its first key, (B,) int32; None: no sequence has any."""

    shift: Tensor | None


def fused_layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    """The layout if the fused kernels support it (keys in order from 0, after masked padding); otherwise why not."""
    found: Layout | str = cached(_fused_layout, q_positions, k_positions, key_mask, B)
    shift = found.shift if isinstance(found, Layout) else None
    if shift is not None and shift.is_cuda and torch.cuda.is_current_stream_capturing():
        _PINNED[id(found)] = found
    return found


_PINNED: dict[int, object] = {}
"""Layouts that CUDA graphs have captured and will read again."""


def _fused_layout(q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int) -> Layout | str:
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if T > S:
        return f"there are more queries ({T}) than keys ({S})"
    q, k = q_positions.expand(B, T).long(), k_positions.expand(B, S).long()
    index = torch.arange(S, device=k.device)
    kept = torch.ones(B, S, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    first = kept.int().argmax(1, keepdim=True)
    has_keys = kept.any(1, keepdim=True)  # without any, queries may be anywhere
    shift = torch.where(has_keys, first - k.gather(1, first), 0)  # (B, 1)
    expected = torch.arange(S - T, S, device=k.device) - shift
    keys_fit = (~kept | (k == index - shift)).all() & (shift >= 0).all()
    queries_fit = ((q == expected) | ((expected < 0) & (q == 0)) | ~has_keys).all()
    keys_ok, queries_ok, shifted = torch.stack([keys_fit, queries_fit, (shift != 0).any()]).tolist()
    if not keys_ok:
        return "key positions do not go up one by one from 0 (padding before them is fine if key_mask hides it)"
    if not queries_ok:
        return (
            "the queries are not the last of the keys in order (put queries of left padding at position 0; with right "
            "padding, pass no positions)"
        )
    return Layout(shift.squeeze(1).int() if shifted else None)
