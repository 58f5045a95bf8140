"""Attention functions as transformers calls them: `attn_implementation` "eager" and "longfire".

"sdpa" is transformers' own. An implementation is a function for attention and one for the mask that it is given.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from longfire.encodings import PositionEncoding
from longfire.engines import PreparedBias
from longfire.engines.dispatch import choose
from longfire.engines.request import Request
from longfire.model.positions import Positions
from longfire.validation import one_of

NAME = "longfire"
IMPLEMENTATIONS = (NAME, "sdpa", "eager")


class TakesOurAttention:
    """A model whose attention is "longfire" by default."""

    config: Any

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Called by transformers."""
        one_of("attn_implementation", requested_attention, (None, *IMPLEMENTATIONS))
        return requested_attention or NAME

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True

    def refuse_output_attentions(self, asked: bool | None) -> None:
        """Refuse attention weights from an implementation that has none. `asked`: None is as configured."""
        implementation = self.config._attn_implementation
        if (self.config.output_attentions if asked is None else asked) and implementation != "eager":
            raise ValueError(
                f"attn_implementation={implementation!r} has no attention weights to return: leave output_attentions "
                f"out, or call model.set_attn_implementation('eager') first."
            )


def longfire_attention(
    module: nn.Module,
    query: Tensor,  # (B, H, T, D)
    key: Tensor,  # (B, H or fewer, S, D)
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    position_bias: PositionEncoding | PreparedBias | None = None,
    positions: Positions | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`longfire.attention`: fused on a GPU, in blocks on a CPU. → (B, T, H, D)"""
    if positions is None:
        raise ValueError(
            f"attn_implementation='{NAME}' serves longfire's own models and retrofitted ones, and "
            f"{type(module).__name__} is neither: longfire.model.retrofit(model) makes it one, or take 'sdpa'."
        )
    if positions.padding is not None and isinstance(position_bias, PositionEncoding):
        position_bias = positions.prepare(position_bias)  # who compiles cannot look at positions
    given = not positions.in_order and not isinstance(position_bias, PreparedBias)
    request = Request(  # not `attention`, which would look at positions that were checked once for all layers
        query,
        key,
        value,
        position_bias,
        q_positions=positions.queries if given else None,
        k_positions=positions.keys if given else None,
        causal=True,
        key_mask=positions.key_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return choose(request).run(request).transpose(1, 2), None


def longfire_mask(
    *, kv_length: int, mask_function: Callable[..., Any], attention_mask: Tensor | None = None, **_: Any
) -> Tensor | None:
    """Which keys are there, (B, 1, 1, S), or None for all. Causality is the attention's own."""
    if mask_function is not causal_mask_function:
        raise ValueError(
            f"attn_implementation='{NAME}' is causal, and this model asks for another mask (a sliding window, packed "
            f"documents): take 'sdpa' or 'eager'."
        )
    if attention_mask is None:
        return None
    missing = kv_length - attention_mask.shape[-1]
    return nn.functional.pad(attention_mask, (0, max(missing, 0)))[:, None, None, :kv_length]


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Plain operations, and the weights (B, H, T, S) for whoever wants to see them."""
    if key.shape[1] != query.shape[1]:  # several heads share a key
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    logits = query @ key.transpose(-1, -2) * scaling
    if position_bias is not None:
        logits = logits + position_bias
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(value.dtype)
    weights = nn.functional.dropout(weights, dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def cached(cache: Cache | None, layer: int, k: Tensor, v: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """Keys and values with those of earlier calls: of a static cache, what has been written."""
    if cache is None:
        return k, v
    k, v = cache.update(k, v, layer)
    S = positions.keys.shape[-1]
    return (k, v) if k.shape[2] == S else (k[:, :, :S], v[:, :, :S])


def attend(
    module: nn.Module,
    implementation: str | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    bias: PositionEncoding | PreparedBias | None,
    positions: Positions,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """By the implementation of this name, each given the bias as it takes it."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation or "eager", eager_attention)
    if function is longfire_attention:
        return longfire_attention(module, *qkv, mask, position_bias=bias, positions=positions, **options)
    if mask is not None and mask.dtype == torch.bool and function is eager_attention:
        dtype = qkv[0].dtype
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    dense = bias(positions.queries, positions.keys) if isinstance(bias, PositionEncoding) else bias
    if isinstance(dense, PreparedBias):
        dense = dense.dense()
    if dense is not None:
        dense = dense[None] if dense.ndim == 3 else dense
        if dense.is_cuda:  # torch's kernels there take it in the queries' precision alone
            dense = dense.to(qkv[0].dtype)
    found: tuple[Tensor, Tensor | None] = function(module, *qkv, mask, position_bias=dense, **options)
    return found


def register() -> None:
    """Make "longfire" known to transformers, the mask too: without one, padding would be seen."""
    AttentionInterface.register(NAME, longfire_attention)
    AttentionMaskInterface.register(NAME, longfire_mask)
