"""One validated call of attention.

Dimensions: B batch, H query heads, G key heads, T queries, S keys, D head size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import (
    can_check_values,
    check_pair,
    check_same_device,
    check_shape,
    last_positions,
)
from longfire.engines.layout import (
    OUT_OF_ORDER,
    SEGMENTS_OUT_OF_ORDER,
    Span,
    check_causal,
    check_segment_ids,
    check_window,
    first_decrease,
    first_return,
    positions_in_order,
    segment_positions,
    segments_in_order,
    visible,
)
from longfire.engines.prepared import PreparedBias
from longfire.engines.value_checks import holds

Bias = PositionEncoding | PreparedBias | Tensor | None


@dataclass(frozen=True)
class Request:
    """The arguments of `longfire.attention`."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, D)
    bias: Bias
    q_positions: Tensor | None
    k_positions: Tensor | None
    causal: bool
    key_mask: Tensor | None
    dropout_p: float
    scale: float | None
    window: int | None = None
    segment_ids: Tensor | None = None  # (B, S), of the keys
    q_segment_ids: Tensor | None = None  # (B, T)
    """Segments of the queries, for callers that split them. None: queries are the last T of the keys."""
    position_limit: int | None = None
    """The caller guarantees that all positions are below this: a compiled graph cannot read them."""

    def __post_init__(self) -> None:
        self._check_tensors()
        self._check_bias()
        self._check_positions()
        self._check_mask()
        self._check_layout()
        if not 0.0 <= self.dropout_p < 1.0:
            raise ValueError(f"dropout_p must be at least 0 and below 1, not {self.dropout_p!r}.")
        scale = self.scale
        if scale is not None and not (isinstance(scale, float | int) and math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be a Python number above 0 and finite, or None (D^−½), not {scale!r}.")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, T, S."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def scaling(self) -> float:
        """The factor of q·kᵀ."""
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def in_order(self) -> bool:
        """Keys count up from 0 in each segment and queries are the last T of them, so positions need not be read.

        Either no positions were passed, or the prepared bias guarantees it.
        """
        if isinstance(self.bias, PreparedBias):
            return self.bias.in_order and (self.segment_ids is None or self.bias.segment_ids is not None)
        return self.q_positions is None

    @property
    def has_bias(self) -> bool:
        """Whether anything is added to the logits."""
        encoding = self.encoding
        return self.bias is not None if encoding is None else encoding.has_bias

    @property
    def encoding(self) -> PositionEncoding | None:
        """The encoding that computes the bias; None for a tensor or no bias."""
        if isinstance(self.bias, PreparedBias):
            return self.bias.encoding
        return self.bias if isinstance(self.bias, PositionEncoding) else None

    @property
    def masks_causally(self) -> bool:
        """Whether causality hides any key: from a single last query it hides none."""
        return self.causal and not (self.in_order and self.shape[2] == 1)

    @property
    def hides_keys(self) -> bool:
        """Whether a key may be hidden from a query, other than by the bias."""
        limits = self.window, self.segment_ids, self.key_mask
        return self.masks_causally or any(limit is not None for limit in limits)

    @property
    def may_be_blind(self) -> bool:
        """Whether some query may see no key."""
        far = (self.causal or self.window is not None) and not self.in_order
        return self.key_mask is not None or far or isinstance(self.bias, Tensor)

    @property
    def positions(self) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys."""
        if isinstance(self.bias, PreparedBias):
            return self.bias.q_positions, self.bias.k_positions
        if self.q_positions is not None and self.k_positions is not None:
            return self.q_positions, self.k_positions
        _, _, T, S = self.shape
        if self.segment_ids is not None:
            positions = segment_positions(self.segment_ids)
            return positions[:, S - T :], positions
        return last_positions(T, S, self.q.device), last_positions(S, S, self.q.device)

    @property
    def spans(self) -> tuple[Span, Span]:
        """Positions and segments of queries and keys."""
        (q_positions, k_positions), ids, q_ids = self.positions, self.segment_ids, self.q_segment_ids
        if ids is not None and q_ids is None:
            _, _, T, S = self.shape
            q_ids = ids if T == S else ids[:, S - T :]  # what is cached by tensor stays known
        return Span(q_positions, q_ids), Span(k_positions, ids)

    def part(self, q: Tensor, bias: Bias, start: int, keys: slice, spans: tuple[Span, Span] | None = None) -> "Request":
        """The request of some queries, from number `start` on, and a range of keys outside of which they see none.

        `q` are these queries, and `bias` is theirs, for all keys; `spans` are this request's, if they are known.
        """
        (_, _, T, S), stop = self.shape, start + q.shape[2]
        in_order = self.in_order and keys.start == 0 and keys.stop == S - T + stop  # they are the last of these keys
        queries, all_keys = self.spans if spans is None else spans
        queries, seen = queries[start:stop], all_keys[keys]
        if isinstance(bias, PreparedBias):
            bias = bias.part(queries.positions, seen.positions, keys, in_order)
        elif isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] > 1:
            bias = bias[..., keys]
        return replace(
            self,
            q=q,
            k=self.k[:, :, keys],
            v=self.v[:, :, keys],
            bias=bias,
            q_positions=None if in_order else queries.positions,
            k_positions=None if in_order else seen.positions,
            key_mask=None if self.key_mask is None else self.key_mask[:, keys],
            segment_ids=seen.segment_ids,
            q_segment_ids=queries.segment_ids,
        )

    def dense_bias(self) -> Tensor | None:
        """The bias as a 4-D tensor that broadcasts to (B, H, T, S)."""
        bias = self.bias
        if isinstance(bias, PositionEncoding):
            bias, name = bias(*self.positions), type(bias).__name__
            if bias is not None:
                if bias.ndim not in (3, 4) or tuple(bias.shape[-2:]) != self.shape[2:]:
                    raise ValueError(f"{name}.bias must be (H, T, S) or (B, H, T, S), not {tuple(bias.shape)}.")
                self.check_heads(bias.shape[-3], name)
        elif isinstance(bias, PreparedBias):
            bias = bias.dense()
        return None if bias is None else bias[(None,) * (4 - bias.ndim)]

    def visible(self) -> Tensor | None:
        """Which keys each query may see, broadcasting to (B, H, T, S); None if all."""
        seen = None
        if self.masks_causally or self.window is not None or self.segment_ids is not None:
            seen = visible(*self.spans, self.masks_causally, self.window)
        if seen is not None:
            seen = seen.unsqueeze(-3)  # (…, 1, T, S)
        if self.key_mask is not None:
            kept = self.key_mask[:, None, None, :]
            seen = kept if seen is None else seen & kept
        return seen

    def check_order(self) -> None:
        """Refuse segments that return, and key positions that do not increase: masks compare both.

        Separate from the other checks because it waits for the GPU once per tensor: a model checks once for all layers.
        """
        bias, ids, mask = self.bias, self.segment_ids, self.key_mask
        if ids is not None and not holds(segments_in_order, ids, message=SEGMENTS_OUT_OF_ORDER):
            raise ValueError(f"{SEGMENTS_OUT_OF_ORDER}{first_return(ids)}. Number the documents of a row 0, 1, 2, ….")
        if self.in_order:
            return
        k_positions = self.positions[1]
        if isinstance(bias, PreparedBias) and bias.padding is not None:
            if mask is None:
                raise ValueError("the bias was prepared with padding: pass the key_mask that hides it.")
            if not (can_check_values(k_positions) and can_check_values(mask)):
                return  # guaranteed by the caller
        if not holds(positions_in_order, k_positions, mask, ids, message=OUT_OF_ORDER):
            where = first_decrease(k_positions, mask, ids, self.shape[0])
            within = "" if ids is None else " within each segment"
            apart = "Pass segment_ids to keep" if ids is None else "Number them differently in segment_ids to keep"
            raise ValueError(
                f"{OUT_OF_ORDER}{within}{where}: documents that share a row would see each other. {apart} them apart, "
                f"hide padding with key_mask, and sort k and v by position."
            )

    def _check_tensors(self) -> None:
        for name in "qkv":
            tensor = getattr(self, name)
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}.")
            if tensor.ndim != 4:
                raise ValueError(f"{name} must have shape (B, heads, length, D), not {tuple(tensor.shape)}.")
            if not tensor.is_floating_point():
                raise TypeError(f"{name} must be floating point, not {tensor.dtype}.")
            for what in ("dtype", "device"):
                expected, actual = getattr(self.q, what), getattr(tensor, what)
                if actual != expected:
                    raise ValueError(f"{name} must have the {what} of q, {expected}, not {actual}.")
        q, k, v = (tuple(t.shape) for t in (self.q, self.k, self.v))
        if k != v:
            raise ValueError(f"k and v must have the same shape, not {k} and {v}.")
        if q[0] != k[0] or q[3] != k[3]:
            raise ValueError(f"q {q} and k {k} must agree in batch and head size; both are (B, heads, length, D).")
        if k[1] == 0 or q[1] % k[1]:
            raise ValueError(f"the number of query heads must be a multiple of the {k[1]} key heads, not {q[1]}.")

    def _check_positions(self) -> None:
        B, _, T, S = self.shape
        if (self.q_positions is None) != (self.k_positions is None):
            raise ValueError("pass both q_positions and k_positions, or neither.")
        last = self.segment_ids is not None and self.q_segment_ids is None
        if T > S and (self.in_order or last):
            remedy = "with segment_ids, they always are" if last else "otherwise pass q_positions and k_positions"
            raise ValueError(
                f"there are {T} queries but only {S} keys. By default, queries are the last T of the keys; {remedy}."
            )
        if self.in_order and not isinstance(self.bias, PreparedBias):
            return
        prepared = "the prepared bias's " if isinstance(self.bias, PreparedBias) else ""
        q_positions, k_positions = self.positions
        check_pair(q_positions, k_positions)
        check_shape(q_positions, f"{prepared}q_positions", B, T)
        check_shape(k_positions, f"{prepared}k_positions", B, S)
        check_same_device(f"{prepared}positions are", q_positions, "q is", self.q)

    def _check_bias(self) -> None:
        if self.encoding is not None and not self.causal:
            self.encoding.refuse_causal_only()
        if isinstance(self.bias, PositionEncoding):
            self.bias.refuse_without_bias()
            self.check_heads(getattr(self.bias, "num_heads", self.q.shape[1]), type(self.bias).__name__)
        elif isinstance(self.bias, PreparedBias):
            self.bias.check_same(self.q_positions, self.k_positions, self.key_mask)
            self.bias.check_layout(self.causal, self.window, self.segment_ids)
            if (heads := self.bias.heads) is not None:
                self.check_heads(heads, "the prepared bias")
        elif isinstance(self.bias, Tensor):
            self._check_bias_tensor(self.bias)
        elif self.bias is not None:
            raise TypeError(
                f"bias must be a PositionEncoding, a PreparedBias, a tensor or None, not {type(self.bias).__name__}."
            )

    def check_heads(self, heads: int, name: str) -> None:
        if heads != self.q.shape[1]:
            if heads == self.q.shape[2]:
                raise ValueError(
                    f"q {tuple(self.q.shape)} is not (B, H, T, D) for {heads} heads: q.transpose(1, 2) is."
                )
            raise ValueError(
                f"{name} has {heads} head{'s' * (heads != 1)}, but q {tuple(self.q.shape)} has {self.q.shape[1]} "
                f"(B, H, T, D). Build the encoding with q's number of heads. If heads are split across "
                f"devices, pass each device its slice of the bias as a tensor."
            )

    def _check_bias_tensor(self, bias: Tensor) -> None:
        if not bias.is_floating_point():
            raise TypeError(
                f"bias must be floating point, not {bias.dtype}: it is added to the logits. To hide keys, use key_mask "
                f"or causal, or a bias of 0 and −inf."
            )
        check_same_device("bias is", bias, "q", self.q)
        try:
            fits = torch.broadcast_shapes(bias.shape, self.shape) == self.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(f"bias of shape {tuple(bias.shape)} does not broadcast to (B, H, T, S) = {self.shape}.")

    def _check_mask(self) -> None:
        if self.key_mask is None:
            return
        B, _, _, S = self.shape
        if not isinstance(self.key_mask, Tensor):
            raise TypeError(f"key_mask must be a bool tensor, not {type(self.key_mask).__name__}.")
        if self.key_mask.dtype != torch.bool:
            convert = "mask == 0 if it is added to the logits" if self.key_mask.is_floating_point() else ".bool()"
            raise TypeError(
                f"key_mask must be bool (True to keep), not {self.key_mask.dtype}: convert it with {convert}."
            )
        if tuple(self.key_mask.shape) != (B, S):
            raise ValueError(f"key_mask must have shape (B, S) = {(B, S)}, not {tuple(self.key_mask.shape)}.")
        check_same_device("key_mask is", self.key_mask, "q", self.q)

    def _check_layout(self) -> None:
        check_causal(self.causal)
        check_window(self.window)
        if self.q_segment_ids is not None and self.segment_ids is None:
            raise ValueError("q_segment_ids need segment_ids, those of the keys.")
        B, _, T, S = self.shape
        for name, ids, length in (("segment_ids", self.segment_ids, S), ("q_segment_ids", self.q_segment_ids, T)):
            if ids is not None:
                check_segment_ids(ids, name, B, length, self.q)


def split_bias(bias: Bias, rows: int, chunks: int) -> Sequence[Bias]:
    """The bias of every chunk of this many queries, for all keys."""
    if isinstance(bias, PreparedBias) and bias.tensor is not None:
        return [replace(bias, tensor=piece) for piece in bias.tensor.split(rows, dim=-2)]
    if isinstance(bias, Tensor):
        pieces = torch.atleast_2d(bias).split(rows, dim=-2)
        return pieces if len(pieces) == chunks else [pieces[0]] * chunks  # one row for all queries
    return [bias] * chunks
