"""The two Triton programs of FIRE's bias: a tile of it, and what its gradient says of the parameters.

They are started, and what they are given is said, in `longfire.encodings.kernels.fire`.
"""

import triton
import triton.language as tl

LENGTHS = ["T", "S", "chunks", "pairs", "programs", "q_b", "q_t", "k_b", "k_s", "stride", "first_position", "horizon"]
"""Arguments whose value must not bring about another compilation."""


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
def psi(x, c, LOG: tl.constexpr):
    """ψ of a distance or position ≥ 0."""
    if LOG:
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
    return tl.load(at + r * COLUMNS + c, mask=(r < ROWS) & (c < COLUMNS), other=0.0)


@triton.jit
def load_vector(at, SIZE: tl.constexpr, P: tl.constexpr):
    """[P]; 0 outside."""
    i = tl.arange(0, P)
    return tl.load(at + i, mask=i < SIZE, other=0.0)


@triton.jit
def place(pair, T, chunks, N: tl.constexpr):
    """A row of queries and a chunk of keys: batch, query, keys [N]."""
    row = pair // chunks
    return row // T, row % T, pair % chunks * N + tl.arange(0, N)


@triton.jit
def counted(position, L, horizon, THRESHOLD: tl.constexpr, HORIZON: tl.constexpr):
    """What a query's position counts as: min{max{L, i}, horizon}."""
    if THRESHOLD:
        position = tl.where(position > L, position, L)
    if HORIZON:
        position = tl.minimum(position, horizon.to(tl.float32))
    return position


@triton.jit
def normalized(
    QPositions, KPositions, b, i, j, c, L, S, q_b, q_t, k_b, k_s, first_position, eps, horizon,
    LOG: tl.constexpr, THRESHOLD: tl.constexpr, HORIZON: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """The MLP's input [N], the distance [N], the query's position, and the normaliser unclamped."""
    q = tl.load(QPositions + b.to(tl.int64) * q_b + i.to(tl.int64) * q_t)
    k = tl.load(KPositions + b.to(tl.int64) * k_b + j.to(tl.int64) * k_s, mask=j < S, other=0)
    distance = tl.abs(q - k).to(tl.float32)  # exact: integers
    position = (q.to(tl.int64) + first_position).to(tl.float32)
    normalizer = psi(counted(position, L, horizon, THRESHOLD, HORIZON), c, LOG) + eps
    divisor = normalizer
    if CLAMP:
        divisor = tl.where(normalizer < 1e-6, 1e-6, normalizer)
    return tl.div_rn(psi(distance, c, LOG), tl.zeros_like(distance) + divisor), distance, position, normalizer


@triton.jit
def hidden(x, w1, b1, w2_t, b2, DEEP: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr):
    """The hidden layers before and after the activation, [N, WP] each. With one layer it is the second, too."""
    a1 = x[:, None] * w1[None, :] + b1[None, :]
    h1 = activated(a1, GELU)
    if DEEP:
        a2 = tl.dot(h1, w2_t, input_precision=PRECISION) + b2[None, :]
        return a1, h1, a2, activated(a2, GELU)
    return a1, h1, a1, h1


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    QPositions, KPositions, C, L, W1, B1, W2, B2, W3, B3, Out, T, S, chunks, q_b, q_t, k_b, k_s, stride,
    first_position, eps, horizon,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, LOG: tl.constexpr, THRESHOLD: tl.constexpr,
    HORIZON: tl.constexpr, CLAMP: tl.constexpr, DEEP: tl.constexpr, GELU: tl.constexpr, FINAL: tl.constexpr,
    PRECISION: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The biases of one query and N keys, for all heads of a layer."""
    b, i, j = place(tl.program_id(0), T, chunks, N)
    layer = tl.program_id(1)
    on = layer * stride
    W1, B1, W2, B2, W3, B3 = W1 + on, B1 + on, W2 + on, B2 + on, W3 + on, B3 + on
    c = tl.load(C + on) if LOG else 0.0
    threshold = tl.abs(tl.load(L + on)) if THRESHOLD else 0.0
    x, _, _, _ = normalized(
        QPositions, KPositions, b, i, j, c, threshold, S, q_b, q_t, k_b, k_s, first_position, eps, horizon,
        LOG, THRESHOLD, HORIZON, CLAMP,
    )  # fmt: skip
    w2_t = tl.trans(load_matrix(W2, W, W, WP, WP)) if DEEP else 0
    b2 = load_vector(B2, W, WP) if DEEP else 0
    _, _, _, h = hidden(x, load_vector(W1, W, WP), load_vector(B1, W, WP), w2_t, b2, DEEP, GELU, PRECISION)
    w3_t = tl.trans(load_matrix(W3, H, W, HP, WP))
    out = tl.dot(h, w3_t, input_precision=PRECISION) + load_vector(B3, H, HP)[None, :]  # [N, HP]
    if FINAL:
        out = activated(out, GELU)
    head = tl.arange(0, HP)[None, :]
    Out += ((b.to(tl.int64) * tl.num_programs(1) + layer) * H * T + i) * S
    tl.store(Out + head * (T.to(tl.int64) * S) + j[:, None], out, mask=(head < H) & (j < S)[:, None])


@triton.jit(do_not_specialize=LENGTHS)
def backward(
    QPositions, KPositions, C, L, W1, B1, W2, B2, W3, B3, dOut, Parts, T, S, chunks, pairs, programs,
    q_b, q_t, k_b, k_s, first_position, eps, horizon,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, LOG: tl.constexpr, THRESHOLD: tl.constexpr,
    HORIZON: tl.constexpr, CLAMP: tl.constexpr, DEEP: tl.constexpr, GELU: tl.constexpr, FINAL: tl.constexpr,
    TOTAL: tl.constexpr, PRECISION: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A row of Parts (programs, TOTAL): gradients summed over every `programs`-th pair of a query and N keys."""
    pid = tl.program_id(0)
    c = tl.load(C) if LOG else 0.0
    threshold = tl.load(L) if THRESHOLD else 0.0
    w1, b1 = load_vector(W1, W, WP), load_vector(B1, W, WP)
    b2 = load_vector(B2, W, WP) if DEEP else 0
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
        x, distance, position, normalizer = normalized(
            QPositions, KPositions, b, i, j, c, threshold, S, q_b, q_t, k_b, k_s, first_position, eps, horizon,
            LOG, THRESHOLD, HORIZON, CLAMP,
        )  # fmt: skip
        again = tl.minimum(i, 0)  # 0, but the compiler cannot know: matrices kept in registers all along would spill
        w2 = load_matrix(W2 + again, W, W, WP, WP) if DEEP else 0
        w3 = load_matrix(W3 + again, H, W, HP, WP)
        a1, h1, a2, h2 = hidden(x, w1, b1, tl.trans(w2) if DEEP else 0, b2, DEEP, GELU, PRECISION)
        at = dOut + (b.to(tl.int64) * H * T + i) * S
        g = tl.load(at + head * (T.to(tl.int64) * S) + j[:, None], mask=(head < H) & (j < S)[:, None], other=0.0)
        if FINAL:
            out = tl.dot(h2, tl.trans(w3), input_precision=PRECISION) + load_vector(B3, H, HP)[None, :]
            g *= slope(out, GELU)
        db3 += tl.sum(g, 0)
        dw3 = tl.dot(tl.trans(g), h2, dw3, input_precision=PRECISION)
        g = tl.dot(g, w3, input_precision=PRECISION) * slope(a2, GELU)  # [N, WP]
        if DEEP:
            db2 += tl.sum(g, 0)
            dw2 = tl.dot(tl.trans(g), h1, dw2, input_precision=PRECISION)
            g = tl.dot(g, w2, input_precision=PRECISION) * slope(a1, GELU)
        db1 += tl.sum(g, 0)
        dw1 += tl.sum(g * x[:, None], 0)
        if LOG or THRESHOLD:
            dx = tl.sum(g * w1[None, :], 1)
            to_c, to_L = scalar_gradients(
                dx, x, distance, position, normalizer, c, threshold, horizon, LOG, THRESHOLD, HORIZON, CLAMP
            )
            dc += to_c
            dL += to_L

    Parts += pid.to(tl.int64) * TOTAL
    tl.store(Parts, tl.sum(dc, 0))
    tl.store(Parts + 1, tl.sum(dL, 0))
    store_matrix(Parts + 2, dw1[:, None], W, 1, WP, 1)
    store_matrix(Parts + 2 + W, db1[:, None], W, 1, WP, 1)
    if DEEP:
        store_matrix(Parts + 2 + 2 * W, dw2, W, W, WP, WP)
        store_matrix(Parts + 2 + 2 * W + W * W, db2[:, None], W, 1, WP, 1)
    store_matrix(Parts + TOTAL - H - H * W, dw3, H, W, HP, WP)
    store_matrix(Parts + TOTAL - H, db3[:, None], H, 1, HP, 1)


@triton.jit
def scalar_gradients(
    dx, x, distance, position, normalizer, c, L, horizon,
    LOG: tl.constexpr, THRESHOLD: tl.constexpr, HORIZON: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """Of c and L, a summand [N] for each key, from that of x."""
    divisor = tl.where(normalizer < 1e-6, 1e-6, normalizer) if CLAMP else normalizer
    dpsi = tl.div_rn(dx, tl.zeros_like(dx) + divisor)
    dnormalizer = -dpsi * x
    if CLAMP:
        dnormalizer = tl.where(normalizer < 1e-6, 0.0, dnormalizer)
    i = counted(position, L, horizon, THRESHOLD, HORIZON)
    to_c = tl.zeros_like(dx)
    to_L = tl.zeros_like(dx)
    if LOG:
        dlog = dnormalizer / (tl.abs(c * i) + 1.0)
        to_c = sign(c) * (dpsi * distance / (tl.abs(c * distance) + 1.0) + dlog * i)
        dnormalizer = dlog * sign(c * i) * c
    if HORIZON:
        dnormalizer = tl.where(horizon >= L, dnormalizer, 0.0)  # of L alone: where it counts, it is the larger
    if THRESHOLD:
        to_L = dnormalizer * tl.where(position < L, 1.0, tl.where(position == L, 0.5, 0.0))
    return to_c, to_L


@triton.jit
def store_matrix(at, value, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr):
    """The part of value [RP, CP] that is a matrix, contiguous."""
    r = tl.arange(0, RP)[:, None]
    c = tl.arange(0, CP)[None, :]
    tl.store(at + r * COLUMNS + c, value, mask=(r < ROWS) & (c < COLUMNS))
