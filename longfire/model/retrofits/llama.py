"""Llama, Mistral, Qwen2 and Qwen3 with a new FIRE in place of RoPE."""

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import (
    Cache,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    MistralModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from longfire import __version__
from longfire.model.positions import Positions
from longfire.model.retrofits.common import FireAttention, FireCausalLM, FireDecoder
from longfire.model.retrofits.configuration import FireConfig


class LlamaShapedAttention(FireAttention):
    """Llama's without rotation."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    head_dim: int
    scaling: float
    attention_dropout: float

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Of queries and keys, where there are any."""
        return q, k

    def forward(
        self,
        hidden_states: Tensor,  # (B, T, C)
        positions: Positions,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """→ (B, T, C)"""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(hidden_states).unflatten(-1, (-1, self.head_dim)) for project in projections)
        q, k, v = (x.transpose(1, 2) for x in (*self.norms(q, k), v))  # (B, H or fewer, T, D)
        dropout = self.attention_dropout
        out, weights = self.attend(
            q, k, v, positions, attention_mask, past_key_values, scaling=self.scaling, dropout=dropout
        )
        return self.o_proj(out), weights


class LlamaShapedDecoder(FireDecoder):
    """Llama's without RoPE."""

    layers_at, attention_at, norm_at = "layers", "self_attn", "norm"

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuse layers that see a window."""
        windows = [kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"]
        if windows or getattr(config, "sliding_window", None) is not None:
            raise ValueError(
                f"FIRE is for attention to the whole context, and this model has sliding_window={config.sliding_window}"
                f"{f' and {len(windows)} layers of {windows[0]}' if windows else ''}. To train it without, set "
                f"model.config.sliding_window = None before"
                f"{', and every one of model.config.layer_types to full_attention' if windows else ''}."
            )

    def post_init(self) -> None:
        """Called at the end of the base model's constructor."""
        del self.rotary_emb
        super().post_init()

    def step(
        self, layer: Any, hidden: Tensor, positions: Positions, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        out: Tensor = layer(hidden, positions=positions, attention_mask=mask, past_key_values=cache)
        return out


class LlamaShapedCausalLM(FireCausalLM):
    """For further training: without it, the model has lost its sense of order."""

    @classmethod
    def changes_for(cls, config: Any, training_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """A new FIRE for training at this length."""
        encoding = {"name": "fire", "init_L": training_length / 4, **options}
        return {"position_encoding": encoding, "max_position_embeddings": training_length}


@strict
class FireLlamaConfig(FireConfig, LlamaConfig):
    """Llama's, with a position encoding."""

    model_type = "longfire_llama"
    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__


class FireLlamaAttention(LlamaShapedAttention, LlamaAttention):  # type: ignore[misc]
    """Llama's, with FIRE."""


class FireLlamaModel(LlamaShapedDecoder, LlamaModel):
    """Llama with FIRE, without its head."""

    config_class = FireLlamaConfig
    attention_class = FireLlamaAttention


class FireLlamaForCausalLM(LlamaShapedCausalLM, LlamaForCausalLM):
    """Llama with FIRE."""

    config_class = FireLlamaConfig
    decoder_class = FireLlamaModel


@strict
class FireMistralConfig(FireConfig, MistralConfig):
    """Mistral's, with a position encoding."""

    model_type = "longfire_mistral"
    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__


class FireMistralAttention(LlamaShapedAttention, MistralAttention):  # type: ignore[misc]
    """Mistral's, with FIRE."""


class FireMistralModel(LlamaShapedDecoder, MistralModel):
    """Mistral with FIRE, without its head."""

    config_class = FireMistralConfig
    attention_class = FireMistralAttention


class FireMistralForCausalLM(LlamaShapedCausalLM, MistralForCausalLM):
    """Mistral with FIRE."""

    config_class = FireMistralConfig
    decoder_class = FireMistralModel


@strict
class FireQwen2Config(FireConfig, Qwen2Config):
    """Qwen2's, with a position encoding."""

    model_type = "longfire_qwen2"
    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__


class FireQwen2Attention(LlamaShapedAttention, Qwen2Attention):  # type: ignore[misc]
    """Qwen2's, with FIRE."""


class FireQwen2Model(LlamaShapedDecoder, Qwen2Model):
    """Qwen2 with FIRE, without its head."""

    config_class = FireQwen2Config
    attention_class = FireQwen2Attention


class FireQwen2ForCausalLM(LlamaShapedCausalLM, Qwen2ForCausalLM):
    """Qwen2 with FIRE."""

    config_class = FireQwen2Config
    decoder_class = FireQwen2Model


@strict
class FireQwen3Config(FireConfig, Qwen3Config):
    """Qwen3's, with a position encoding."""

    model_type = "longfire_qwen3"
    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__


class FireQwen3Attention(LlamaShapedAttention, Qwen3Attention):  # type: ignore[misc]
    """Qwen3's, with FIRE."""

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Over each head."""
        return self.q_norm(q), self.k_norm(k)


class FireQwen3Model(LlamaShapedDecoder, Qwen3Model):
    """Qwen3 with FIRE, without its head."""

    config_class = FireQwen3Config
    attention_class = FireQwen3Attention


class FireQwen3ForCausalLM(LlamaShapedCausalLM, Qwen3ForCausalLM):
    """Qwen3 with FIRE."""

    config_class = FireQwen3Config
    decoder_class = FireQwen3Model
