"""Bloom with FIRE."""

from typing import Any

import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM, BloomModel, Cache
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomBlock

from longfire import __version__
from longfire.model.positions import Positions
from longfire.model.retrofits.alibi import FireFromALiBi
from longfire.model.retrofits.common import FireAttention, FireDecoder
from longfire.model.retrofits.configuration import FireConfig


@strict
class FireBloomConfig(FireConfig, BloomConfig):
    """Bloom's, with a position encoding."""

    model_type = "longfire_bloom"
    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__


class FireBloomAttention(FireAttention, BloomAttention):
    """Bloom's, with FIRE."""

    def forward(  # type: ignore[override]
        self,
        hidden: Tensor,  # (B, T, C)
        residual: Tensor,
        alibi: Positions,  # so called by Bloom's layer, which hands it down as it is
        attention_mask: Tensor | None,
        layer_past: Cache | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        qkv = self.query_key_value(hidden).unflatten(-1, (self.num_heads, 3, self.head_dim))
        q, k, v = qkv.transpose(1, 2).unbind(3)  # (B, H, T, D)
        dropout, scaling = self.attention_dropout.p, self.inv_norm_factor
        out, weights = self.attend(q, k, v, alibi, attention_mask, layer_past, scaling=scaling, dropout=dropout)
        return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), weights


class FireBloomModel(FireDecoder, BloomModel):
    """Bloom with FIRE, without its head."""

    config_class = FireBloomConfig
    attention_class = FireBloomAttention
    layers_at, attention_at, norm_at = "h", "self_attention", "ln_f"
    _can_record_outputs = {"hidden_states": BloomBlock, "attentions": BloomAttention}  # noqa: RUF012

    @classmethod
    def check(cls, config: FireBloomConfig) -> None:
        if config.slow_but_exact and config.pretraining_tp > 1:
            raise ValueError(
                f"slow_but_exact=True with pretraining_tp={config.pretraining_tp} (sums in slices) is not served: "
                f"set model.config.slow_but_exact = False before."
            )

    def first(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.word_embeddings_layernorm(hidden)
        return out

    def step(
        self, layer: Any, hidden: Tensor, positions: Positions, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        out: Tensor = layer(hidden, alibi=positions, attention_mask=mask, layer_past=cache)[0]
        return out


class FireBloomForCausalLM(FireFromALiBi, BloomForCausalLM):
    """Bloom with FIRE."""

    config_class = FireBloomConfig
    decoder_class = FireBloomModel
