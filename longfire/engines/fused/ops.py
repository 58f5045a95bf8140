"""The kernels as torch operators: they trace, compile, and have gradients."""

import torch
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.engines.fused.geometry import Geometry
from longfire.engines.fused.launch import Call, buffers, expanded, sizes_per_head

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def geometry_of(keys: int, first: int, smooth: int) -> Geometry:
    """From what an operator can take: 0 stands for None."""
    return Geometry(keys, first, smooth or None)


def _expand_bias(values: Tensor, keys: int, first: int, smooth: int, relative: bool, scale: float) -> Four:
    """Near biases, middle nodes, far nodes and references (H, …), of values (A, H, E)."""
    with torch.cuda.device_of(values):
        return expanded(values, geometry_of(keys, first, smooth), relative, scale)


def _expand_bias_fake(values: Tensor, keys: int, first: int, smooth: int, relative: bool, scale: float) -> Four:
    return buffers(values, sizes_per_head(geometry_of(keys, first, smooth)), relative)


expand_bias = Operator("longfire::expand_bias", _expand_bias, _expand_bias_fake)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    values: Tensor,
    near: Tensor,
    middle: Tensor,
    far: Tensor,
    reference: Tensor,
    key_mask: Tensor | None,
    shift: Tensor | None,
    seed: Tensor | None,
    keys: int,
    first: int,
    smooth: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Out (B, H, T, D), and what backward needs of the softmax (B, H, T).

    `near` … `reference` are what `expand_bias` made of `values`; gradients go to `values` alone.
    """
    geometry = geometry_of(keys, first, smooth)
    bias = near, middle, far, reference
    with torch.cuda.device_of(q):
        return Call(q, k, v, bias, key_mask, shift, seed, geometry, scale, dropout_p).forward()


def _attention_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    near: Tensor,
    middle: Tensor,
    far: Tensor,
    reference: Tensor,
    key_mask: Tensor | None,
    shift: Tensor | None,
    seed: Tensor | None,
    keys: int,
    first: int,
    smooth: int,
    scale: float,
    dropout_p: float,
    learned: bool,
) -> Four:
    """Gradients of q, k, v and, if `learned`, of the values."""
    geometry = geometry_of(keys, first, smooth)
    bias = near, middle, far, reference
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    with torch.cuda.device_of(q):
        return Call(q, k, v, bias, key_mask, shift, seed, geometry, scale, dropout_p).backward(dout, out, lse, learned)


def _attention_backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, near: Tensor, *rest: object
) -> Four:
    keys, first, smooth, _scale, _dropout_p, learned = rest[6:]
    g = geometry_of(keys, first, smooth)  # type: ignore[arg-type]
    shape = (g.row_nodes, q.shape[1], g.distance_nodes) if learned else (0,)
    grouped = q.shape[1] != k.shape[1]  # then sums over query heads, which are contiguous
    dk, dv = (t.new_empty(t.shape) if grouped else torch.empty_like(t) for t in (k, v))
    return torch.empty_like(q), dk, dv, q.new_empty(shape, dtype=torch.float32)


fused_attention_backward = Operator("longfire::fused_attention_backward", _attention_backward, _attention_backward_fake)


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _values, near, middle, far, reference, key_mask, shift, seed, *numbers = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, near, middle, far, reference, key_mask, shift, seed)  # type: ignore[arg-type]
    ctx.numbers = numbers  # type: ignore[attr-defined]


def _backward(
    ctx: torch.autograd.function.FunctionCtx, dout: Tensor | None, _dlse: object
) -> tuple[Tensor | None, ...]:
    nothing: tuple[Tensor | None, ...] = (None,) * 12
    if dout is None:
        return None, None, None, None, *nothing
    learned = ctx.needs_input_grad[3]  # type: ignore[attr-defined]
    dq, dk, dv, dvalues = fused_attention_backward(dout, *ctx.saved_tensors, *ctx.numbers, learned)  # type: ignore[attr-defined]
    return dq, dk, dv, dvalues if learned else None, *nothing


fused_attention = Operator("longfire::fused_attention", _attention, _attention_fake, _setup, _backward)
