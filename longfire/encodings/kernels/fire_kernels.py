"""Triton kernels of FIRE's bias, with their launchers: forward, and the gradients of the parameters.

    x = ψ(|i − j|) / (ψ(min{max{L, i}, horizon}) + eps)
    h = σ(x·w₁ + b₁),   [h = σ(h·W₂ᵀ + b₂),]   b(i, j) = h·W₃ᵀ + b₃

If bidirectional, the later of i and j takes the place of i in the normaliser, and each side of the query has a W₃ and
b₃ of its own: a call is for one side. Backward recomputes the hidden layers. Everything is as precise as float32.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_PROGRAMS = 6 * 132
"""Limit of the backward kernel: each program sums over its share of the bias, and the sums are added at the end."""

FORWARD_PRECISION, BACKWARD_PRECISION = "tf32x3", "ieee"
"""Of matrix products. Both are as exact as float32; three products on tensor cores are faster in the forward kernel."""

LENGTHS = ["T", "S", "chunks", "pairs", "programs", "q_b", "q_t", "k_b", "k_s", "stride", "first_position", "horizon"]
"""Arguments whose values must not trigger a recompilation."""


class Parameters(NamedTuple):
    """Parameters of one FIRE; None if absent."""

    c: Any  # (1,)
    L: Any  # (1,)
    w1: Any  # (W, 1)
    b1: Any  # (W,)
    w2: Any  # (W, W)
    b2: Any  # (W,)
    w3: Any  # (H, W)
    b3: Any  # (H,)

    def contiguous(self) -> "Parameters":
        return Parameters(*(None if tensor is None else tensor.contiguous() for tensor in self))

    @property
    def total(self) -> int:
        """Number of gradients: c and L always count."""
        return 2 + sum(tensor.numel() for tensor in self[2:] if tensor is not None)


class Options(NamedTuple):
    """Options of a FIRE, beside its parameters."""

    gelu: bool
    final_activation: bool
    first_position: int
    eps: float
    horizon: int  # 0: none
    bidirectional: bool

    def arguments(self, w3: Tensor) -> dict[str, Any]:
        """As keyword arguments of the kernels."""
        H, W = w3.shape
        return {
            "first_position": self.first_position,
            "eps": self.eps,
            "horizon": self.horizon,
            "H": H,
            "W": W,
            "HP": max(16, triton.next_power_of_2(H)),
            "WP": max(16, triton.next_power_of_2(W)),
            "HORIZON": self.horizon > 0,
            "CLAMP": self.eps == 0,
            "GELU": self.gelu,
            "FINAL": self.final_activation,
            "BIDIRECTIONAL": self.bidirectional,
        }


def bias_forward(
    q_positions: Tensor, k_positions: Tensor, fire: Parameters, options: Options, layers: int = 1, stride: int = 0
) -> Tensor:
    """The biases of `layers` FIREs. `fire` is the first one's parameters, `stride` the offset to the next one's."""
    out = empty_bias(q_positions, k_positions, fire.w3, layers)
    if out.numel() > 0:
        q, k = _batched(q_positions, k_positions)
        B, T, S = *q.shape, k.shape[-1]
        shared = options.arguments(fire.w3)
        N, warps = (128, 4) if max(shared["WP"], shared["HP"]) <= 32 else (64, 8)
        chunks = triton.cdiv(S, N)
        with torch.cuda.device_of(out):
            fire_forward[B * T * chunks, layers](
                QPositions=q, KPositions=k, P=fire.contiguous(), Out=out, T=T, S=S, chunks=chunks, stride=stride,
                **_strides(q, k), **shared, PRECISION=FORWARD_PRECISION, N=N, num_warps=warps,
            )  # fmt: skip
    return out


def bias_backward(
    dbias: Tensor, q_positions: Tensor, k_positions: Tensor, fire: Parameters, options: Options
) -> Tensor:
    """Gradients of all parameters in one vector; 0 for an absent c or L, no entry for absent w2 and b2."""
    if dbias.numel() == 0:
        return fire.w1.new_zeros(fire.total)
    q, k = _batched(q_positions, k_positions)
    B, T, S = *q.shape, k.shape[-1]
    shared = options.arguments(fire.w3)
    size = shared["WP"] + shared["HP"]
    N, warps = (64, 4) if size <= 48 else (64, 8) if size <= 64 else (16, 8)  # the largest that fits in registers
    chunks = triton.cdiv(S, N)
    pairs = B * T * chunks
    programs = min(pairs, MAX_PROGRAMS)
    parts = fire.w1.new_empty(programs, fire.total)
    with torch.cuda.device_of(parts):
        fire_backward[(programs,)](
            QPositions=q, KPositions=k, P=fire.contiguous(), dOut=dbias.contiguous(), Parts=parts, T=T, S=S,
            chunks=chunks, pairs=pairs, programs=programs, **_strides(q, k), **shared, TOTAL=fire.total,
            PRECISION=BACKWARD_PRECISION, N=N, num_warps=warps,
        )  # fmt: skip
    return parts.sum(0)


def empty_bias(q_positions: Tensor, k_positions: Tensor, w3: Tensor, layers: int = 1) -> Tensor:
    """([B,] layers · H, T, S)."""
    batch = () if q_positions.ndim == k_positions.ndim == 1 else (_batch_size(q_positions, k_positions),)
    return w3.new_empty(*batch, layers * w3.shape[0], q_positions.shape[-1], k_positions.shape[-1])


def _batch_size(q_positions: Tensor, k_positions: Tensor) -> int:
    """torch.broadcast_shapes, twenty times as fast."""
    sizes = (positions.shape[0] for positions in (q_positions, k_positions) if positions.ndim == 2)
    return next((size for size in sizes if size != 1), 1)


def _batched(q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) and (B, S), with a stride of 0 where one row serves the whole batch."""
    B = _batch_size(q_positions, k_positions)
    return q_positions.expand(B, -1), k_positions.expand(B, -1)


def _strides(q: Tensor, k: Tensor) -> dict[str, int]:
    return dict(zip(("q_b", "q_t", "k_b", "k_s"), (*q.stride(), *k.stride()), strict=True))


# --- device code ----------------------------------------------------------------------------------------------------


@triton.jit
def activated(x, GELU: tl.constexpr):
    """σ."""
    if GELU:
        return x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return tl.where(x <= 0, 0.0, x)  # nan stays nan


@triton.jit
def slope(x, GELU: tl.constexpr):
    """σ′."""
    if GELU:
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return tl.where(x <= 0, 0.0, 1.0)


@triton.jit
def psi(x, c):
    """ψ of a distance or position ≥ 0; the identity where c is None."""
    if c is not None:
        return tl.log(tl.abs(c * x) + 1.0)
    return x


@triton.jit
def sign(x):
    """The derivative of |x|, 0 at 0."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def load_matrix(at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr):
    """[RP, CP]; 0 outside."""
    r = tl.arange(0, RP)[:, None]
    c = tl.arange(0, CP)[None, :]
    return tl.load(at + r * COLUMNS + c, mask=(r < ROWS) & (c < COLUMNS), other=0.0)  # [RP, CP]


@triton.jit
def load_vector(at, SIZE: tl.constexpr, P: tl.constexpr):
    """[P]; 0 outside."""
    i = tl.arange(0, P)
    return tl.load(at + i, mask=i < SIZE, other=0.0)  # [P]


@triton.jit
def store_matrix(at, value, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr):
    """Store the rows and columns of value [RP, CP] that exist, contiguously."""
    r = tl.arange(0, RP)[:, None]
    c = tl.arange(0, CP)[None, :]
    tl.store(at + r * COLUMNS + c, value, mask=(r < ROWS) & (c < COLUMNS))  # [RP, CP]


@triton.jit
def place(pair, T, chunks, N: tl.constexpr):
    """Batch, query and keys [N] of a pair: one query and a chunk of keys."""
    row = pair // chunks
    return row // T, row % T, pair % chunks * N + tl.arange(0, N)


@triton.jit
def effective_position(position, L, horizon, HORIZON: tl.constexpr):
    """min{max{L, i}, horizon}; L may be None."""
    if L is not None:
        position = tl.where(position > L, position, L)
    if HORIZON:
        position = tl.minimum(position, horizon.to(tl.float32))
    return position


@triton.jit
def normalized_distance(
    QPositions, KPositions, b, i, j, c, L, S, q_b, q_t, k_b, k_s, first_position, eps, horizon,
    HORIZON: tl.constexpr, CLAMP: tl.constexpr, BIDIRECTIONAL: tl.constexpr,
):  # fmt: skip
    """The MLP's input [N], the distance [N], the position to normalise by ([N] if BIDIRECTIONAL) and the unclamped
    normaliser."""
    q = tl.load(QPositions + b.to(tl.int64) * q_b + i.to(tl.int64) * q_t)  # []
    k = tl.load(KPositions + b.to(tl.int64) * k_b + j.to(tl.int64) * k_s, mask=j < S, other=0)  # [N]
    distance = tl.abs(q - k).to(tl.float32)  # exact: integers
    later = q.to(tl.int64)
    if BIDIRECTIONAL:
        later = tl.maximum(later, k.to(tl.int64))
    position = (later + first_position).to(tl.float32)
    normalizer = psi(effective_position(position, L, horizon, HORIZON), c) + eps
    divisor = normalizer
    if CLAMP:
        divisor = tl.where(normalizer < 1e-6, 1e-6, normalizer)
    return tl.div_rn(psi(distance, c), tl.zeros_like(distance) + divisor), distance, position, normalizer


@triton.jit
def hidden(x, w1, b1, w2_t, b2, GELU: tl.constexpr, PRECISION: tl.constexpr):
    """The hidden layers before and after the activation, [N, WP] each. A single layer is returned twice."""
    a1 = x[:, None] * w1[None, :] + b1[None, :]
    h1 = activated(a1, GELU)
    if w2_t is not None:
        a2 = tl.dot(h1, w2_t, input_precision=PRECISION) + b2[None, :]  # [N, WP] · [WP, WP]
        return a1, h1, a2, activated(a2, GELU)
    return a1, h1, a1, h1


@triton.jit(do_not_specialize=LENGTHS)
def fire_forward(
    QPositions, KPositions,  # (B, T), (B, S)
    P,  # Parameters of the first layer
    Out,  # (B, layers · H, T, S)
    T, S, chunks, q_b, q_t, k_b, k_s, stride, first_position, eps, horizon,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, HORIZON: tl.constexpr,
    CLAMP: tl.constexpr, GELU: tl.constexpr, FINAL: tl.constexpr, BIDIRECTIONAL: tl.constexpr,
    PRECISION: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The biases of one query and N keys, for all heads of a layer."""
    b, i, j = place(tl.program_id(0), T, chunks, N)
    layer = tl.program_id(1)
    on = layer * stride
    c = tl.load(P.c + on) if P.c is not None else None  # []
    L = tl.abs(tl.load(P.L + on)) if P.L is not None else None  # []
    x, _, _, _ = normalized_distance(
        QPositions, KPositions, b, i, j, c, L, S, q_b, q_t, k_b, k_s, first_position, eps, horizon,
        HORIZON, CLAMP, BIDIRECTIONAL,
    )  # fmt: skip
    w2_t = tl.trans(load_matrix(P.w2 + on, W, W, WP, WP)) if P.w2 is not None else None
    b2 = load_vector(P.b2 + on, W, WP) if P.w2 is not None else None
    _, _, _, h = hidden(x, load_vector(P.w1 + on, W, WP), load_vector(P.b1 + on, W, WP), w2_t, b2, GELU, PRECISION)
    w3_t = tl.trans(load_matrix(P.w3 + on, H, W, HP, WP))
    out = tl.dot(h, w3_t, input_precision=PRECISION) + load_vector(P.b3 + on, H, HP)[None, :]  # [N, WP] · [WP, HP]
    if FINAL:
        out = activated(out, GELU)
    head = tl.arange(0, HP)[None, :]
    Out += ((b.to(tl.int64) * tl.num_programs(1) + layer) * H * T + i) * S
    there = (head < H) & (j < S)[:, None]
    tl.store(Out + head * (T.to(tl.int64) * S) + j[:, None], out, mask=there)  # [N, HP]


@triton.jit(do_not_specialize=LENGTHS)
def fire_backward(
    QPositions, KPositions,  # (B, T), (B, S)
    P,  # Parameters
    dOut,  # (B, H, T, S)
    Parts,  # (programs, TOTAL)
    T, S, chunks, pairs, programs, q_b, q_t, k_b, k_s, first_position, eps, horizon,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, HORIZON: tl.constexpr, CLAMP: tl.constexpr,
    GELU: tl.constexpr, FINAL: tl.constexpr, BIDIRECTIONAL: tl.constexpr, TOTAL: tl.constexpr,
    PRECISION: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One row of Parts: gradients summed over every `programs`-th pair of a query and N keys."""
    pid = tl.program_id(0)
    c = tl.load(P.c) if P.c is not None else None  # []
    L = tl.load(P.L) if P.L is not None else None  # []
    w1, b1 = load_vector(P.w1, W, WP), load_vector(P.b1, W, WP)
    b2 = load_vector(P.b2, W, WP) if P.w2 is not None else None
    head = tl.arange(0, HP)[None, :]

    dc = tl.zeros([N], tl.float32)
    dL = tl.zeros([N], tl.float32)
    dw1 = tl.zeros([WP], tl.float32)
    db1 = tl.zeros([WP], tl.float32)
    dw2 = tl.zeros([WP, WP], tl.float32)
    db2 = tl.zeros([WP], tl.float32)
    dw3 = tl.zeros([HP, WP], tl.float32)
    db3 = tl.zeros([HP], tl.float32)
    for step in range((pairs - pid + programs - 1) // programs):
        b, i, j = place(pid + step * programs, T, chunks, N)
        x, distance, position, normalizer = normalized_distance(
            QPositions, KPositions, b, i, j, c, L, S, q_b, q_t, k_b, k_s, first_position, eps, horizon,
            HORIZON, CLAMP, BIDIRECTIONAL,
        )  # fmt: skip
        again = tl.minimum(i, 0)  # 0, but the compiler cannot know: keeping the matrices in registers would spill
        w2 = load_matrix(P.w2 + again, W, W, WP, WP) if P.w2 is not None else None
        w3 = load_matrix(P.w3 + again, H, W, HP, WP)
        a1, h1, a2, h2 = hidden(x, w1, b1, tl.trans(w2) if P.w2 is not None else None, b2, GELU, PRECISION)
        at = dOut + (b.to(tl.int64) * H * T + i) * S
        there = (head < H) & (j < S)[:, None]
        g = tl.load(at + head * (T.to(tl.int64) * S) + j[:, None], mask=there, other=0.0)  # [N, HP]
        if FINAL:
            out = tl.dot(h2, tl.trans(w3), input_precision=PRECISION) + load_vector(P.b3, H, HP)[None, :]  # [N, HP]
            g *= slope(out, GELU)
        db3 += tl.sum(g, 0)
        dw3 = tl.dot(tl.trans(g), h2, dw3, input_precision=PRECISION)  # [HP, N] · [N, WP]
        g = tl.dot(g, w3, input_precision=PRECISION) * slope(a2, GELU)  # [N, HP] · [HP, WP]
        if P.w2 is not None:
            db2 += tl.sum(g, 0)
            dw2 = tl.dot(tl.trans(g), h1, dw2, input_precision=PRECISION)  # [WP, N] · [N, WP]
            g = tl.dot(g, w2, input_precision=PRECISION) * slope(a1, GELU)  # [N, WP] · [WP, WP]
        db1 += tl.sum(g, 0)
        dw1 += tl.sum(g * x[:, None], 0)
        if P.c is not None or P.L is not None:
            dx = tl.sum(g * w1[None, :], 1)
            to_c, to_L = scalar_grads(dx, x, distance, position, normalizer, c, L, horizon, HORIZON, CLAMP)
            dc += to_c
            dL += to_L

    Parts += pid.to(tl.int64) * TOTAL
    tl.store(Parts, tl.sum(dc, 0))  # []
    tl.store(Parts + 1, tl.sum(dL, 0))  # []
    store_matrix(Parts + 2, dw1[:, None], W, 1, WP, 1)
    store_matrix(Parts + 2 + W, db1[:, None], W, 1, WP, 1)
    if P.w2 is not None:
        store_matrix(Parts + 2 + 2 * W, dw2, W, W, WP, WP)
        store_matrix(Parts + 2 + 2 * W + W * W, db2[:, None], W, 1, WP, 1)
    store_matrix(Parts + TOTAL - H - H * W, dw3, H, W, HP, WP)
    store_matrix(Parts + TOTAL - H, db3[:, None], H, 1, HP, 1)


@triton.jit
def scalar_grads(
    dx, x, distance, position, normalizer, c, L, horizon, HORIZON: tl.constexpr, CLAMP: tl.constexpr
):  # fmt: skip
    """Each key's contribution to the gradients of c and L, [N] each, from the gradient of x."""
    divisor = tl.where(normalizer < 1e-6, 1e-6, normalizer) if CLAMP else normalizer
    dpsi = tl.div_rn(dx, tl.zeros_like(dx) + divisor)
    dnormalizer = -dpsi * x
    if CLAMP:
        dnormalizer = tl.where(normalizer < 1e-6, 0.0, dnormalizer)
    i = effective_position(position, L, horizon, HORIZON)
    to_c = tl.zeros_like(dx)
    to_L = tl.zeros_like(dx)
    if c is not None:
        dlog = dnormalizer / (tl.abs(c * i) + 1.0)
        to_c = sign(c) * (dpsi * distance / (tl.abs(c * distance) + 1.0) + dlog * i)
        dnormalizer = dlog * sign(c * i) * c
    if L is not None:
        if HORIZON:
            dnormalizer = tl.where(horizon >= L, dnormalizer, 0.0)  # L matters only where it is the larger
        to_L = dnormalizer * tl.where(position < L, 1.0, tl.where(position == L, 0.5, 0.0))
    return to_c, to_L
