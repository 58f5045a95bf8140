"""The layout of a forward pass: where tokens are and what they see, by the mask, the cache and position ids.

    attention_mask   0 0 1 1 1 1 | 0          positions   0 0 0 1 2 3 | 4
                     padding       padding

Left padding is masked and does not count, so a sequence has the same positions padded and alone. Right padding, which
causal attention hides anyway, keeps counting. Where position ids do not increase, another document begins (`packing`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from transformers import Cache

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import check_range, random_positions, strictly_increase
from longfire.engines import PreparedBias, prepare_bias
from longfire.engines.layout import Span, segment_positions, visible
from longfire.model.packing import check_increasing, given_segments, segments_of
from longfire.parallel import check_agreement, shard, unshard, whole_like

LONGFIRE = "longfire"
"""The `attn_implementation` of `longfire.attention`."""
NOT_BINARY = "attention_mask must be 1 for tokens and 0 for padding, but it has other values"
EVALUATION_SEED = 0
"""Seed of random positions in evaluation."""
PACKED = "documents are packed into one row"


@dataclass(frozen=True, eq=False)
class Layout:
    """What attention needs to know of a forward pass, shared by all layers."""

    queries: Tensor  # (T,) or (B, T)
    keys: Tensor  # (S,) or (B, S)
    key_mask: Tensor | None = None
    """(B, S), True for keys to attend to. None: all of them."""
    in_order: bool = False
    """Keys are 0…S−1, in each segment, and queries the last T of them."""
    padding: Tensor | None = None
    """(B,), left padding of each sequence whose keys are otherwise in order. Set only where values cannot be read."""
    segment_ids: Tensor | None = None
    """(B, S), the document of each key; tokens see their own only. None: one document per row."""
    causal: bool = True
    group: ProcessGroup | None = None
    """The ranks that the sequence is split across: queries are this rank's share, keys those of the whole sequence."""
    limit: int | None = None
    """All positions are below this; known if they were drawn here. A compiled layer cannot read them."""
    implementation: str = LONGFIRE
    mask: Tensor | None = None
    """(B or 1, 1, T, S), boolean or additive, for other implementations. None: only causality, if anything, limits."""
    total: int | Tensor = 0
    """Tokens so far, cached ones included; a tensor for a static cache. There may be more keys: its spare slots."""
    bias: PreparedBias | None = None
    """Of the encoding that all layers of a retrofitted model share. None: each has its own, or there is no bias."""
    cross: "Layout | None" = None
    """Of cross-attention."""

    def prepare(
        self, encoding: PositionEncoding, like: Tensor | None = None, window: int | None = None
    ) -> PreparedBias:
        """The encoding's bias, for several layers to share or for a compiled graph, which cannot read positions."""
        return prepare_bias(
            encoding,
            self.queries,
            self.keys,
            in_order=self.in_order or self.padding is not None,
            padding=self.padding,
            key_mask=self.key_mask,
            like=like,
            causal=self.causal,
            window=window,
            segment_ids=self.segment_ids,
        )

    def dense_mask(self) -> Tensor | None:
        """Which keys each query sees, (B or 1, 1, T, S); None if all, or those that "sdpa" lets it see by itself."""
        ids, kept, T, S = self.segment_ids, self.key_mask, self.queries.shape[-1], self.keys.shape[-1]
        if ids is None and not self.causal:
            return None if kept is None else kept[:, None, None, :]
        if ids is None and kept is None and ((T == S and self.implementation == "sdpa") or (T == 1 and self.in_order)):
            return None
        queries = Span(self.queries, None if ids is None else ids[:, S - T :])
        seen = visible(queries, Span(self.keys, ids), self.causal, None)
        assert seen is not None
        if kept is not None:
            index = torch.arange(S, device=kept.device)
            own = index == index[:T, None] + self.total - T
            seen = (seen & kept[:, None, :]) | own  # padding sees itself, not nothing
        return seen[:, None] if seen.ndim == 3 else seen[None, None]

    def within(self, window: int | None) -> Tensor | None:
        """The mask, which also hides keys outside of the window."""
        mask = self.mask
        if window is None or (self.in_order and window >= self.keys.shape[-1]):
            return mask
        distance = self.queries.long()[..., :, None] - self.keys.long()[..., None, :]  # (…, T, S)
        distance = distance[:, None] if distance.ndim == 3 else distance[None, None]  # (B or 1, 1, T, S)
        near = distance < window if self.causal else distance.abs() < window
        if mask is None:
            return near & (distance >= 0) if self.causal else near
        return mask & near if mask.dtype == torch.bool else mask.masked_fill(~near, torch.finfo(mask.dtype).min)


def find_layout(
    config: Any,
    x: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
    training: bool = False,
    packing: Mapping[str, Any] | None = None,
    causal: bool | None = None,
) -> Layout:
    """The layout of the tokens x (B, T, C), for the configured implementation.

    `packing` are the arguments of padding-free collators (`take_packing`); `causal` defaults to the configuration's.
    """
    T = x.shape[1]
    causal = getattr(config, "is_causal", True) if causal is None else causal
    if cache is not None and not causal:
        raise ValueError("a cache needs causal attention, but the model's is_causal is False. Pass use_cache=False.")
    ours = config._attn_implementation == LONGFIRE
    past = 0 if cache is None else cache.get_seq_length()
    slots = past + T if cache is None else key_slots(cache, T)
    segments = given_segments(packing or {}, x)
    if segments is not None and attention_mask is not None:
        raise ValueError(
            f"{', '.join(packing or {})} are for rows without padding. Omit attention_mask, or pass position_ids alone."
        )
    by_query = None
    if not ours and attention_mask is not None and attention_mask.ndim == 4:  # says it all
        by_query, attention_mask = _checked_by_query(attention_mask, T), None
    limit = getattr(config, "random_positions", None) if position_ids is None else None
    if limit is not None and segments is not None:
        raise ValueError(
            "with random_positions, packed documents need position_ids: pass longfire.random_positions of each."
        )
    if limit is not None:
        layout = draw_positions(limit, x, past, slots, attention_mask, training)
    else:
        layout = find_positions(x, past, slots, attention_mask, position_ids, segments, cached=cache is not None)
    if by_query is not None:
        layout = replace(layout, segment_ids=None)
    if layout.segment_ids is not None and cache is not None:
        raise ValueError(f"{PACKED}, which a cache would mix up later. Pass use_cache=False.")
    implementation = config._attn_implementation
    layout = replace(layout, causal=causal, limit=limit, implementation=implementation, total=past + T)
    if ours:
        return layout
    mask = layout.dense_mask() if by_query is None else by_query[..., : layout.keys.shape[-1]]
    return replace(layout, mask=mask)


def split_layout(
    config: Any,
    x: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
    packing: Mapping[str, Any],
    group: ProcessGroup,
) -> Layout:
    """The layout of this rank's share x (B, T, C) of sequences that a group shares, and so of mask and ids."""
    if config._attn_implementation != LONGFIRE:
        raise ValueError(f"sequence_group needs attn_implementation='{LONGFIRE}', not {config._attn_implementation!r}.")
    if cache is not None:
        raise ValueError("sequence_group is for whole sequences, without a cache: pass use_cache=False.")
    if getattr(config, "random_positions", None) is not None and position_ids is None:
        raise ValueError(
            "with random_positions and sequence_group, pass position_ids: every rank its share of the same ones, drawn "
            "with longfire.random_positions."
        )
    if packing:
        raise ValueError(
            f"with sequence_group, pass position_ids that restart in each document, not {', '.join(packing)}."
        )
    for name, tensor in (("attention_mask", attention_mask), ("position_ids", position_ids)):
        if tensor is not None and tuple(tensor.shape) != tuple(x.shape[:2]):
            raise ValueError(
                f"with sequence_group, {name} must be this rank's share, {tuple(x.shape[:2])}, not "
                f"{tuple(tensor.shape)}."
            )
    given = {"inputs": x, "attention_mask": attention_mask, "position_ids": position_ids}
    check_agreement(given, x.device, group)
    mask, ids = (None if t is None else unshard(t, 1, group) for t in (attention_mask, position_ids))
    layout = find_layout(config, whole_like(x, group, 1), mask, ids, None)
    return replace(layout, queries=shard(layout.queries, -1, group), group=group)


def key_slots(cache: Cache, T: int) -> int:
    """The number of keys after T more tokens, those that a sliding layer has dropped included; or a static size."""
    layers = range(max(len(getattr(cache, "layers", ())), 1))
    return max(sum(cache.get_mask_sizes(T, layer)) for layer in layers)


def find_positions(
    x: Tensor,
    past: int | Tensor,
    slots: int,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    segments: Tensor | None = None,
    cached: bool = False,
) -> Layout:
    """Positions of the tokens x (B, T, C), which follow `past` cached ones.

    Args:
        x: embeddings; only shape and device matter.
        past: number of cached tokens; a tensor for a static cache in a compiled graph.
        slots: number of keys S: past + T, or a static cache's size.
        attention_mask: (B, tokens so far), True or 1 for tokens to attend to.
        position_ids: (B or 1, T), in place of counting.
        segments: (B, T), the document of each token. Default: one begins where position ids do not increase.
        cached: whether there is a cache.
    """
    B, T = x.shape[:2]
    traced = is_traced(x)
    past = past if traced else int(past)
    mask = None if attention_mask is None else _check_mask(attention_mask, B, T, past, slots).to(x.device)
    binary = None if mask is None or mask.dtype == torch.bool else ((mask == 0) | (mask == 1)).all()
    mask = None if mask is None else mask.bool()
    if position_ids is not None:
        position_ids = _check_ids(position_ids, B, T).to(x.device)
        if segments is not None:
            check_increasing(position_ids, segments)
    elif segments is not None:
        positions = segment_positions(segments)
        return Layout(positions, positions, in_order=True, segment_ids=segments)
    if traced:
        if binary is not None:
            torch._assert_async(binary, NOT_BINARY)
        return _traced_positions(x, past, slots, mask, position_ids, segments, cached)
    return _eager_positions(x, int(past), mask, binary, position_ids, segments)


def draw_positions(
    limit: int, x: Tensor, past: int | Tensor, slots: int, attention_mask: Tensor | None, training: bool
) -> Layout:
    """Random positions below `limit` of the tokens x (B, T, C).

    In training they come from torch's default generator. In evaluation they come from a fixed seed, so that the same
    batch has the same output.
    """
    B, T = x.shape[:2]
    if is_traced(x):
        raise ValueError(
            "random_positions cannot be drawn in a compiled graph. Compile the layers alone, with "
            "LongfireModel.compile_layers()."
        )
    if int(past):
        raise ValueError(
            "with random_positions, tokens cannot be added to a cache: the positions of those in it were drawn for a "
            "shorter sequence. Pass use_cache=False (longfire generate --cache none)."
        )
    check_range(T, limit)
    mask = None if attention_mask is None else _check_mask(attention_mask, B, T, 0, slots)[:, :T].bool().to(x.device)
    generator = None if training else torch.Generator(x.device).manual_seed(EVALUATION_SEED)
    drawn = random_positions(B, T, limit, mask=mask, generator=generator, device=x.device)
    if attention_mask is None:
        return Layout(drawn, drawn)  # nothing to check, no device synchronisation
    return find_positions(x, past, slots, attention_mask, drawn)


def is_traced(x: Tensor) -> bool:
    """Whether a compiled or captured graph is being recorded, where values cannot be read."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def count_positions(mask: Tensor) -> Tensor:
    """Mask (B, S) → positions (B, S): kept tokens count up from 0, and everything after the last one keeps counting."""
    after_last = mask.long().flip(-1).cumsum(-1).flip(-1) == 0
    skipped = (~mask & ~after_last).long().cumsum(-1)
    return (torch.arange(mask.shape[-1], device=mask.device) - skipped).clamp(min=0)


def _eager_positions(
    x: Tensor, past: int, mask: Tensor | None, binary: Tensor | None, ids: Tensor | None, segments: Tensor | None
) -> Layout:
    """Where values can be read: checked once, for all layers."""
    total = past + x.shape[1]
    index = torch.arange(total, device=x.device)
    if mask is None and ids is None:  # nothing to check, no device synchronisation
        return Layout(index[past:], index, in_order=True)
    masked = mask is not None
    if mask is not None:
        mask = mask[:, :total]
    elif ids is not None and past:
        mask = index >= total - 1 - ids[:, -1:]  # the last position reveals the padding
    keys = index if mask is None else count_positions(mask)
    queries = keys[..., past:]
    true = index.new_ones((), dtype=torch.bool)
    checks = [true if binary is None else binary, true if mask is None else mask.all(), true, true, true, true]
    found, counted = segments, index
    if ids is not None:
        kept = None if mask is None else mask[:, past:]
        if kept is not None and masked:
            ids = torch.where(kept, ids, queries)  # libraries number padding differently
        found = segments_of(ids, kept) if segments is None else segments
        checks[2:5] = [(ids == index[past:]).all(), (ids == queries).all(), (found == 0).all()]
        found = found if kept is None else found + (kept.cumsum(-1) > 0)  # left padding is in no document
        counted = segment_positions(found)
        checks[5] = (ids == counted if kept is None else (ids == counted) | ~kept).all()
    # one transfer to the host
    is_binary, all_kept, in_order, continues, one_document, counts_each = torch.stack(checks).tolist()
    if not is_binary:
        raise ValueError(f"{NOT_BINARY}. To separate packed documents, use position_ids that restart in each.")
    if ids is not None and past and not continues:
        row = int((ids != queries).any(-1).int().argmax())
        raise ValueError(
            f"position_ids do not continue the {past} tokens in the cache: in sequence {row} they are "
            f"{_preview(ids[row])}, but the attention mask puts these tokens at "
            f"{_preview(queries.expand_as(ids)[row])}. Pad prompts on the left and omit position_ids, or run without "
            f"a cache."
        )
    if ids is not None and not one_document:
        where = counted if counts_each else ids  # they may differ in padding
        return Layout(where, where, None if all_kept else mask, counts_each, segment_ids=found)
    if all_kept and in_order:
        return Layout(index[past:], index, in_order=True)
    if ids is not None and not past:
        queries = keys = ids
    return Layout(queries, keys, None if all_kept else mask)


def _traced_positions(
    x: Tensor,
    past: int | Tensor,
    slots: int,
    mask: Tensor | None,
    ids: Tensor | None,
    segments: Tensor | None,
    cached: bool,
) -> Layout:
    """In a compiled or captured graph, where values cannot be read."""
    T = x.shape[1]
    index = torch.arange(slots, device=x.device)
    queries = torch.arange(T, device=x.device) + past
    in_order = isinstance(past, int) and slots == past + T
    if mask is not None:
        mask = torch.cat([mask, mask.new_ones(len(mask), slots - mask.shape[1])], dim=1)
        keys = count_positions(mask)
        padding = (mask.long().cumsum(-1) == 0).sum(-1) if in_order else None
        if padding is not None:
            no_holes = ((index - padding[:, None] == keys) | ~mask).all()
            torch._assert_async(no_holes, "in a compiled graph, attention_mask may mask only the ends of a sequence")
        if ids is not None:
            agree = ((ids == keys[:, queries]) | ~mask[:, queries]).all()
            torch._assert_async(agree, "in a compiled graph, position_ids must number the tokens of attention_mask")
        return Layout(keys[:, queries], keys, mask, padding=padding)
    if ids is None:
        return Layout(queries, index, in_order=in_order)
    if isinstance(past, int) and past == 0:
        if not cached:
            return Layout(ids, ids, segment_ids=segments_of(ids, None) if segments is None else segments)
        torch._assert_async(strictly_increase(ids, None), f"{PACKED}, which a cache would mix up later")
        return Layout(ids, ids)
    if T > 1:
        raise ValueError(
            "in a compiled graph, several position_ids cannot be checked against a cache. Omit them, or pass an "
            "attention mask for padding."
        )
    padding = queries[-1] - ids[:, -1:]
    return Layout(ids, (index - padding).clamp(min=0), index >= padding)


def _checked_by_query(mask: Tensor, T: int) -> Tensor:
    """A mask (B, 1, T, S) with a row for each query."""
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(
            f"a 4-D attention mask must be boolean (True: attend) or floating point (added to the logits), not "
            f"{mask.dtype}. Convert it with attention_mask.bool()."
        )
    if mask.shape[2] != T:
        raise ValueError(
            f"a 4-D attention mask must be (B, 1, T, S) with a row for each of the {T} queries, not "
            f"{tuple(mask.shape)}: a single row would let tokens see later ones. For padding, pass "
            f"(B, tokens so far)."
        )
    return mask


def _check_mask(mask: Tensor, B: int, T: int, past: int | Tensor, slots: int) -> Tensor:
    if mask.ndim == 4:
        if mask.is_floating_point() or mask.shape[1:3] != (1, 1):
            raise ValueError(
                f"attn_implementation='longfire' takes an attention mask of shape (B, tokens so far), 1 for tokens and "
                f"0 for padding, not {tuple(mask.shape)} of {mask.dtype}. 'sdpa' and 'eager' support (B, 1, T, S): "
                f"model.set_attn_implementation('sdpa')."
            )
        mask = mask[:, 0, 0]  # of keys alone
    fits = mask.ndim == 2 and mask.shape[0] == B
    if isinstance(past, int) and not (fits and mask.shape[1] in (past + T, slots)):
        raise ValueError(
            f"attention_mask must have shape (B, tokens so far) = ({B}, {past + T}), 1 for tokens and 0 for padding, "
            f"not {tuple(mask.shape)}. Cached tokens count."
        )
    return mask


def _check_ids(ids: Tensor, B: int, T: int) -> Tensor:
    ids = ids.unsqueeze(0) if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.shape[0] not in (1, B) or ids.shape[1] != T:
        raise ValueError(f"position_ids must have shape (B, T) = ({B}, {T}), not {tuple(ids.shape)}.")
    return ids.expand(B, T)


def _preview(positions: Tensor) -> str:
    first = positions[:4].tolist()
    return f"{first}…" if len(positions) > 4 else str(first)
