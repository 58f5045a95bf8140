"""MPT with FIRE."""

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers import Cache, MptConfig, MptForCausalLM, MptModel
from transformers.models.mpt.modeling_mpt import MptAttention, MptBlock

from longfire import __version__
from longfire.model.positions import Positions
from longfire.model.retrofits.alibi import FireFromALiBi
from longfire.model.retrofits.common import FireAttention, FireDecoder
from longfire.model.retrofits.configuration import FireConfig

SERVED = {"alibi": True, "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False}
"""Of attn_config, what transformers' MPT takes no notice of and always is."""


@strict
class FireMptConfig(FireConfig, MptConfig):
    """MPT's, with a position encoding."""

    model_type = "longfire_mpt"
    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__


class FireMptAttention(FireAttention, MptAttention):
    """MPT's, with FIRE."""

    def forward(  # type: ignore[override]
        self,
        hidden: Tensor,  # (B, T, C)
        position_bias: Positions,  # so called by MPT's layer, which hands it down as it is
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        qkv = self.Wqkv(hidden)
        if self.clip_qkv:
            qkv = qkv.clamp(-self.clip_qkv, self.clip_qkv)
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, self.head_dim)).transpose(1, 3).unbind(2)  # (B, H, T, D)
        dropout: float = self.attn_dropout_p
        scaling: Any = self.softmax_scale
        out, weights = self.attend(
            q, k, v, position_bias, attention_mask, past_key_values, scaling=scaling, dropout=dropout
        )
        return self.out_proj(out), weights


class FireMptModel(FireDecoder, MptModel):
    """MPT with FIRE, without its head."""

    config_class = FireMptConfig
    attention_class = FireMptAttention
    layers_at, attention_at, norm_at = "blocks", "attn", "norm_f"
    _can_record_outputs = {"hidden_states": MptBlock, "attentions": MptAttention}  # noqa: RUF012

    @classmethod
    def check(cls, config: FireMptConfig) -> None:
        for name, value in SERVED.items():
            found = getattr(config.attn_config, name)
            if found != value:
                raise ValueError(
                    f"an MPT with attn_config.{name}={found!r} cannot have FIRE: transformers has no such MPT and runs "
                    f"it as {value!r}. If that is what it is, set model.config.attn_config.{name} = {value!r} before."
                )

    def step(
        self, layer: Any, hidden: Tensor, positions: Positions, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        out: Tensor = layer(hidden, position_bias=positions, attention_mask=mask, layer_past=cache)[0]
        return out


class FireMptForCausalLM(FireFromALiBi, MptForCausalLM):
    """MPT with FIRE."""

    config_class = FireMptConfig
    decoder_class = FireMptModel
