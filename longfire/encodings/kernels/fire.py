"""FIRE's bias in one kernel, and its gradients in another that computes the MLP again instead of keeping its layers.

    x = ψ(|i − j|) / (ψ(min{max{L, i}, horizon}) + eps)
    h = σ(x·w₁ + b₁),   [h = σ(h·W₂ᵀ + b₂),]   b(i, j) = h·W₃ᵀ + b₃

`FIRE.bias` is the specification. Everything has the precision of float32.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor, nn

from longfire.custom_ops import INTERPRETED, Operator, has_hooks, is_plain_linear
from longfire.encodings.fire import FIRE
from longfire.encodings.kernels.fire_programs import backward, forward
from longfire.encodings.positions import is_transformed

WIDEST = 64
"""The widest hidden layer, and the most heads: a program holds all of the MLP."""

PROGRAMS = 6 * 132
"""Of the backward kernel, at most: each sums over its share of the bias, and their sums are added up at the end."""

FORWARD_PRECISION, BACKWARD_PRECISION = "tf32x3", "ieee"
"""Of the products: float32's either way. Three products on tensor cores make one, in the forward kernel the faster."""

serve_cpu = False
"""For tests: serve positions on the CPU too, where Triton's interpreter runs the kernels."""


def serves(fire: FIRE, q_positions: Tensor) -> bool:
    """Whether `fire_bias` can make this encoding's bias."""
    if type(fire) is not FIRE or not (q_positions.is_cuda or (serve_cpu and INTERPRETED)):
        return False
    layers = list(fire.mlp)
    linears = [layer for layer in layers[0::2] if is_plain_linear(layer)]
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
    """Neither sharded nor inside vmap and the like."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        return False
    return not is_transformed(tensor)


def fire_bias(fire: FIRE, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """`fire.bias(q_positions, k_positions)`, where `serves` says so. Differentiable once."""
    layers = list(fire.mlp)
    linears = layers[0::2]
    first, middle, last = linears[0], linears[1] if len(linears) == 3 else None, linears[-1]
    bias: Tensor = _bias(
        q_positions,
        k_positions,
        fire.c if fire.log else None,
        fire.L,
        first.weight,
        first.bias,
        None if middle is None else middle.weight,
        None if middle is None else middle.bias,
        last.weight,
        last.bias,
        type(layers[1]) is nn.GELU,
        len(layers) == 2 * len(linears),
        fire.first_position,
        fire.eps,
        fire.horizon or 0,
    )
    return bias


def serves_together(fires: Sequence[FIRE], q_positions: Tensor) -> bool:
    """Whether `fire_biases` can make their biases: they are alike, without gradients or hooks."""
    kinds = {
        (*(tuple(linear.weight.shape) for linear in fire.linears), len(fire.mlp), type(fire.mlp[1]), fire.log,
         fire.threshold, fire.first_position, fire.eps, fire.horizon)
        for fire in fires
    }  # fmt: skip
    if len(kinds) > 1 or torch.is_grad_enabled():
        return False
    return all(serves(fire, q_positions) and not has_hooks(fire) for fire in fires)


@torch.no_grad()
def fire_biases(fires: Sequence[FIRE], q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """The biases of several, in one launch, the heads of one after those of another: (B, heads of all, T, S)."""
    fire = fires[0]
    biases: Tensor = _biases(
        q_positions,
        k_positions,
        [each.c for each in fires if each.log],
        [each.L_multiplier for each in fires if each.threshold == "learned"],
        [each.init_L for each in fires if each.threshold is not None],
        [tensor for each in fires for linear in each.linears for tensor in (linear.weight, linear.bias)],
        len(fires),
        type(fire.mlp[1]) is nn.GELU,
        len(fire.mlp) == 2 * len(fire.linears),
        fire.first_position,
        fire.eps,
        fire.horizon or 0,
    )
    return biases


def _make_bias(
    q_positions: Tensor,
    k_positions: Tensor,
    c: Tensor | None,
    L: Tensor | None,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor | None,
    b2: Tensor | None,
    w3: Tensor,
    b3: Tensor,
    gelu: bool,
    final_activation: bool,
    first_position: int,
    eps: float,
    horizon: int,
) -> Tensor:
    options = gelu, final_activation, first_position, eps, horizon
    return _launch(q_positions, k_positions, (c, L, w1, b1, w2, b2, w3, b3), *options)


def _make_biases(
    q_positions: Tensor,
    k_positions: Tensor,
    c: list[Tensor],
    L_multiplier: list[Tensor],
    init_L: list[Tensor],
    linears: list[Tensor],
    layers: int,
    gelu: bool,
    final_activation: bool,
    first_position: int,
    eps: float,
    horizon: int,
) -> Tensor:
    L = list(torch._foreach_mul(init_L, L_multiplier)) if L_multiplier else init_L  # the kernel takes |L|
    each = len(linears) // layers
    kinds = [c, L, *(linears[slot::each] for slot in range(each))]
    packed, stride = _pack(kinds, layers)
    own_c, own_L = (packed.pop(0) if kind else None for kind in kinds[:2])
    w2, b2 = packed[2:4] if each == 6 else (None, None)
    w1, b1, w3, b3 = *packed[:2], *packed[-2:]
    options = gelu, final_activation, first_position, eps, horizon, layers, stride
    return _launch(q_positions, k_positions, (own_c, own_L, w1, b1, w2, b2, w3, b3), *options)


def _pack(kinds: list[list[Tensor]], layers: int) -> tuple[list[Tensor], int]:
    """Parameters as the first of `layers` has them, in one buffer, and how far from there the next one's are."""
    kinds = [kind for kind in kinds if kind]
    sizes = [(kind[0].numel() + 3) // 4 * 4 for kind in kinds]  # each where many elements can be loaded at once
    buffer = kinds[0][0].new_empty(layers, sum(sizes))
    rows = [row.split(sizes) for row in buffer.unbind()]
    places = [
        rows[layer][slot][: tensor.numel()].view(tensor.shape)
        for slot, kind in enumerate(kinds)
        for layer, tensor in enumerate(kind)
    ]
    torch._foreach_copy_(places, [tensor for kind in kinds for tensor in kind])
    return places[::layers], buffer.shape[1]


def _launch(
    q_positions: Tensor,
    k_positions: Tensor,
    parameters: Sequence[Tensor | None],
    gelu: bool,
    final_activation: bool,
    first_position: int,
    eps: float,
    horizon: int,
    layers: int = 1,
    stride: int = 0,
) -> Tensor:
    """Parameters c, L, w1, …, b3 of the first of `layers`; the next one's are `stride` elements on."""
    c, L, _w1, _b1, w2, _b2, w3, _b3 = parameters
    assert w3 is not None
    out = _empty_bias(q_positions, k_positions, w3, layers)
    if out.numel() > 0:
        q, k = _batched(q_positions, k_positions)
        B, T, S = *q.shape, k.shape[-1]
        constants = _constants(c, L, w2, w3, gelu, final_activation, eps, horizon)
        N, warps = (128, 4) if max(constants["WP"], constants["HP"]) <= 32 else (64, 8)
        chunks = triton.cdiv(S, N)
        with torch.cuda.device_of(out):
            forward[B * T * chunks, layers](
                q, k, *_pointers(*parameters), out, T, S, chunks, *q.stride(), *k.stride(), stride,
                first_position, eps, horizon, **constants, PRECISION=FORWARD_PRECISION, N=N, num_warps=warps,
            )  # fmt: skip
    return out


def _make_gradients(
    dbias: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    c: Tensor | None,
    L: Tensor | None,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor | None,
    b2: Tensor | None,
    w3: Tensor,
    b3: Tensor,
    gelu: bool,
    final_activation: bool,
    first_position: int,
    eps: float,
    horizon: int,
) -> Tensor:
    """Of c, L, w1, b1, w2, b2, w3, b3, one after the other; 0 for c or L that is not there, nothing for w2 and b2."""
    total = _total(w1, b1, w2, b2, w3, b3)
    if dbias.numel() == 0:
        return w1.new_zeros(total)
    q, k = _batched(q_positions, k_positions)
    B, T, S = *q.shape, k.shape[-1]
    constants = _constants(c, L, w2, w3, gelu, final_activation, eps, horizon)
    size = constants["WP"] + constants["HP"]
    N, warps = (64, 4) if size <= 48 else (64, 8) if size <= 64 else (16, 8)  # the most that fits into registers
    chunks = triton.cdiv(S, N)
    pairs = B * T * chunks
    programs = min(pairs, PROGRAMS)
    parts = w1.new_empty(programs, total)
    with torch.cuda.device_of(parts):
        backward[(programs,)](
            q, k, *_pointers(c, L, w1, b1, w2, b2, w3, b3), dbias.contiguous(), parts, T, S, chunks, pairs, programs,
            *q.stride(), *k.stride(), first_position, eps, horizon, **constants, TOTAL=total,
            PRECISION=BACKWARD_PRECISION, N=N, num_warps=warps,
        )  # fmt: skip
    return parts.sum(0)


def _bias_fake(q_positions, k_positions, c, L, w1, b1, w2, b2, w3, b3, *options):
    return _empty_bias(q_positions, k_positions, w3)


def _gradients_fake(dbias, q_positions, k_positions, c, L, w1, b1, w2, b2, w3, b3, *options):
    return w1.new_empty(_total(w1, b1, w2, b2, w3, b3))


_gradients = Operator("longfire::fire_bias_backward", _make_gradients, _gradients_fake)


def _setup_context(ctx, inputs, output) -> None:
    tensors, ctx.options = inputs[:-5], inputs[-5:]
    ctx.save_for_backward(*tensors)


def _backward(ctx, dbias):
    tensors = ctx.saved_tensors
    flat = _gradients(dbias, *tensors, *ctx.options)
    gradients: list[Tensor | None] = []
    start = 0
    for slot, tensor in enumerate(tensors[2:]):
        size = 1 if slot < 2 else 0 if tensor is None else tensor.numel()
        gradients.append(None if tensor is None else flat[start : start + size].view(tensor.shape))
        start += size
    return None, None, *gradients, *(None for _ in ctx.options)


_bias = Operator("longfire::fire_bias", _make_bias, _bias_fake, _setup_context, _backward)


def _biases_fake(q_positions, k_positions, c, L_multiplier, init_L, linears, layers, *options):
    return _empty_bias(q_positions, k_positions, linears[-2], layers)


_biases = Operator("longfire::fire_biases", _make_biases, _biases_fake)


def _empty_bias(q_positions: Tensor, k_positions: Tensor, w3: Tensor, layers: int = 1) -> Tensor:
    batch = () if q_positions.ndim == k_positions.ndim == 1 else (_batch_size(q_positions, k_positions),)
    return w3.new_empty(*batch, layers * w3.shape[0], q_positions.shape[-1], k_positions.shape[-1])


def _batch_size(q_positions: Tensor, k_positions: Tensor) -> int:
    """As torch.broadcast_shapes has it, which takes twenty times as long."""
    sizes = (positions.shape[0] for positions in (q_positions, k_positions) if positions.ndim == 2)
    return next((size for size in sizes if size != 1), 1)


def _total(*layers: Tensor | None) -> int:
    """How many gradients there are: two, and those of the layers."""
    return 2 + sum(tensor.numel() for tensor in layers if tensor is not None)


def _batched(q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
    """As (B, T) and (B, S), with a stride of 0 where one row serves the whole batch."""
    B = _batch_size(q_positions, k_positions)
    return q_positions.expand(B, -1), k_positions.expand(B, -1)


def _pointers(*parameters: Tensor | None) -> list[Tensor]:
    """What the kernels read. What is not there they do not read, and anything may stand for it."""
    w3 = parameters[-2]
    assert w3 is not None
    return [w3 if tensor is None else tensor.contiguous() for tensor in parameters]


def _constants(
    c: Tensor | None,
    L: Tensor | None,
    w2: Tensor | None,
    w3: Tensor,
    gelu: bool,
    final_activation: bool,
    eps: float,
    horizon: int,
) -> dict[str, int | bool]:
    """What a kernel is compiled for."""
    H, W = w3.shape
    return {
        "H": H,
        "W": W,
        "HP": max(16, triton.next_power_of_2(H)),
        "WP": max(16, triton.next_power_of_2(W)),
        "LOG": c is not None,
        "THRESHOLD": L is not None,
        "HORIZON": horizon > 0,
        "CLAMP": eps == 0,
        "DEEP": w2 is not None,
        "GELU": gelu,
        "FINAL": final_activation,
    }
