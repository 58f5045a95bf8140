"""Attention functions for transformers: `attn_implementation` "longfire" and "eager".

"sdpa" is transformers' own.
Shapes: B batch, H query heads, G key heads, T queries, S keys, D head size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from longfire import parallel
from longfire.encodings import PositionEncoding
from longfire.engines import PreparedBias
from longfire.engines.dispatch import choose
from longfire.engines.request import Request
from longfire.model.inputs import LONGFIRE, Layout

IMPLEMENTATIONS = (LONGFIRE, "sdpa", "eager")


def longfire_attention(
    module: nn.Module,
    query: Tensor,  # (B, H, T, D)
    key: Tensor,  # (B, G, S, D)
    value: Tensor,  # (B, G, S, D)
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    position_bias: PositionEncoding | PreparedBias | None = None,
    layout: Layout | None = None,
    window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`longfire.attention`: fused on a GPU, chunked on a CPU. → (B, T, H, D)"""
    if layout is None:
        raise ValueError(
            f"attn_implementation='{LONGFIRE}' works only with longfire's own and retrofitted models, not "
            f"with {type(module).__name__}. Convert it with longfire.model.retrofit(model), or use 'sdpa'."
        )
    if layout.padding is not None and isinstance(position_bias, PositionEncoding):
        position_bias = layout.prepare(position_bias, window=window)  # a compiled graph cannot read positions
    explicit, group, q = not layout.in_order and not isinstance(position_bias, PreparedBias), layout.group, query
    if group is not None:
        key, value = parallel.gather_keys(query, key, value, group)
        query = parallel.whole_like(query, group, 2)
    queries = layout.queries if group is None else layout.keys
    request = Request(  # not `attention`, which would check the positions again in every layer
        query,
        key,
        value,
        position_bias,
        q_positions=queries if explicit else None,
        k_positions=layout.keys if explicit else None,
        causal=layout.causal,
        key_mask=layout.key_mask,
        dropout_p=dropout,
        scale=scaling,
        window=window,
        segment_ids=layout.segment_ids,
        position_limit=layout.limit,
    )
    if group is not None:  # gradients of the encoding are summed by DDP or FSDP
        return parallel.attend(q, request, group, sum_bias_grad=False).transpose(1, 2), None
    return choose(request).run(request).transpose(1, 2), None


def eager_attention(
    module: nn.Module,
    query: Tensor,  # (B, H, T, D)
    key: Tensor,  # (B, G, S, D)
    value: Tensor,  # (B, G, S, D)
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Plain PyTorch: the output (B, T, H, D) and the attention weights (B, H, T, S).

    A soft cap bounds q·kᵀ, before the bias is added. `s_aux` (H,) are attention sinks: logits of a key without a value.
    """
    if key.shape[1] != query.shape[1]:  # grouped-query attention
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    logits = query @ key.transpose(-1, -2) * scaling  # (B, H, T, S)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if position_bias is not None:
        logits = logits + position_bias
    if attention_mask is not None:
        logits = logits + attention_mask
    if s_aux is not None:
        sinks = s_aux.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, sinks], dim=-1)  # (B, H, T, S + 1)
    weights = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(value.dtype)
    weights = weights if s_aux is None else weights[..., :-1]
    weights = nn.functional.dropout(weights, dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def update_cache(cache: Cache | None, layer: int, k: Tensor, v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Append keys and values (B, G, T, D) → all so far (B, G, S, D), without a static cache's spare slots."""
    if cache is None:
        return k, v
    k, v = cache.update(k, v, layer)
    S = layout.keys.shape[-1]
    return (k, v) if k.shape[2] == S else (k[:, :, :S], v[:, :, :S])


def attend(
    module: nn.Module,
    qkv: tuple[Tensor, Tensor, Tensor],  # (B, H, T, D), (B, G, S, D), (B, G, S, D)
    bias: PositionEncoding | PreparedBias | None,
    layout: Layout,
    *,
    window: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Call the implementation with bias and mask in the form it expects → (B, T, H, D), and any weights it returns."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(layout.implementation, eager_attention)
    if function is longfire_attention:
        return longfire_attention(module, *qkv, None, position_bias=bias, layout=layout, window=window, **options)
    mask = layout.within(window)
    if mask is not None and mask.dtype == torch.bool and function is eager_attention:
        dtype = qkv[0].dtype
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    dense = bias(layout.queries, layout.keys) if isinstance(bias, PositionEncoding) else bias
    if isinstance(dense, PreparedBias):
        dense = dense.dense()
    if dense is not None:
        dense = dense[None] if dense.ndim == 3 else dense  # (1 or B, H, T, S)
        if dense.is_cuda:  # torch's CUDA kernels require the queries' dtype
            dense = dense.to(qkv[0].dtype)
    result: tuple[Tensor, Tensor | None] = function(module, *qkv, mask, position_bias=dense, **options)
    return result


def active_encoding(module: Any) -> PositionEncoding | None:
    """The encoding itself, or the one that PEFT's wrapper for `modules_to_save` currently uses."""
    if module is None or isinstance(module, PositionEncoding):
        return module
    adapted = module.active_adapters and not module.disable_adapters
    chosen = module.modules_to_save[module.active_adapters[0]] if adapted else module.original_module
    return active_encoding(chosen)
