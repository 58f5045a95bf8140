"""Where the tokens of a forward pass are: from the attention mask, the cache and position ids.

    attention_mask   0 0 1 1 1 1 | 0          positions   0 0 0 1 2 3 | 4
                     padding       padding

Padding on the left has no positions of its own (it is hidden, and shown as 0), so a padded sequence has the positions
that it has alone. Padding on the right, which causal attention hides, goes on counting.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import strictly_increase
from longfire.engines import PreparedBias, prepare_bias, prepare_rows

NOT_BINARY = "attention_mask has 1 for tokens and 0 for padding, and this one has other values"


@dataclass(frozen=True, eq=False)
class Positions:
    """Of the queries and the keys of one forward pass, the same in all layers."""

    queries: Tensor  # (T,) or (B, T)
    keys: Tensor  # (S,) or (B, S)
    key_mask: Tensor | None = None
    """(B, S): True is kept. None: all are."""
    in_order: bool = False
    """Keys are 0…S−1 and queries the last T of them."""
    padding: Tensor | None = None
    """(B,): they are, after so many keys of each sequence. Where values cannot be looked at."""
    packed: bool | None = False
    """Position ids begin again within a sequence, for another document. None: they may, and cannot be looked at."""

    def prepare(self, encoding: PositionEncoding, like: Tensor | None = None) -> PreparedBias:
        """The encoding's bias, for layers to share, or for those who cannot look at positions."""
        return prepare_bias(
            encoding,
            self.queries,
            self.keys,
            in_order=self.in_order or self.padding is not None,
            padding=self.padding,
            key_mask=self.key_mask,
            like=like,
        )

    def prepare_rows(self, encodings: Sequence[PositionEncoding], like: Tensor) -> list[PreparedBias] | None:
        """The biases of layers that decode, at once; None where each had better make its own."""
        return prepare_rows(encodings, self.queries, self.keys, self.key_mask, like)


def find_positions(
    x: Tensor,
    past: int | Tensor,
    slots: int,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    packed: bool = False,
) -> Positions:
    """Positions of the tokens x (B, T, C), which come after `past` others.

    Args:
        x: embeddings; their values do not matter.
        past: how many tokens the cache holds: a tensor where a static cache says so in a compiled graph.
        slots: of the keys that attention will be given: past + T, or a static cache's size.
        attention_mask: (B, tokens so far), True or 1 is kept.
        position_ids: (B or 1, T), where positions are not to be counted.
        packed: whether position ids may begin again, for another document.
    """
    B, T = x.shape[:2]
    hidden = torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())
    past = past if hidden else int(past)
    mask = None if attention_mask is None else _checked_mask(attention_mask, B, T, past, slots).to(x.device)
    binary = None if mask is None or mask.dtype == torch.bool else ((mask == 0) | (mask == 1)).all()
    mask = None if mask is None else mask.bool()
    if position_ids is not None:
        position_ids = _checked_ids(position_ids, B, T).to(x.device)
    if hidden:
        if binary is not None:
            torch._assert_async(binary, NOT_BINARY)
        return _unseen(x, past, slots, mask, position_ids, packed)
    return _seen(x, int(past), mask, binary, position_ids, packed)


def counted(mask: Tensor) -> Tensor:
    """Positions (B, S) by a mask: those of kept tokens count up from 0, and after the last one so do all others."""
    after_last = mask.long().flip(-1).cumsum(-1).flip(-1) == 0
    skipped = (~mask & ~after_last).long().cumsum(-1)
    return (torch.arange(mask.shape[-1], device=mask.device) - skipped).clamp(min=0)


def _seen(
    x: Tensor, past: int, mask: Tensor | None, binary: Tensor | None, ids: Tensor | None, packed: bool
) -> Positions:
    """Where values can be looked at: once, for all layers."""
    total = past + x.shape[1]
    index = torch.arange(total, device=x.device)
    if mask is None and ids is None:  # and nothing to look at, or to wait for
        return Positions(index[past:], index, in_order=True)
    if mask is not None:
        mask = mask[:, :total]
    elif ids is not None and past:
        mask = index >= total - 1 - ids[:, -1:]  # by the last token's position, so many before it are not padding
    keys = index if mask is None else counted(mask)
    queries = keys[..., past:]
    yes = index.new_ones((), dtype=torch.bool)
    questions = [yes if binary is None else binary, yes if mask is None else mask.all(), yes, yes, yes]
    if ids is not None:
        if mask is not None:
            ids = torch.where(mask[:, past:], ids, queries)  # what padding is given differs between libraries
        one_document = strictly_increase(ids, None if mask is None else mask[:, past:])
        questions[2:] = [(ids == index[past:]).all(), (ids == queries).all(), one_document]
    zeros_and_ones, kept, in_order, continues, one_document = torch.stack(questions).tolist()
    if not zeros_and_ones:
        raise ValueError(f"{NOT_BINARY}. Numbers of documents go into position_ids, that begin again in each.")
    if ids is not None and past and not continues:
        row = int((ids != queries).any(-1).int().argmax())
        raise ValueError(
            f"position_ids do not go on from the {past} tokens in the cache: in sequence {row} they are "
            f"{_short(ids[row])}, and by the attention mask these tokens are at {_short(queries.expand_as(ids)[row])}. "
            f"Pad prompts on the left, and leave position_ids out; or run without a cache, where any are served."
        )
    if not one_document and not packed:
        raise ValueError(
            "position_ids begin again within a sequence, as where documents are packed into one row. "
            "attn_implementation='sdpa' and 'eager' keep them apart; for 'longfire' give each its own row."
        )
    if kept and in_order:
        return Positions(index[past:], index, in_order=True)
    if ids is not None and not past:
        queries = keys = ids
    return Positions(queries, keys, None if kept else mask, packed=not one_document)


def _unseen(
    x: Tensor, past: int | Tensor, slots: int, mask: Tensor | None, ids: Tensor | None, packed: bool
) -> Positions:
    """In a compiled graph, or one that is being captured."""
    T = x.shape[1]
    index = torch.arange(slots, device=x.device)
    here = torch.arange(T, device=x.device) + past
    in_order = isinstance(past, int)
    if mask is not None:
        mask = torch.cat([mask, mask.new_ones(len(mask), slots - mask.shape[1])], dim=1)
        keys = counted(mask)
        padding = (mask.long().cumsum(-1) == 0).sum(-1) if in_order else None
        if padding is not None:
            whole = ((index - padding[:, None] == keys) | ~mask).all()
            torch._assert_async(
                whole, "in a compiled graph an attention mask may hide tokens at the ends of a sequence only"
            )
        return Positions(keys[:, here], keys, mask, padding=padding)
    if ids is None:
        return Positions(here, index, in_order=in_order)
    if T > 1 and not packed:
        raise ValueError(
            "position_ids cannot be looked at in a compiled graph: leave them out where they are 0, 1, 2, …, give an "
            "attention mask for padding, or take attn_implementation='sdpa'."
        )
    if isinstance(past, int) and past == 0:
        return Positions(ids, ids, packed=None)
    padding = here[-1] - ids[:, -1:]
    return Positions(ids, (index - padding).clamp(min=0), index >= padding)


def _checked_mask(mask: Tensor, B: int, T: int, past: int | Tensor, slots: int) -> Tensor:
    if mask.ndim == 4:
        if mask.is_floating_point() or mask.shape[1:3] != (1, 1):
            raise ValueError(
                f"attn_implementation='longfire' takes an attention mask of shape (B, tokens so far), 1 for tokens and "
                f"0 for padding, not one of shape {tuple(mask.shape)} and {mask.dtype}. 'sdpa' and 'eager' honour "
                f"masks of (B, 1, T, S): model.set_attn_implementation('sdpa')."
            )
        mask = mask[:, 0, 0]  # as `longfire_mask` makes it
    fits = mask.ndim == 2 and mask.shape[0] == B
    if isinstance(past, int) and not (fits and mask.shape[1] in (past + T, slots)):
        raise ValueError(
            f"attention_mask must have shape (B, tokens so far) = ({B}, {past + T}), 1 for tokens and 0 for padding, "
            f"not {tuple(mask.shape)}. Tokens in the cache count."
        )
    return mask


def _checked_ids(ids: Tensor, B: int, T: int) -> Tensor:
    ids = ids.unsqueeze(0) if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.shape[0] not in (1, B) or ids.shape[1] != T:
        raise ValueError(f"position_ids must have shape (B, T) = ({B}, {T}), not {tuple(ids.shape)}.")
    return ids.expand(B, T)


def _short(positions: Tensor) -> str:
    first = positions[:4].tolist()
    return f"{first} and so on" if len(positions) > 4 else str(first)
