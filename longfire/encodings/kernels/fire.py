"""FIRE's bias as one kernel: which FIREs it serves, and the torch operators. `FIRE.bias` is the specification."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longfire.custom_ops import INTERPRETED, PLAIN, Operator, has_hooks, is_plain_linear
from longfire.encodings.base import EncodingLinear
from longfire.encodings.fire import FIRE, is_later
from longfire.encodings.kernels.fire_kernels import Options, Parameters, bias_backward, bias_forward, empty_bias
from longfire.encodings.positions import in_transform

WIDEST = 64
"""Limit of hidden width and heads: each program computes the whole MLP."""

serve_cpu = False
"""For tests: also serve positions on the CPU, where Triton's interpreter runs the kernels."""


class Served(NamedTuple):
    """A FIRE as its kernels take it."""

    parameters: Parameters
    options: Options


def served(fire: FIRE, q_positions: Tensor) -> Served | None:
    """What the kernels need; None if they cannot compute this encoding's bias."""
    if type(fire) is not FIRE or not (q_positions.is_cuda or (serve_cpu and INTERPRETED)) or in_transform():
        return None
    layers: list[Any] = list(fire.mlp)
    linears, activations = layers[0::2], layers[1::2]
    if len(linears) not in (2, 3) or not all(is_plain_linear(layer, EncodingLinear) for layer in linears):
        return None
    if any(type(layer) is not type(activations[0]) for layer in activations):
        return None
    gelu = type(activations[0]) is nn.GELU
    if not (all(layer.approximate == "none" for layer in activations) if gelu else type(activations[0]) is nn.ReLU):
        return None
    c, init_L = fire.c if fire.log else None, fire.init_L if fire.threshold is not None else None
    multiplier = fire.L_multiplier if fire.threshold == "learned" else None
    w1, b1, *second, w3, b3 = (tensor for layer in linears for tensor in (layer.weight, layer.bias))
    w2, b2 = second or (None, None)
    parameters = Parameters(c, multiplier, init_L, w1, b1, w2, b2, w3, b3)
    tensors = [tensor for tensor in parameters if tensor is not None]
    if any(tensor.dtype != torch.float32 for tensor in tensors) or any(map(_is_sharded, (q_positions, *tensors))):
        return None
    if max(*w1.shape, *w3.shape) > WIDEST:
        return None
    final = len(activations) == len(linears)
    options = Options(gelu, final, fire.first_position, fire.eps, fire.horizon or 0, fire.bidirectional)
    return Served(parameters, options)


def _is_sharded(tensor: Tensor) -> bool:
    return type(tensor) not in PLAIN and hasattr(type(tensor), "__tensor_flatten__")


# --- one FIRE -------------------------------------------------------------------------------------------------------


def fire_bias(fire: FIRE, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
    """`fire.bias(q_positions, k_positions)`, or None if the kernels cannot compute it. Differentiable once.

    Both sides of a bidirectional FIRE have the same MLP input with the roles of query and key exchanged. A program
    computes one query's biases, so the shorter of the two is the query.
    """
    if (found := served(fire, q_positions)) is None:
        return None
    (*others, weight, bias), options = found
    if not fire.bidirectional:
        return _bias(q_positions, k_positions, *others, weight, bias, *options)  # type: ignore[no-any-return]
    exchanged = k_positions.shape[-1] < q_positions.shape[-1]
    where = (k_positions, q_positions) if exchanged else (q_positions, k_positions)
    outputs = zip(weight.chunk(2), bias.chunk(2), strict=True)
    before, after = (_bias(*where, *others, *output, *options) for output in outputs)
    if exchanged:
        before, after = before.mT, after.mT
    return torch.where(is_later(q_positions, k_positions).unsqueeze(-3), after, before).contiguous()


def _make_bias(
    q_positions: Tensor, k_positions: Tensor,
    c: Tensor | None, L_multiplier: Tensor | None, init_L: Tensor | None,
    w1: Tensor, b1: Tensor, w2: Tensor | None, b2: Tensor | None, w3: Tensor, b3: Tensor,
    gelu: bool, final_activation: bool, first_position: int, eps: float, horizon: int, bidirectional: bool,
) -> Tensor:  # fmt: skip
    options = Options(gelu, final_activation, first_position, eps, horizon, bidirectional)
    return bias_forward(q_positions, k_positions, Parameters(c, L_multiplier, init_L, w1, b1, w2, b2, w3, b3), options)


def _make_gradients(
    dbias: Tensor, q_positions: Tensor, k_positions: Tensor,
    c: Tensor | None, L_multiplier: Tensor | None, init_L: Tensor | None,
    w1: Tensor, b1: Tensor, w2: Tensor | None, b2: Tensor | None, w3: Tensor, b3: Tensor,
    gelu: bool, final_activation: bool, first_position: int, eps: float, horizon: int, bidirectional: bool,
) -> Tensor:  # fmt: skip
    options = Options(gelu, final_activation, first_position, eps, horizon, bidirectional)
    parameters = Parameters(c, L_multiplier, init_L, w1, b1, w2, b2, w3, b3)
    return bias_backward(dbias, q_positions, k_positions, parameters, options)


def _bias_fake(q_positions: Tensor, k_positions: Tensor, *rest: Any) -> Tensor:
    return empty_bias(q_positions, k_positions, Parameters(*rest[:9]).w3)


def _gradients_fake(dbias: Tensor, q_positions: Tensor, k_positions: Tensor, *rest: Any) -> Tensor:
    fire = Parameters(*rest[:9])
    return fire.w1.new_empty(fire.total)  # type: ignore[no-any-return]


_gradients = Operator("longfire::fire_bias_backward", _make_gradients, _gradients_fake, replayed=True)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.options = inputs[:11], inputs[11:]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dbias: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing refuses a second access
    parameters = Parameters(*saved[2:])
    sizes = [1, 1, 0, *(0 if tensor is None else tensor.numel() for tensor in parameters[3:])]
    flat = _gradients(dbias, *saved, *ctx.options).split(sizes)
    learned = parameters._replace(init_L=None)
    each = [None if tensor is None else part.view(tensor.shape) for tensor, part in zip(learned, flat, strict=True)]
    return None, None, *each, *(None for _ in ctx.options)


_bias = Operator("longfire::fire_bias", _make_bias, _bias_fake, _setup_context, _backward, replayed=True)


# --- several FIREs at once ------------------------------------------------------------------------------------------


def fire_biases(fires: Sequence[FIRE], q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
    """The biases of several FIREs in one launch, concatenated along the heads: (B, H of all, T, S).

    None if the kernels cannot: with gradients, hooks, two sides, or different architectures.
    """
    if torch.is_grad_enabled():
        return None
    found = [served(fire, q_positions) for fire in fires if not (fire.bidirectional or has_hooks(fire))]
    known = [one for one in found if one is not None]
    if len(known) < len(fires) or len({(one.options, *map(_shape, one.parameters)) for one in known}) > 1:
        return None
    by_kind = zip(*(one.parameters for one in known), strict=True)
    kinds = [[tensor for tensor in kind if tensor is not None] for kind in by_kind]
    return _biases(q_positions, k_positions, *kinds, len(fires), *known[0].options)  # type: ignore[no-any-return]


def _shape(tensor: Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape


def _make_biases(
    q_positions: Tensor, k_positions: Tensor,
    c: list[Tensor], L_multiplier: list[Tensor], init_L: list[Tensor],
    w1: list[Tensor], b1: list[Tensor], w2: list[Tensor], b2: list[Tensor], w3: list[Tensor], b3: list[Tensor],
    layers: int,
    gelu: bool, final_activation: bool, first_position: int, eps: float, horizon: int, bidirectional: bool,
) -> Tensor:  # fmt: skip
    kinds = [c, L_multiplier, init_L, w1, b1, w2, b2, w3, b3]
    packed, stride = _pack([kind for kind in kinds if kind], layers)
    first = Parameters(*(packed.pop(0) if kind else None for kind in kinds))
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
    *kinds, layers = rest[:10]
    return empty_bias(q_positions, k_positions, Parameters(*kinds).w3[0], layers)


_biases = Operator("longfire::fire_biases", _make_biases, _biases_fake)
