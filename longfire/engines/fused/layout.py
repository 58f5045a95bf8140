"""Which layouts the kernels serve: keys in order after some padding, or any positions (`lookup`)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longfire.engines.fused.zones import TILE
from longfire.engines.layout import Span, segment_positions
from longfire.engines.value_checks import cached

LARGEST_TABLE = 1 << 22
"""Distances in a table of biases."""
OUTSIDE = 1 << 30
"""Beyond every position."""


def padding_before(
    q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int
) -> tuple[Tensor | None, str | None]:
    """How many keys of masked padding each sequence has before those in order from 0, (B,) int32; None: none has any.

    And why the kernels do not support these positions; None if they do.
    """
    found: tuple[Tensor | None, str | None] = cached(_padding_before, q_positions, k_positions, key_mask, B)
    return found


def _padding_before(
    q_positions: Tensor, k_positions: Tensor, key_mask: Tensor | None, B: int
) -> tuple[Tensor | None, str | None]:
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if T > S:
        return None, f"there are more queries ({T}) than keys ({S})"
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
        return None, "key positions do not go up one by one from 0 (padding before them is fine if key_mask hides it)"
    if not queries_ok:
        return None, (
            "the queries are not the last of the keys in order (put queries of left padding at position 0; with right "
            "padding, pass no positions)"
        )
    return shift.squeeze(1).int() if shifted else None, None


def counts_segments(queries: Span, keys: Span, key_mask: Tensor | None) -> bool:
    """Whether positions are those that segments have by default, as far as `key_mask` does not hide them."""
    spans = queries.positions, keys.positions, queries.segment_ids, keys.segment_ids
    return bool(cached(_counts_segments, *spans, key_mask))


def _counts_segments(
    q_positions: Tensor, k_positions: Tensor, q_segments: Tensor, k_segments: Tensor, key_mask: Tensor | None
) -> Tensor:
    T, S = q_positions.shape[-1], k_positions.shape[-1]
    if T > S:
        return torch.tensor(False)
    expected, last = segment_positions(k_segments), slice(S - T, S)
    keys_fit = k_positions == expected
    keys_fit = keys_fit if key_mask is None else keys_fit | ~key_mask
    return keys_fit.all() & (q_positions == expected[:, last]).all() & (q_segments == k_segments[:, last]).all()


# --- any positions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LookupLayout:
    """Where queries and keys at any positions are, and which of their tiles meet. (B or 1, …) int32 each."""

    distances: int
    """Length of the table."""
    queries: Tensor
    keys: Tensor
    query_segments: Tensor | None  # int64, as passed
    key_segments: Tensor | None
    seen_by_queries: Tensor
    """(B or 1, 2 · tiles): first and end of the tiles of keys that each tile of queries sees."""
    seeing_keys: Tensor
    """(B or 1, 2 · tiles): first and end of the tiles of queries that see each tile of keys."""

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All but the length of the table."""
        segments = self.query_segments, self.key_segments
        return self.queries, self.keys, *segments, self.seen_by_queries, self.seeing_keys


def lookup_layout(
    queries: Span,
    keys: Span,
    key_mask: Tensor | None,
    causal: bool,
    window: int | None,
    limit: int | None,
    most: int | None = None,
) -> LookupLayout:
    """The layout of these queries and keys. Reads their positions, unless all are below `limit`.

    `most` is the longest table that the encoding can fill, which positions may exceed.
    """
    spans = queries.positions, keys.positions, queries.segment_ids, keys.segment_ids
    on_gpu = queries.positions.is_cuda
    in_graph = torch.compiler.is_compiling() or (on_gpu and torch.cuda.is_current_stream_capturing())
    if limit is not None and in_graph:  # there may be other positions each time it runs
        return _lookup_layout(*spans, key_mask, causal, window, limit, most)
    found: LookupLayout = cached(_lookup_layout, *spans, key_mask, causal, window, limit, most)
    return found


def _lookup_layout(
    q_positions: Tensor,
    k_positions: Tensor,
    q_segments: Tensor | None,
    k_segments: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    window: int | None,
    limit: int | None,
    most: int | None,
) -> LookupLayout:
    q, k = torch.atleast_2d(q_positions).long(), torch.atleast_2d(k_positions).long()
    if limit is None:
        ends = torch.stack([torch.minimum(q.min(), k.min()), torch.maximum(q.max(), k.max())]).tolist()
        lowest, distances = ends[0], 128
        while distances <= ends[1] - lowest:  # a few sizes serve all batches
            distances *= 2
        if most is not None and ends[1] - lowest < most < distances:
            distances = most
    else:
        lowest, distances = 0, limit
    q, k = q - lowest, k - lowest
    kept = torch.ones_like(k, dtype=torch.bool) if key_mask is None else key_mask
    first_query, last_query = _ends(q, torch.ones_like(q, dtype=torch.bool))
    first_key, last_key = _ends(k.expand(len(kept), -1), kept.expand(max(len(k), len(kept)), -1))
    first_query, last_query = first_query[:, :, None], last_query[:, :, None]  # (B, tiles of queries, 1)
    first_key, last_key = first_key[:, None], last_key[:, None]  # (B, 1, tiles of keys)
    meet = (first_key < OUTSIDE) & (first_query < OUTSIDE)
    if causal:
        meet = meet & (first_key <= last_query)
    if window is not None:
        meet = meet & (last_key > first_query - window)
        meet = meet if causal else meet & (first_key < last_query + window)
    if q_segments is not None and k_segments is not None:
        first_query, last_query = _ends(q_segments, torch.ones_like(q_segments, dtype=torch.bool))
        first_key, last_key = _ends(k_segments, torch.ones_like(k_segments, dtype=torch.bool))
        meet = meet & (first_key[:, None] <= last_query[:, :, None]) & (last_key[:, None] >= first_query[:, :, None])
    q, k = q.int().contiguous(), k.int().contiguous()
    own_q, own_k = (None if ids is None else ids.long().contiguous() for ids in (q_segments, k_segments))
    return LookupLayout(distances, q, k, own_q, own_k, _reach(meet), _reach(meet.mT))


def _ends(values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest kept value (B, tiles) of each tile of (B, tokens)."""
    missing = -values.shape[1] % TILE
    low, high = values.masked_fill(~kept, OUTSIDE), values.masked_fill(~kept, -1)
    low, high = pad(low, (0, missing), value=OUTSIDE), pad(high, (0, missing), value=-1)
    return low.unflatten(1, (-1, TILE)).amin(-1), high.unflatten(1, (-1, TILE)).amax(-1)


def _reach(meet: Tensor) -> Tensor:
    """First and end of the True columns of each row: (B, rows, columns) → (B, 2 · rows)."""
    first = meet.int().argmax(-1)
    end = meet.shape[-1] - meet.flip(-1).int().argmax(-1)
    return torch.stack([first, torch.where(meet.any(-1), end, first)], -1).flatten(1).int()
