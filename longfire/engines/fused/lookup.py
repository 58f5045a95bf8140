"""Attention at any positions: every pair looks its bias up in a table of distances.

For encodings of the distance alone where keys are not at 0, 1, 2, …: randomised positions, gaps, padding anywhere.
Exact, and slower than the kernels whose tiles know their distances. Deterministic: one writer per output, except for
the table's gradient, to which pairs contribute in any order: it is a sum of integers, which no order changes.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longfire.engines.fused.layout import LookupLayout
from longfire.engines.fused.tiles import LOG2E, Dropout, head_at, heads, kept, load_rows, store_rows
from longfire.engines.fused.zones import TILE

UNSPECIALISED = ["H", "T", "S", "E", "group", "window", "tiles"]
"""Arguments whose values must not trigger a recompilation."""
HEADROOM = 61
"""Bits of an integer sum: 62, less one for rounding in the bound on its terms."""


class PerRow(NamedTuple):
    """A (B, tokens) tensor, or (1, tokens), and the stride of B."""

    at: Any
    b: Any


class Tokens(NamedTuple):
    """Queries or keys of a tile, [N] each."""

    index: Any
    position: Any
    segment: Any
    there: Any


@dataclass(frozen=True)
class LookupCall:
    """One call of attention."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor
    table: Tensor  # (H or 2·H, E) float32: of keys up to the query, then of keys after it
    layout: LookupLayout
    key_mask: Tensor | None  # (B, S)
    seed: Tensor | None
    window: int | None
    causal: bool
    scale: float
    dropout_p: float

    def launch(self, kernel: Any, length: int, **arguments: Any) -> None:
        """Run one program for each tile of this many tokens of each sequence and head."""
        (B, H, T, D), q, layout = self.q.shape, self.q, self.layout
        tiles = triton.cdiv(length, TILE)
        shared: dict[str, Any] = {
            "Q": heads(q),
            "K": heads(self.k),
            "V": heads(self.v),
            "QueryAt": per_row(layout.queries),
            "KeyAt": per_row(layout.keys),
            "QuerySegments": per_row(layout.query_segments),
            "KeySegments": per_row(layout.key_segments),
            "KeyMask": per_row(self.key_mask),
            "Table": self.table,
            "Seed": self.seed,
            "H": H,
            "T": T,
            "S": self.k.shape[2],
            "E": self.table.shape[1],
            "group": H // self.k.shape[1],
            "window": self.window,
            "tiles": tiles,
            "scale": self.scale,
            "dropout_p": self.dropout_p,
            "D": D,
            "DP": max(16, triton.next_power_of_2(D)),
            "N": TILE,
            "CAUSAL": self.causal,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        }
        wide = D > 64 or q.dtype == torch.float32
        kernel[(tiles * B * H,)](**shared, **arguments, num_warps=8 if wide else 4, num_stages=1 if wide else 2)


def per_row(tensor: Tensor | None) -> PerRow | None:
    """A (B or 1, tokens) tensor as a kernel argument."""
    return None if tensor is None else PerRow(tensor, tensor.stride(0) if len(tensor) > 1 else 0)


def forward(call: LookupCall) -> tuple[Tensor, Tensor]:
    """Out (B, H, T, D), and the base-2 log-sum-exp of the logits (B, H, T)."""
    out, lse = torch.empty_like(call.q), call.q.new_empty(call.q.shape[:3], dtype=torch.float32)
    call.launch(lookup_forward, call.q.shape[2], Out=heads(out), Lse=lse, Reach=per_row(call.layout.seen_by_queries))
    return out, lse


def backward(
    call: LookupCall, dout: Tensor, out: Tensor, lse: Tensor, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and the gradient of the table (empty unless `learned`)."""
    B, H, T, D = call.q.shape
    S, grouped = call.k.shape[2], call.k.shape[1] != H
    dq, delta = torch.empty_like(call.q), torch.empty_like(lse)
    units = _units(dout, call.v, B * T, call.dropout_p)
    sums = torch.zeros_like(call.table, dtype=torch.int64) if learned else None
    shared = {"dOut": heads(dout), "Lse": lse, "Delta": delta}
    call.launch(
        lookup_query_grad, T, Out=heads(out), dQ=heads(dq), Sums=sums, Units=units,
        Reach=per_row(call.layout.seen_by_queries), **shared,
    )  # fmt: skip
    shape = (B, H, S, D)
    dk, dv = (x.new_empty(shape, dtype=torch.float32) if grouped else torch.empty_like(x) for x in (call.k, call.v))
    reach = per_row(call.layout.seeing_keys)
    call.launch(lookup_key_grad, S, dK=heads(dk), dV=heads(dv), Reach=reach, **shared)
    if grouped:
        dk, dv = (x.unflatten(1, (call.k.shape[1], -1)).sum(2).to(call.k.dtype) for x in (dk, dv))
    dtable = call.table.new_empty(0) if sums is None else (sums.double() / units).float()
    return dq, dk, dv, dtable


def _units(dout: Tensor, v: Tensor, terms: int, dropout_p: float) -> Tensor:
    """How many units of an integer sum make 1: the largest power of 2 at which it cannot overflow, (1,) float32.

    A term is dS = P·(dO·v − Δ), at most twice the largest dO·v, and a query has one key at a distance.
    """
    largest = [torch.linalg.vector_norm(x, ord=math.inf, dtype=torch.float32) for x in (dout, v)]
    bound = 2 * v.shape[-1] * largest[0] * largest[1] * terms / (1 - dropout_p)
    exponent = (HEADROOM - bound.clamp(min=1e-30).log2()).floor()  # NaN stays NaN
    return torch.exp2(exponent.clamp(max=120)).reshape(1)


# --- kernels --------------------------------------------------------------------------------------------------------


@triton.jit
def tokens_at(index, b, limit, Positions, Segments, Mask):
    """Load positions and segments of a tile's tokens."""
    there = index < limit
    position = tl.load(Positions.at + b * Positions.b + index, mask=there, other=0)  # [N]
    segment = tl.zeros_like(index)  # [N]; the compiler then drops the comparison of zeros
    if Segments is not None:
        segment = tl.load(Segments.at + b * Segments.b + index, mask=there, other=-1)  # [N]
    if Mask is not None:
        there &= tl.load(Mask.at + b * Mask.b + index, mask=there, other=0) != 0  # [N]
    return Tokens(index, position, segment, there)


@triton.jit
def look_up(queries, keys, table, after, E, window, CAUSAL: tl.constexpr):
    """Which pairs count, where in the table their bias is, and the bias, [queries, keys] each.

    `after`: from the table of keys up to the query to that of later keys.
    """
    distance = queries.position[:, None] - keys.position[None, :]
    seen = queries.there[:, None] & keys.there[None, :] & (queries.segment[:, None] == keys.segment[None, :])
    if window is not None:
        seen &= distance < window
        if not CAUSAL:
            seen &= -distance < window
    if CAUSAL:
        seen &= distance >= 0
        at = distance
    else:
        at = tl.where(distance >= 0, distance, after - distance)
    at = tl.where(seen, at, 0)
    return seen, at, tl.load(table + at)  # [N, N]


@triton.jit
def place_of(tiles, H):
    """This program's tile, sequence and head."""
    pid = tl.program_id(0)
    return pid % tiles, pid // tiles // H, pid // tiles % H


@triton.jit(do_not_specialize=UNSPECIALISED)
def lookup_forward(
    Q, K, V, Out,  # Heads: (B, H, T, D), (B, G, S, D) twice, (B, H, T, D)
    Lse,  # (B, H, T)
    QueryAt, KeyAt, QuerySegments, KeySegments, KeyMask,  # PerRow; all but positions may be None
    Reach,  # PerRow: (B, tiles · 2), the tiles of keys that a tile of queries sees
    Table,  # (H or 2 · H, E)
    Seed,  # (1,), or None
    H, T, S, E, group, window, tiles, scale, dropout_p,
    D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence and head."""
    tile, b, h = place_of(tiles, H)
    queries = tokens_at(tile * N + tl.arange(0, N), b, T, QueryAt, QuerySegments, None)
    q = load_rows(head_at(Q, b, h), queries.index, Q.row, T, D, DP, True)  # [N, DP]
    k_at, v_at = head_at(K, b, h, group), head_at(V, b, h, group)
    table, after = Table + h.to(tl.int64) * E, H * E
    dropout = Dropout(tl.load(Seed) if Seed is not None else None, dropout_p, b * H + h)  # []
    acc = tl.zeros([N, DP], tl.float32)
    total = tl.zeros([N], tl.float32)
    top = tl.full([N], float("-inf"), tl.float32)
    reach = Reach.at + b * Reach.b + tile * 2
    for step in range(tl.load(reach), tl.load(reach + 1)):
        keys = tokens_at(step * N + tl.arange(0, N), b, S, KeyAt, KeySegments, KeyMask)
        k = load_rows(k_at, keys.index, K.row, S, D, DP, True)  # [N, DP]
        seen, _at, bias = look_up(queries, keys, table, after, E, window, CAUSAL)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E) + bias * LOG2E  # [N, DP] · [DP, N]
        s = tl.where(seen, s, float("-inf"))
        highest = tl.maximum(top, tl.max(s, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp2(s - finite[:, None])
        rescale = tl.exp2(top - finite)
        total = total * rescale + tl.sum(p, 1)
        if dropout.seed is not None:
            p = tl.where(kept(dropout, queries.index[:, None], keys.index[None, :]), p / (1 - dropout.p), 0.0)
        v = load_rows(v_at, keys.index, V.row, S, D, DP, True)  # [N, DP]
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)  # [N, N] · [N, DP]
        top = highest
    blind = total == 0.0
    acc = acc / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, float("inf"), top + tl.log2(tl.where(blind, 1.0, total)))  # inf: no weight in backward
    store_rows(head_at(Out, b, h), acc.to(Out.at.dtype.element_ty), queries.index, Out.row, T, D, DP)  # [N, DP]
    tl.store(Lse + (b * H + h).to(tl.int64) * T + queries.index, lse, mask=queries.index < T)  # [N]


@triton.jit
def weights_and_grad(
    q, do, k, v,  # [N, DP]
    lse, delta,  # [N]
    queries, keys, table, after, dropout, E, window, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention weights after dropout, dS, which pairs count, and where in the table their bias is: [N, N] each."""
    seen, at, bias = look_up(queries, keys, table, after, E, window, CAUSAL)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E) + bias * LOG2E  # [N, DP] · [DP, N]
    p = tl.where(seen, tl.exp2(s - lse[:, None]), 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)  # [N, DP] · [DP, N]
    weight = p
    if dropout.seed is not None:
        keep = kept(dropout, queries.index[:, None], keys.index[None, :])
        weight = tl.where(keep, p / (1 - dropout.p), 0.0)
        dp = tl.where(keep, dp / (1 - dropout.p), 0.0)
    return weight, p * (dp - delta[:, None]), seen, at


@triton.jit(do_not_specialize=UNSPECIALISED)
def lookup_query_grad(
    Q, K, V, Out, dOut, dQ,  # Heads
    Lse, Delta,  # (B, H, T); Delta is written
    QueryAt, KeyAt, QuerySegments, KeySegments, KeyMask,  # PerRow; all but positions may be None
    Reach,  # PerRow: (B, tiles · 2), the tiles of keys that a tile of queries sees
    Table,  # (H or 2 · H, E)
    Sums,  # like Table, int64, or None
    Units,  # (1,): units of Sums in 1
    Seed,  # (1,), or None
    H, T, S, E, group, window, tiles, scale, dropout_p,
    D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries of one sequence and head, and its contribution to the gradient of the table."""
    tile, b, h = place_of(tiles, H)
    queries = tokens_at(tile * N + tl.arange(0, N), b, T, QueryAt, QuerySegments, None)
    i = queries.index
    q = load_rows(head_at(Q, b, h), i, Q.row, T, D, DP, True)  # [N, DP]
    do = load_rows(head_at(dOut, b, h), i, dOut.row, T, D, DP, True)  # [N, DP]
    out = load_rows(head_at(Out, b, h), i, Out.row, T, D, DP, True)  # [N, DP]
    delta = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    of_head = (b * H + h).to(tl.int64) * T
    tl.store(Delta + of_head + i, delta, mask=i < T)  # [N]
    lse = tl.load(Lse + of_head + i, mask=i < T, other=float("inf"))  # [N]
    k_at, v_at = head_at(K, b, h, group), head_at(V, b, h, group)
    table, after = Table + h.to(tl.int64) * E, H * E
    dropout = Dropout(tl.load(Seed) if Seed is not None else None, dropout_p, b * H + h)  # []
    units = tl.load(Units) if Units is not None else None  # []
    dq = tl.zeros([N, DP], tl.float32)
    reach = Reach.at + b * Reach.b + tile * 2
    for step in range(tl.load(reach), tl.load(reach + 1)):
        keys = tokens_at(step * N + tl.arange(0, N), b, S, KeyAt, KeySegments, KeyMask)
        k = load_rows(k_at, keys.index, K.row, S, D, DP, True)  # [N, DP]
        v = load_rows(v_at, keys.index, V.row, S, D, DP, True)  # [N, DP]
        _weight, ds, seen, at = weights_and_grad(
            q, do, k, v, lse, delta, queries, keys, table, after, dropout, E, window, scale, CAUSAL, PRECISION
        )  # [N, N]
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)  # [N, N] · [N, DP]
        if Sums is not None:
            tl.atomic_add(Sums + h.to(tl.int64) * E + at, (ds * units).to(tl.int64), mask=seen, sem="relaxed")  # [N, N]
    store_rows(head_at(dQ, b, h), (dq * scale).to(dQ.at.dtype.element_ty), i, dQ.row, T, D, DP)  # [N, DP]


@triton.jit(do_not_specialize=UNSPECIALISED)
def lookup_key_grad(
    Q, K, V, dOut, dK, dV,  # Heads
    Lse, Delta,  # (B, H, T)
    QueryAt, KeyAt, QuerySegments, KeySegments, KeyMask,  # PerRow; all but positions may be None
    Reach,  # PerRow: (B, tiles · 2), the tiles of queries that see a tile of keys
    Table,  # (H or 2 · H, E)
    Seed,  # (1,), or None
    H, T, S, E, group, window, tiles, scale, dropout_p,
    D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys of one sequence, for one query head."""
    tile, b, h = place_of(tiles, H)
    keys = tokens_at(tile * N + tl.arange(0, N), b, S, KeyAt, KeySegments, KeyMask)
    k = load_rows(head_at(K, b, h, group), keys.index, K.row, S, D, DP, True)  # [N, DP]
    v = load_rows(head_at(V, b, h, group), keys.index, V.row, S, D, DP, True)  # [N, DP]
    q_at, do_at = head_at(Q, b, h), head_at(dOut, b, h)
    of_head = (b * H + h).to(tl.int64) * T
    table, after = Table + h.to(tl.int64) * E, H * E
    dropout = Dropout(tl.load(Seed) if Seed is not None else None, dropout_p, b * H + h)  # []
    dk = tl.zeros([N, DP], tl.float32)
    dv = tl.zeros([N, DP], tl.float32)
    reach = Reach.at + b * Reach.b + tile * 2
    for step in range(tl.load(reach), tl.load(reach + 1)):
        queries = tokens_at(step * N + tl.arange(0, N), b, T, QueryAt, QuerySegments, None)
        i = queries.index
        q = load_rows(q_at, i, Q.row, T, D, DP, True)  # [N, DP]
        do = load_rows(do_at, i, dOut.row, T, D, DP, True)  # [N, DP]
        lse = tl.load(Lse + of_head + i, mask=i < T, other=float("inf"))  # [N]
        delta = tl.load(Delta + of_head + i, mask=i < T, other=0.0)  # [N]
        weight, ds, _seen, _at = weights_and_grad(
            q, do, k, v, lse, delta, queries, keys, table, after, dropout, E, window, scale, CAUSAL, PRECISION
        )  # [N, N]
        dv = tl.dot(tl.trans(weight.to(do.dtype)), do, dv, input_precision=PRECISION)  # [N, N] · [N, DP]
        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision=PRECISION)  # [N, N] · [N, DP]
    j = keys.index
    store_rows(head_at(dK, b, h), (dk * scale).to(dK.at.dtype.element_ty), j, dK.row, S, D, DP)  # [N, DP]
    store_rows(head_at(dV, b, h), dv.to(dV.at.dtype.element_ty), j, dV.row, S, D, DP)  # [N, DP]
