"""Documents packed into one row: where each begins, by position ids or by the arguments of padding-free collators.

    position_ids    0 1 2 0 1 0       cu_seq_lens_q   0 3 5 6       seq_idx   0 0 0 1 1 2

Shapes: B batch, T tokens.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from longfire.engines.layout import positions_in_order
from longfire.engines.value_checks import holds

ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""What transformers' and TRL's padding-free collators add to a batch."""


def take_packing(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the packing arguments from a model's options and return those that are set."""
    found = {name: options.pop(name, None) for name in ARGUMENTS}
    return {name: value for name, value in found.items() if value is not None}


def segments_of(position_ids: Tensor, kept: Tensor | None) -> Tensor:
    """Segments (B, T): one begins where the position does not increase over that of the previous token that is kept."""
    index = torch.arange(position_ids.shape[-1], device=position_ids.device).expand_as(position_ids)
    latest = index if kept is None else torch.where(kept, index, -1).cummax(-1).values  # the latest kept token
    before = latest[..., :-1]
    restarts = position_ids[..., 1:] <= position_ids.gather(-1, before.clamp(min=0))
    if kept is not None:
        restarts = restarts & kept[..., 1:] & (before >= 0)
    return pad(restarts, (1, 0)).cumsum(-1)


def given_segments(packing: Mapping[str, Any], x: Tensor) -> Tensor | None:
    """Segments (B, T) of the tokens x (B, T, C) by the packing arguments; None if there are none."""
    if not packing:
        return None
    B, T = x.shape[:2]
    lengths, idx = packing.get("cu_seq_lens_q"), packing.get("seq_idx")
    if lengths is None and idx is None:
        raise ValueError(f"{' and '.join(packing)} need cu_seq_lens_q, which says where documents begin.")
    found = None if idx is None else _by_index(idx.to(x.device), B, T)
    if lengths is None:
        return found
    keys = packing.get("cu_seq_lens_k")
    if keys is not None and not (keys.shape == lengths.shape and holds(_equal, keys, lengths, message=OTHER_KEYS)):
        raise ValueError(f"{OTHER_KEYS}, but they are {_preview(lengths)} and {_preview(keys)}.")
    segments = _by_lengths(lengths.to(x.device), B, T)
    if found is not None and not holds(_same_starts, found, segments, message=DISAGREE):
        raise ValueError(f"{DISAGREE}. Pass one of them.")
    return segments


def check_increasing(position_ids: Tensor, segments: Tensor) -> None:
    """Refuse position ids that restart where the packing arguments have no boundary."""
    message = "position_ids must increase within each document of cu_seq_lens_q or seq_idx"
    if not holds(positions_in_order, position_ids, None, segments, message=message):
        raise ValueError(f"{message}. Omit position_ids to count from 0 in each.")


OTHER_KEYS = "cu_seq_lens_q and cu_seq_lens_k must be equal in self-attention"
DISAGREE = "cu_seq_lens_q and seq_idx put the boundaries of documents in different places"


def _by_lengths(lengths: Tensor, B: int, T: int) -> Tensor:
    """Segments (1, T) by the cumulative lengths 0 … T."""
    if B != 1:
        raise ValueError(f"cu_seq_lens_q needs all documents in one row, but there are {B} rows. Pass position_ids.")
    message = f"cu_seq_lens_q must go up from 0 to the number of tokens, {T}"
    whole = lengths.new_tensor([0, T])
    if lengths.ndim != 1 or len(lengths) < 2 or not holds(_cumulative, lengths, whole, message=message):
        raise ValueError(f"{message}, but they are {_preview(lengths)}.")
    ends = lengths[1:].long()
    return torch.searchsorted(ends, torch.arange(T, device=lengths.device), right=True)[None]


def _by_index(idx: Tensor, B: int, T: int) -> Tensor:
    """Segments (B, T) that begin wherever seq_idx changes."""
    if tuple(idx.shape) != (B, T):
        raise ValueError(f"seq_idx must have shape (B, T) = ({B}, {T}), not {tuple(idx.shape)}.")
    return pad(idx[:, 1:] != idx[:, :-1], (1, 0)).cumsum(-1)


def _cumulative(lengths: Tensor, whole: Tensor) -> Tensor:
    return (lengths.diff() >= 0).all() & (lengths[[0, -1]] == whole).all()


def _equal(one: Tensor, other: Tensor) -> Tensor:
    return (one == other).all()


def _same_starts(one: Tensor, other: Tensor) -> Tensor:
    return (one.diff() != 0).eq(other.diff() != 0).all()


def _preview(numbers: Tensor) -> str:
    shown = numbers.flatten()[:8].tolist()
    return f"{shown}…" if numbers.numel() > 8 else str(shown)
