"""Where the documents of packed rows begin and end: the table from which kernels take their tiles."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longfire.encodings.positions import has_values
from longfire.engines.fused.zones import BLOCK, FAR, MIDDLE, TILE, Zones
from longfire.engines.layout import segment_starts
from longfire.engines.value_checks import cached

NO_TILE = 1 << 20
"""The number of a tile past the end of every segment."""
LEAST_SEGMENTS = 256
"""Segments that a compiled graph serves in each row; in longer rows, one for every 16 keys."""


@dataclass(frozen=True, eq=False)
class SegmentTable:
    """Packed documents, numbered from the first row's first."""

    tiles: Tensor
    """(tiles, 6) int32: number of each tile of 64 keys, then its segment's row of `segments`; those with the most keys
    before them come first."""
    segments: Tensor
    """(N + 1, 5) int32: row, first key, end, and where its middle and far nodes begin; the longest segment first.

    The last row has the number of segments, of which a compiled graph has N at most, and the totals of nodes.
    """
    longest: int
    """Keys in the longest segment, or a bound in a compiled graph, which cannot read it."""


def segment_table(segment_ids: Tensor, smooth: int | None, window: int | None) -> SegmentTable:
    """The table for segment ids (B, S), built once per tensor, and the zones' `smooth` and `window`."""
    if torch.compiler.is_compiling():
        return _build(segment_ids, smooth, window)
    capturing = segment_ids.is_cuda and torch.cuda.is_current_stream_capturing()
    if not capturing and not has_values(segment_ids):
        return _build(segment_ids, smooth, window)
    found: SegmentTable = cached(_build, segment_ids, smooth, window)
    return found


def _build(segment_ids: Tensor, smooth: int | None, window: int | None) -> SegmentTable:
    (B, S), readable = segment_ids.shape, has_values(segment_ids)
    number = segment_starts(segment_ids).flatten().cumsum(0) - 1  # (B·S,): each key's segment
    if readable:
        most = int(number[-1]) + 1
    else:
        most = B * min(S, max(LEAST_SEGMENTS, S // 16))
        torch._assert_async(
            number[-1] < most, f"in a compiled graph, a batch of {B} × {S} tokens may have {most} segments"
        )
    first = torch.searchsorted(number, torch.arange(most + 1, device=number.device))  # B·S past the last
    length, order = first.diff().sort(descending=True, stable=True)
    row, start = first[order] // S, first[order] % S
    longest = int(length.max()) if readable else S
    middle, far = _node_counts(-(-length // BLOCK), Zones(longest, 0, smooth, window))
    begins = [torch.nn.functional.pad(count.cumsum(0), (1, 0)) for count in (middle, far)]
    places = [torch.nn.functional.pad(column, (0, 1)) for column in (row, start, start + length)]
    places[0][-1] = number[-1] + 1
    segments = torch.stack([*places, *begins], 1).int()
    segment, tile = _tiles(-(-length // TILE), readable, B * S)
    return SegmentTable(torch.cat([tile[:, None].int(), segments[segment]], 1), segments, longest)


def _tiles(count: Tensor, readable: bool, keys: int) -> tuple[Tensor, Tensor]:
    """Segment and number of each tile, from the number of tiles of each segment."""
    after, segments = count.cumsum(0), len(count)
    total = int(after[-1]) if readable else keys // TILE + segments
    index = torch.arange(total, device=count.device)
    segment = torch.searchsorted(after, index, right=True)
    number = index - torch.nn.functional.pad(after, (1, 0))[segment]
    order = torch.where(segment < segments, number, -1).argsort(descending=True, stable=True)
    return segment[order], torch.where(segment < segments, number, NO_TILE)[order]


def _node_counts(blocks: Tensor, zones: Zones) -> tuple[Tensor, Tensor]:
    """Middle and far nodes of segments of this many blocks, as `Zones.sizes` has them; none in near segments."""
    per_block = 2 * zones.middle_tiles * MIDDLE**2 if zones.has_middle else 0
    rows = (blocks - zones.middle + 1).clamp(min=0)
    per_pair = 2 * FAR**2 if zones.has_far else 0
    return per_block * blocks * (blocks > zones.near), per_pair * rows * (rows - 1)


def node_bounds(zones: Any, keys: int) -> tuple[int, int]:
    """At most so many middle and far nodes have segments with this many keys in all, none longer than `zones.keys`.

    A segment with nodes has more than `near` blocks, so its last block adds less than 1/near to the keys' own, and the
    number of far nodes grows faster than the number of blocks.
    """
    blocks = keys * (zones.near + 1) // (BLOCK * zones.near) + 1
    middle, far = zones.node_grads
    return -(-middle * blocks // zones.blocks), -(-far * blocks // zones.blocks)
