"""FIRE's bias as one kernel: which FIREs it supports, and the torch operators. `FIRE.bias` is the specification."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longfire.custom_ops import INTERPRETED, Operator, has_hooks, is_plain_linear
from longfire.encodings.base import EncodingLinear
from longfire.encodings.fire import FIRE, is_later
from longfire.encodings.kernels.fire_kernels import Options, Parameters, bias_backward, bias_forward, empty_bias
from longfire.encodings.positions import is_transformed

WIDEST = 64
"""Limit of hidden width and heads: each program computes the whole MLP."""

serve_cpu = False
"""For tests: also serve positions on the CPU, where Triton's interpreter runs the kernels."""


def serves(fire: FIRE, q_positions: Tensor) -> bool:
    """Whether `fire_bias` can compute this encoding's bias."""
    if type(fire) is not FIRE or not (q_positions.is_cuda or (serve_cpu and INTERPRETED)):
        return False
    layers = list(fire.mlp)
    linears = [layer for layer in layers[0::2] if is_plain_linear(layer, EncodingLinear)]
    activations = layers[1::2]
    if len(linears) not in (2, 3) or len(linears) != len(layers[0::2]):
        return False
    tensors: list[Tensor] = [tensor for linear in linears for tensor in (linear.weight, linear.bias)]
    tensors += [getattr(fire, name) for name in ("c", "L_multiplier", "init_L") if hasattr(fire, name)]
    return (
        max(max(linear.weight.shape) for linear in linears) <= WIDEST
        and all(type(activation) is type(activations[0]) for activation in activations)
        and (type(activations[0]) is nn.ReLU or all(_is_exact_gelu(activation) for activation in activations))
        and all(tensor.dtype == torch.float32 and _is_plain(tensor) for tensor in tensors)
        and _is_plain(q_positions)
    )


def _is_exact_gelu(activation: nn.Module) -> bool:
    return type(activation) is nn.GELU and activation.approximate == "none"


def _is_plain(tensor: Tensor) -> bool:
    """Neither sharded nor wrapped by vmap or another transform."""
    return not hasattr(type(tensor), "__tensor_flatten__") and not is_transformed(tensor)


def _options(fire: FIRE) -> Options:
    final = len(fire.mlp) == 2 * len(fire.linears)
    gelu = type(fire.mlp[1]) is nn.GELU
    return Options(gelu, final, fire.first_position, fire.eps, fire.horizon or 0, fire.bidirectional)


# --- one FIRE -------------------------------------------------------------------------------------------------------


def fire_bias(fire: FIRE, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """`fire.bias(q_positions, k_positions)` for a FIRE that `serves` accepts. Differentiable once.

    Both sides of a bidirectional FIRE have the same MLP input with the roles of query and key exchanged. A program
    computes one query's biases, so the shorter of the two is the query.
    """
    *layers, weight, bias = (tensor for linear in fire.linears for tensor in (linear.weight, linear.bias))
    hidden = layers if len(layers) == 4 else (*layers, None, None)
    c, L, options = fire.c if fire.log else None, fire.L, _options(fire)
    if not fire.bidirectional:
        found: Tensor = _bias(q_positions, k_positions, c, L, *hidden, weight, bias, *options)
        return found
    exchanged = k_positions.shape[-1] < q_positions.shape[-1]
    where = (k_positions, q_positions) if exchanged else (q_positions, k_positions)
    outputs = zip(weight.chunk(2), bias.chunk(2), strict=True)
    before, after = (_bias(*where, c, L, *hidden, *output, *options) for output in outputs)
    if exchanged:
        before, after = before.mT, after.mT
    return torch.where(is_later(q_positions, k_positions).unsqueeze(-3), after, before).contiguous()


def _make_bias(
    q_positions: Tensor, k_positions: Tensor,
    c: Tensor | None, L: Tensor | None,
    w1: Tensor, b1: Tensor, w2: Tensor | None, b2: Tensor | None, w3: Tensor, b3: Tensor,
    gelu: bool, final_activation: bool, first_position: int, eps: float, horizon: int, bidirectional: bool,
) -> Tensor:  # fmt: skip
    options = Options(gelu, final_activation, first_position, eps, horizon, bidirectional)
    return bias_forward(q_positions, k_positions, Parameters(c, L, w1, b1, w2, b2, w3, b3), options)


def _make_gradients(
    dbias: Tensor, q_positions: Tensor, k_positions: Tensor,
    c: Tensor | None, L: Tensor | None,
    w1: Tensor, b1: Tensor, w2: Tensor | None, b2: Tensor | None, w3: Tensor, b3: Tensor,
    gelu: bool, final_activation: bool, first_position: int, eps: float, horizon: int, bidirectional: bool,
) -> Tensor:  # fmt: skip
    options = Options(gelu, final_activation, first_position, eps, horizon, bidirectional)
    return bias_backward(dbias, q_positions, k_positions, Parameters(c, L, w1, b1, w2, b2, w3, b3), options)


def _bias_fake(q_positions: Tensor, k_positions: Tensor, *rest: Any) -> Tensor:
    return empty_bias(q_positions, k_positions, Parameters(*rest[:8]).w3)


def _gradients_fake(dbias: Tensor, q_positions: Tensor, k_positions: Tensor, *rest: Any) -> Tensor:
    fire = Parameters(*rest[:8])
    return fire.w1.new_empty(fire.total)  # type: ignore[no-any-return]


_gradients = Operator("longfire::fire_bias_backward", _make_gradients, _gradients_fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.options = inputs[:10], inputs[10:]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dbias: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing refuses a second access
    parameters = Parameters(*saved[2:])
    sizes = [1, 1, *(0 if tensor is None else tensor.numel() for tensor in parameters[2:])]
    flat = _gradients(dbias, *saved, *ctx.options).split(sizes)
    each = [None if tensor is None else part.view(tensor.shape) for tensor, part in zip(parameters, flat, strict=True)]
    return None, None, *each, *(None for _ in ctx.options)


_bias = Operator("longfire::fire_bias", _make_bias, _bias_fake, _setup_context, _backward)


# --- several FIREs at once ------------------------------------------------------------------------------------------


def serves_together(fires: Sequence[FIRE], q_positions: Tensor) -> bool:
    """Whether `fire_biases` can compute their biases: same architecture, one side, no gradients, no hooks."""
    architectures = {
        (*(tuple(linear.weight.shape) for linear in fire.linears), fire.log, fire.threshold, _options(fire))
        for fire in fires
    }
    if len(architectures) > 1 or torch.is_grad_enabled() or any(fire.bidirectional for fire in fires):
        return False
    return all(serves(fire, q_positions) and not has_hooks(fire) for fire in fires)


@torch.no_grad()
def fire_biases(fires: Sequence[FIRE], q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """The biases of several FIREs in one launch, concatenated along the heads: (B, H of all, T, S)."""
    biases: Tensor = _biases(
        q_positions,
        k_positions,
        [fire.c for fire in fires if fire.log],
        [fire.L_multiplier for fire in fires if fire.threshold == "learned"],
        [fire.init_L for fire in fires if fire.threshold is not None],
        [tensor for fire in fires for linear in fire.linears for tensor in (linear.weight, linear.bias)],
        len(fires),
        *_options(fires[0]),
    )
    return biases


def _make_biases(
    q_positions: Tensor, k_positions: Tensor,
    c: list[Tensor], L_multiplier: list[Tensor], init_L: list[Tensor], linears: list[Tensor],
    layers: int,
    gelu: bool, final_activation: bool, first_position: int, eps: float, horizon: int, bidirectional: bool,
) -> Tensor:  # fmt: skip
    L = list(torch._foreach_mul(init_L, L_multiplier)) if L_multiplier else init_L  # the kernel takes |L|
    each = len(linears) // layers
    kinds = [c, L, *(linears[slot::each] for slot in range(each))]
    packed, stride = _pack([kind for kind in kinds if kind], layers)
    own_c, own_L = (packed.pop(0) if kind else None for kind in kinds[:2])
    if each == 4:
        packed[2:2] = [None, None]
    first = Parameters(own_c, own_L, *packed)
    options = Options(gelu, final_activation, first_position, eps, horizon, bidirectional)
    return bias_forward(q_positions, k_positions, first, options, layers, stride)


def _pack(kinds: list[list[Tensor]], layers: int) -> tuple[list[Any], int]:
    """Copy all parameters into one buffer; return the first layer's views and the stride to the next layer's."""
    sizes = [(kind[0].numel() + 3) // 4 * 4 for kind in kinds]  # aligned for vector loads
    buffer = kinds[0][0].new_empty(layers, sum(sizes))
    rows = [row.split(sizes) for row in buffer.unbind()]
    views = [
        rows[layer][slot][: tensor.numel()].view(tensor.shape)
        for slot, kind in enumerate(kinds)
        for layer, tensor in enumerate(kind)
    ]
    torch._foreach_copy_(views, [tensor for kind in kinds for tensor in kind])
    return views[::layers], buffer.shape[1]


def _biases_fake(q_positions: Tensor, k_positions: Tensor, *rest: Any) -> Tensor:
    linears, layers = rest[3:5]
    return empty_bias(q_positions, k_positions, linears[-2], layers)


_biases = Operator("longfire::fire_biases", _make_biases, _biases_fake)
