"""Inputs of attention, and attention as a loop over numbers."""

import math

import torch

from tests.samples import HEADS


def random(B=2, H=HEADS, G=None, T=7, S=None, D=8, dtype=torch.float64, **options):
    """q, k and v, with as many keys as queries by default."""
    q = torch.randn(B, H, T, D, dtype=dtype, **options)
    k, v = (torch.randn(B, G or H, T if S is None else S, D, dtype=dtype, **options) for _ in range(2))
    return q, k, v


def by_hand(
    q, k, v, bias, q_positions, k_positions, key_mask=None, scale=None, causal=True, window=None, segment_ids=None
):
    """One query, one key, one number at a time. Positions are lists of lists, one per sequence."""
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    out = torch.zeros(B, H, T, D, dtype=torch.float64)
    scale = D**-0.5 if scale is None else scale
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            for t in range(T):
                seen = [
                    s
                    for s in range(S)
                    if (not causal or k_positions[b][s] <= q_positions[b][t])
                    and (window is None or abs(q_positions[b][t] - k_positions[b][s]) < window)
                    and (segment_ids is None or segment_ids[b, s] == segment_ids[b, S - T + t])
                    and (key_mask is None or bool(key_mask[b, s]))
                ]
                logits = [scale * float(q[b, h, t] @ k[b, g, s]) + float(bias[b, h, t, s]) for s in seen]
                weights = [math.exp(x - max(logits)) for x in logits]
                for weight, s in zip(weights, seen, strict=True):
                    out[b, h, t] += weight / sum(weights) * v[b, g, s]
    return out
