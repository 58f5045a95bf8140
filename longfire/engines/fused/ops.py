"""The kernels as torch operators, with gradients, that can be traced and compiled."""

import torch
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.engines.fused.backward import backward
from longfire.engines.fused.bias_kernels import empty_bias, expand
from longfire.engines.fused.forward import forward
from longfire.engines.fused.tiles import Call, ExpandedBias, Segments
from longfire.engines.fused.zones import Zones

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _segments(tiles: Tensor | None, segments: Tensor | None) -> Segments | None:
    return None if tiles is None or segments is None else Segments(tiles, segments)


def _zones(keys: int, first: int, smooth: int, window: int, causal: bool) -> Zones:
    """Zones from an operator's integers; a `smooth` or `window` of 0 means None."""
    return Zones(keys, first, smooth or None, window or None, causal)


def _expand_bias(
    samples: Tensor, keys: int, first: int, smooth: int, window: int, causal: bool, relative: bool, scale: float
) -> Four:
    """Near biases, middle nodes, far nodes and references (H, …), from samples (A, H, E)."""
    with torch.cuda.device_of(samples):
        return expand(samples, _zones(keys, first, smooth, window, causal), relative, scale)


def _expand_bias_fake(
    samples: Tensor, keys: int, first: int, smooth: int, window: int, causal: bool, relative: bool, scale: float
) -> Four:
    return tuple(empty_bias(samples, _zones(keys, first, smooth, window, causal), relative))  # type: ignore[return-value]


expand_bias = Operator("longfire::expand_bias", _expand_bias, _expand_bias_fake)


def _attention(
    q: Tensor, k: Tensor, v: Tensor,  # (B, H, T, D), and (B, G, S, D) twice
    samples: Tensor,  # (A, H, E), H of both sides; the only ones of the bias to receive gradients
    near: Tensor, middle: Tensor, far: Tensor, reference: Tensor,  # from `expand_bias`
    key_mask: Tensor | None, shift: Tensor | None, seed: Tensor | None,  # (B, S), (B,), (1,)
    tiles: Tensor | None, segments: Tensor | None,  # of a `SegmentTable`
    keys: int, first: int, smooth: int, window: int, causal: bool, scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out (B, H, T, D), and the log-sum-exp that backward needs (B, H, T)."""
    bias = ExpandedBias(near, middle, far, reference)
    where = _zones(keys, first, smooth, window, causal)
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
    keys: int, first: int, smooth: int, window: int, causal: bool, scale: float, dropout_p: float,
    learned: bool,
) -> Four:  # fmt: skip
    """Gradients of q, k, v and, if `learned`, of the samples."""
    bias = ExpandedBias(near, middle, far, reference)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    where = _zones(keys, first, smooth, window, causal)
    with torch.cuda.device_of(q):
        call = Call(q, k, v, bias, key_mask, shift, seed, _segments(tiles, segments), where, scale, dropout_p)
        return backward(call, dout, out, lse, learned)


def _attention_backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Four:
    *numbers, _scale, _dropout_p, learned = rest[11:]
    where = _zones(*numbers)  # type: ignore[arg-type]
    shape = (where.row_nodes, where.sides * q.shape[1], where.distance_nodes) if learned else (0,)
    grouped = q.shape[1] != k.shape[1]  # then these are sums over query heads, which are contiguous
    dk, dv = (t.new_empty(t.shape) if grouped else torch.empty_like(t) for t in (k, v))
    return torch.empty_like(q), dk, dv, q.new_empty(shape, dtype=torch.float32)


fused_attention_backward = Operator("longfire::fused_attention_backward", _attention_backward, _attention_backward_fake)


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _samples, *others = inputs
    tensors, numbers = others[:9], others[9:]
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *tensors)  # type: ignore[arg-type]
    ctx.numbers = numbers  # type: ignore[attr-defined]


def _backward(
    ctx: torch.autograd.function.FunctionCtx, dout: Tensor | None, _dlse: object
) -> tuple[Tensor | None, ...]:
    others: tuple[Tensor | None, ...] = (None,) * 16
    if dout is None:
        return None, None, None, None, *others
    learned = ctx.needs_input_grad[3]  # type: ignore[attr-defined]
    dq, dk, dv, dsamples = fused_attention_backward(dout, *ctx.saved_tensors, *ctx.numbers, learned)  # type: ignore[attr-defined]
    return dq, dk, dv, dsamples if learned else None, *others


fused_attention = Operator("longfire::fused_attention", _attention, _attention_fake, _setup, _backward)
