"""The kernels as torch operators, with gradients, that can be traced and compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.engines.fused import lookup
from longfire.engines.fused.backward import backward
from longfire.engines.fused.bias_kernels import empty_bias, expand
from longfire.engines.fused.forward import forward
from longfire.engines.fused.layout import LookupLayout
from longfire.engines.fused.tiles import Call, ExpandedBias, Segments
from longfire.engines.fused.zones import Zones

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _segments(tiles: Tensor | None, segments: Tensor | None) -> Segments | None:
    return None if tiles is None or segments is None else Segments(tiles, segments)


def _zones(keys: int, first: int, smooth: int, window: int, causal: bool, by_distance: bool) -> Zones:
    """Zones from an operator's integers; a `smooth` or `window` of 0 means None."""
    return Zones(keys, first, smooth or None, window or None, causal, by_distance)


def _expand_bias(
    samples: Tensor,
    keys: int, first: int, smooth: int, window: int, causal: bool, by_distance: bool, relative: bool, scale: float,
) -> Four:  # fmt: skip
    """Near biases, middle nodes, far nodes and references (H, …), from samples (A, H, E)."""
    with torch.cuda.device_of(samples):
        return expand(samples, _zones(keys, first, smooth, window, causal, by_distance), relative, scale)


def _expand_bias_fake(samples: Tensor, *numbers: Any) -> Four:
    *where, relative, _scale = numbers
    return tuple(empty_bias(samples, _zones(*where), relative))  # type: ignore[return-value]


expand_bias = Operator("longfire::expand_bias", _expand_bias, _expand_bias_fake)


def _attention(
    q: Tensor, k: Tensor, v: Tensor,  # (B, H, T, D), and (B, G, S, D) twice
    samples: Tensor,  # (A, H, E), H of both sides; the only ones of the bias to receive gradients
    near: Tensor, middle: Tensor, far: Tensor, reference: Tensor,  # from `expand_bias`
    key_mask: Tensor | None, shift: Tensor | None, seed: Tensor | None,  # (B, S), (B,), (1,)
    tiles: Tensor | None, segments: Tensor | None,  # of a `SegmentTable`
    keys: int, first: int, smooth: int, window: int, causal: bool, by_distance: bool, scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out (B, H, T, D), and the log-sum-exp that backward needs (B, H, T)."""
    bias = ExpandedBias(near, middle, far, reference)
    where = _zones(keys, first, smooth, window, causal, by_distance)
    with torch.cuda.device_of(q):
        return forward(Call(q, k, v, bias, key_mask, shift, seed, _segments(tiles, segments), where, scale, dropout_p))


def _attention_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _attention_backward(
    dout: Tensor,  # (B, H, T, D)
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    near: Tensor, middle: Tensor, far: Tensor, reference: Tensor,
    key_mask: Tensor | None, shift: Tensor | None, seed: Tensor | None,
    tiles: Tensor | None, segments: Tensor | None,
    keys: int, first: int, smooth: int, window: int, causal: bool, by_distance: bool, scale: float, dropout_p: float,
    learned: bool,
) -> Four:  # fmt: skip
    """Gradients of q, k, v and, if `learned`, of the samples."""
    bias = ExpandedBias(near, middle, far, reference)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    where = _zones(keys, first, smooth, window, causal, by_distance)
    with torch.cuda.device_of(q):
        call = Call(q, k, v, bias, key_mask, shift, seed, _segments(tiles, segments), where, scale, dropout_p)
        return backward(call, dout, out, lse, learned)


def _attention_backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Four:
    *numbers, _scale, _dropout_p, learned = rest[11:]
    where = _zones(*numbers)  # type: ignore[arg-type]
    shape = (where.row_nodes, where.sides * q.shape[1], where.distance_nodes) if learned else (0,)
    dk, dv = _empty_key_grads(q, k, v)
    return torch.empty_like(q), dk, dv, q.new_empty(shape, dtype=torch.float32)


def _empty_key_grads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    grouped = q.shape[1] != k.shape[1]  # then these are sums over query heads, which are contiguous
    dk, dv = (t.new_empty(t.shape) if grouped else torch.empty_like(t) for t in (k, v))
    return dk, dv


fused_attention_backward = Operator("longfire::fused_attention_backward", _attention_backward, _attention_backward_fake)


def _setup_of(tensors: int) -> Callable[..., None]:
    """The `setup` of an operator of q, k, v, samples, this many more tensors, and numbers."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, _samples, *others = inputs
        out, lse = output
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *others[:tensors])
        ctx.numbers = others[tensors:]

    return setup


def _backward_by(operator: Operator) -> Callable[..., tuple[Tensor | None, ...]]:
    """The `backward` of an operator with such a `setup`."""

    def backward(ctx: Any, dout: Tensor | None, _dlse: object) -> tuple[Tensor | None, ...]:
        others = (None,) * (len(ctx.needs_input_grad) - 4)
        if dout is None:
            return None, None, None, None, *others
        learned = ctx.needs_input_grad[3]
        dq, dk, dv, dsamples = operator(dout, *ctx.saved_tensors, *ctx.numbers, learned)
        return dq, dk, dv, dsamples if learned else None, *others

    return backward


fused_attention = Operator(
    "longfire::fused_attention", _attention, _attention_fake, _setup_of(9), _backward_by(fused_attention_backward)
)


# --- any positions --------------------------------------------------------------------------------------------------


def _lookup_call(q: Tensor, k: Tensor, v: Tensor, table: Tensor, *rest: Any) -> lookup.LookupCall:
    key_mask, seed, window, causal, scale, dropout_p = rest[6:]
    layout = LookupLayout(table.shape[1], *rest[:6])
    return lookup.LookupCall(q, k, v, table, layout, key_mask, seed, window or None, causal, scale, dropout_p)


def _lookup(
    q: Tensor, k: Tensor, v: Tensor,  # (B, H, T, D), and (B, G, S, D) twice
    samples: Tensor,  # (H, E), H of both sides; receives the gradient
    table: Tensor,  # the same, detached
    queries: Tensor, keys: Tensor, query_segments: Tensor | None, key_segments: Tensor | None,  # of a LookupLayout
    seen_by_queries: Tensor, seeing_keys: Tensor,
    key_mask: Tensor | None, seed: Tensor | None,  # (B, S), (1,)
    window: int, causal: bool, scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `fused_attention`, at any positions."""
    where = queries, keys, query_segments, key_segments, seen_by_queries, seeing_keys
    with torch.cuda.device_of(q):
        call = _lookup_call(q, k, v, table, *where, key_mask, seed, window, causal, scale, dropout_p)
        return lookup.forward(call)


def _lookup_backward(
    dout: Tensor,  # (B, H, T, D)
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor,
    queries: Tensor, keys: Tensor, query_segments: Tensor | None, key_segments: Tensor | None,
    seen_by_queries: Tensor, seeing_keys: Tensor, key_mask: Tensor | None, seed: Tensor | None,
    window: int, causal: bool, scale: float, dropout_p: float,
    learned: bool,
) -> Four:  # fmt: skip
    """Gradients of q, k, v and, if `learned`, of the samples."""
    where = queries, keys, query_segments, key_segments, seen_by_queries, seeing_keys
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    with torch.cuda.device_of(q):
        call = _lookup_call(q, k, v, table, *where, key_mask, seed, window, causal, scale, dropout_p)
        return lookup.backward(call, dout, out, lse, learned)


def _lookup_backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor, *rest: object
) -> Four:
    dk, dv = _empty_key_grads(q, k, v)
    return torch.empty_like(q), dk, dv, torch.empty_like(table) if rest[-1] else table.new_empty(0)


lookup_attention_backward = Operator("longfire::lookup_attention_backward", _lookup_backward, _lookup_backward_fake)
lookup_attention = Operator(
    "longfire::lookup_attention", _lookup, _attention_fake, _setup_of(9), _backward_by(lookup_attention_backward)
)
