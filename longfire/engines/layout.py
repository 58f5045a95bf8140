"""Which keys a query may see: those of its segment, up to its own position if causal, inside the window.

Packed documents are segments of a row:

    segment_ids   0 0 0 1 1 2      positions, if none are passed   0 1 2 0 1 0

Letters: B batch, T queries, S keys.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from longfire.encodings.positions import INTEGERS, check_same_device, is_transformed, strictly_increase
from longfire.validation import at_least

OUT_OF_ORDER = "k_positions of the keys that key_mask keeps must strictly increase along each sequence"
SEGMENTS_OUT_OF_ORDER = "segment_ids must not decrease along a row, so that each segment is contiguous"
FARTHEST = 2**62
"""Larger windows are cut to this: positions ± the window must fit int64."""


@dataclass(frozen=True)
class Span:
    """Positions and segments of some queries or keys."""

    positions: Tensor  # (T,) or (B, T)
    segment_ids: Tensor | None = None  # (B, T)

    def __getitem__(self, tokens: slice) -> "Span":
        ids = self.segment_ids
        return Span(self.positions[..., tokens], None if ids is None else ids[:, tokens])

    @property
    def tensors(self) -> list[Tensor]:
        return [self.positions] if self.segment_ids is None else [self.positions, self.segment_ids]


def visible(queries: Span, keys: Span, causal: bool, window: int | None) -> Tensor | None:
    """Which keys each query may see, (…, T, S); None if all."""
    q, k = queries.positions.long()[..., :, None], keys.positions.long()[..., None, :]
    conditions = []
    if causal:
        conditions.append(k <= q)
    if window is not None:
        window = min(window, FARTHEST)
        conditions.append(k > q - window)
        if not causal:
            conditions.append(k < q + window)
    if queries.segment_ids is not None and keys.segment_ids is not None:
        conditions.append(queries.segment_ids[..., :, None] == keys.segment_ids[..., None, :])
    return reduce(torch.logical_and, conditions) if conditions else None


def needed_keys(queries: Span, keys: Span, causal: bool, window: int | None) -> slice:
    """A range of keys outside of which these queries see none. Reads values."""
    low, high = queries.positions.aminmax(dim=-1, keepdim=True)
    k = keys.positions
    needed = torch.ones_like(k, dtype=torch.bool)
    if causal:
        needed = needed & (k <= high)
    if window is not None:
        window = min(window, FARTHEST)
        needed = needed & (k > low.long() - window) & (k < high.long() + window)
    if queries.segment_ids is not None and keys.segment_ids is not None:
        first, last = queries.segment_ids.aminmax(dim=-1, keepdim=True)
        needed = needed & (keys.segment_ids >= first) & (keys.segment_ids <= last)
    seen = torch.atleast_2d(needed).any(0).nonzero()
    return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)


# --- segments -------------------------------------------------------------------------------------------------------


def check_segment_ids(segment_ids: Tensor, name: str, batch: int, length: int, q: Tensor) -> None:
    """Refuse anything but integers (B, length) on q's device; values are checked by `segments_in_order`."""
    if not isinstance(segment_ids, Tensor):
        raise TypeError(f"{name} must be an integer tensor, not {type(segment_ids).__name__}.")
    if segment_ids.dtype not in INTEGERS:
        raise TypeError(f"{name} must be int64 or int32, not {segment_ids.dtype}: convert them with .long().")
    if tuple(segment_ids.shape) != (batch, length):
        raise ValueError(
            f"{name} must have shape {(batch, length)}, one per token of each row, not {tuple(segment_ids.shape)}."
        )
    check_same_device(f"{name} are", segment_ids, "q is", q)


def check_causal(causal: object) -> None:
    """Refuse anything but True or False."""
    if causal not in (True, False):
        raise ValueError(f"causal must be True or False, not {causal!r}.")


def check_window(window: int | None) -> None:
    """Refuse anything but a whole number above 0, or None."""
    if window is not None:
        at_least("window (how many positions a query sees, its own included)", window, 1)


def segment_positions(segment_ids: Tensor) -> Tensor:
    """Positions (B, S) that start at 0 in each segment."""
    index = torch.arange(segment_ids.shape[-1], device=segment_ids.device)
    starts = torch.where(segment_starts(segment_ids), index, 0).cummax(-1).values
    return index - starts


def segments_in_order(segment_ids: Tensor) -> Tensor:
    """Whether segment ids never decrease along a row: one bool."""
    return (segment_ids.diff() >= 0).all()


def positions_in_order(positions: Tensor, kept: Tensor | None, segment_ids: Tensor | None) -> Tensor:
    """Whether positions of the keys that are kept strictly increase within each segment: one bool."""
    if segment_ids is not None and positions.numel():
        number = segment_starts(segment_ids).cumsum(-1)
        positions = positions.long() + number * (positions.amax() + 1)  # segments one after the other
    return strictly_increase(positions, kept)


def first_decrease(positions: Tensor, kept: Tensor | None, segment_ids: Tensor | None, batch: int) -> str:
    """Where positions first fail to increase within a segment, as the end of a message."""
    if any(tensor is not None and is_transformed(tensor) for tensor in (positions, kept, segment_ids)):
        return ""
    ids = torch.zeros_like(positions) if segment_ids is None else segment_ids
    kept = torch.ones_like(positions, dtype=torch.bool) if kept is None else kept
    columns = [tensor.expand(batch, -1).tolist() for tensor in (ids, positions, kept)]
    for row, tokens in enumerate(zip(*columns, strict=True)):
        seen = [(segment, position) for segment, position, keep in zip(*tokens, strict=True) if keep]
        for before, after in pairwise(seen):
            if after <= before:
                return f", and in sequence {row}, position {after[1]} follows {before[1]}"
    return ""


def first_return(segment_ids: Tensor) -> str:
    """Where segment ids first decrease, as the end of a message."""
    if is_transformed(segment_ids):
        return ""
    row, first = (segment_ids.diff() < 0).nonzero()[0].tolist()
    before, after = segment_ids[row, first : first + 2].tolist()
    return f", but in row {row} {after} follows {before}"


def segment_starts(segment_ids: Tensor) -> Tensor:
    """(B, S), True for the first token of each segment."""
    changes = segment_ids[..., 1:] != segment_ids[..., :-1]
    return torch.nn.functional.pad(changes, (1, 0), value=True)
