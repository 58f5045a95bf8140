"""The model families that can be retrofitted: Bloom and MPT (ALiBi), Llama, Mistral, Qwen2 and Qwen3 (RoPE).

`FAMILIES` lists what is specific to each family. From it, four classes are built per family, such as `FireLlamaConfig`,
`FireLlamaAttention`, `FireLlamaModel` and `FireLlamaForCausalLM`.
Shapes: B batch, H query heads, G key heads, T queries, D head size, C width.
"""

from importlib import import_module
from typing import Any, NamedTuple

import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers import Cache
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomBlock
from transformers.models.mpt.modeling_mpt import MptAttention, MptBlock

from longfire.encodings.alibi import alibi_slopes
from longfire.model.inputs import Positions
from longfire.model.retrofits.configuration import FireConfig
from longfire.model.retrofits.decoder import FireAttention, FireCausalLM, FireDecoder

AttentionOutput = tuple[Tensor, Tensor | None]
"""(B, T, C), and the weights (B, H, T, S) if the implementation returns them."""


class FromALiBi(FireCausalLM):
    """Starts with the same logits up to the training length, by Theorem 3.1.

    Bloom and MPT use the same slopes. Like transformers, this ignores MPT's `alibi_bias_max`.
    """

    @classmethod
    def config_changes(cls, config: Any, training_length: int, options: dict[str, Any]) -> dict[str, Any]:
        if options:
            raise TypeError(
                f"retrofit takes no {', '.join(options)} for {config.model_type}: its FIRE must equal its ALiBi, which "
                f"determines all options."
            )
        slopes = alibi_slopes(config.num_attention_heads)
        return {"position_encoding": {"theorem": {"name": "alibi", "slopes": slopes}, "max_length": training_length}}


class FromRoPE(FireCausalLM):
    """Starts with a new FIRE, which must be trained."""

    @classmethod
    def config_changes(cls, config: Any, training_length: int, options: dict[str, Any]) -> dict[str, Any]:
        encoding = {"name": "fire", "init_L": training_length / 4, **options}
        return {"position_encoding": encoding, "max_position_embeddings": training_length}


class BloomFireAttention(FireAttention):
    """Bloom's attention with FIRE."""

    def forward(
        self: Any,
        hidden: Tensor,  # (B, T, C)
        residual: Tensor,  # (B, T, C)
        alibi: Positions,
        attention_mask: Tensor | None,
        layer_past: Cache | None = None,
        **_: Any,
    ) -> AttentionOutput:
        qkv = self.query_key_value(hidden).unflatten(-1, (self.num_heads, 3, self.head_dim))
        qkv = qkv.transpose(1, 2).unbind(3)  # (B, H, T, D) each
        dropout, scaling = self.attention_dropout.p, self.inv_norm_factor
        out, weights = self.attend(qkv, alibi, attention_mask, layer_past, scaling=scaling, dropout=dropout)
        return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), weights


class BloomFireDecoder(FireDecoder):
    """Bloom's decoder with FIRE."""

    layers_name, attention_name, norm_name = "h", "self_attention", "ln_f"
    positions_argument, cache_argument = "alibi", "layer_past"
    word_embeddings_layernorm: Any
    _can_record_outputs = {"hidden_states": BloomBlock, "attentions": BloomAttention}  # noqa: RUF012

    @classmethod
    def check_config(cls, config: Any) -> None:
        if config.slow_but_exact and config.pretraining_tp > 1:
            raise ValueError(
                f"slow_but_exact=True with pretraining_tp={config.pretraining_tp} is not supported. Set "
                f"model.config.slow_but_exact = False first."
            )

    def normalise_embeddings(self, x: Tensor) -> Tensor:
        out: Tensor = self.word_embeddings_layernorm(x)
        return out


class MptFireAttention(FireAttention):
    """MPT's attention with FIRE."""

    def forward(
        self: Any,
        hidden: Tensor,  # (B, T, C)
        position_bias: Positions,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> AttentionOutput:
        qkv = self.Wqkv(hidden)
        if self.clip_qkv:
            qkv = qkv.clamp(-self.clip_qkv, self.clip_qkv)
        qkv = qkv.unflatten(-1, (3, self.n_heads, self.head_dim)).transpose(1, 3).unbind(2)  # (B, H, T, D) each
        dropout, scaling = self.attn_dropout_p, self.softmax_scale
        out, weights = self.attend(
            qkv, position_bias, attention_mask, past_key_values, scaling=scaling, dropout=dropout
        )
        return self.out_proj(out), weights


class MptFireDecoder(FireDecoder):
    """MPT's decoder with FIRE."""

    layers_name, attention_name, norm_name = "blocks", "attn", "norm_f"
    positions_argument, cache_argument = "position_bias", "layer_past"
    _can_record_outputs = {"hidden_states": MptBlock, "attentions": MptAttention}  # noqa: RUF012

    @classmethod
    def check_config(cls, config: Any) -> None:
        supported = {"alibi": True, "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False}
        for name, value in supported.items():
            found = getattr(config.attn_config, name)
            if found != value:
                raise ValueError(
                    f"attn_config.{name}={found!r} is not supported: transformers ignores it and runs MPT with "
                    f"{value!r}. If that is correct, set model.config.attn_config.{name} = {value!r} first."
                )


class LlamaFireAttention(FireAttention):
    """Llama's attention with FIRE and without rotation; Qwen3 also normalises queries and keys."""

    def forward(
        self: Any,
        hidden_states: Tensor,  # (B, T, C)
        positions: Positions,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **_: Any,
    ) -> AttentionOutput:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(hidden_states).unflatten(-1, (-1, self.head_dim)) for project in projections)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        qkv = tuple(x.transpose(1, 2) for x in (q, k, v))  # (B, H, T, D), (B, G, T, D), (B, G, T, D)
        dropout, scaling = self.attention_dropout, self.scaling
        out, weights = self.attend(qkv, positions, attention_mask, past_key_values, scaling=scaling, dropout=dropout)
        return self.o_proj(out), weights


class LlamaFireDecoder(FireDecoder):
    """Llama's decoder with FIRE and without RoPE."""

    layers_name, attention_name, norm_name = "layers", "self_attn", "norm"
    positions_argument, cache_argument = "positions", "past_key_values"

    @classmethod
    def check_config(cls, config: Any) -> None:
        windows = [kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"]
        if windows or getattr(config, "sliding_window", None) is not None:
            layers = f" and {len(windows)} layers of {windows[0]}" if windows else ""
            remedy = ", and every entry of model.config.layer_types to 'full_attention'" if windows else ""
            raise ValueError(
                f"FIRE needs full attention, but this model has sliding_window={config.sliding_window}{layers}. To "
                f"train it without windows, set model.config.sliding_window = None first{remedy}."
            )

    def post_init(self) -> None:
        """Called at the end of the base model's constructor."""
        del self.rotary_emb
        super().post_init()


class Family(NamedTuple):
    """What is specific to a family. The base model's classes are found by the family's name."""

    attention: type[FireAttention]
    decoder: type[FireDecoder]
    causal_lm: type[FireCausalLM]


ALIBI = {
    "Bloom": Family(BloomFireAttention, BloomFireDecoder, FromALiBi),
    "Mpt": Family(MptFireAttention, MptFireDecoder, FromALiBi),
}
LLAMA_LIKE = dict.fromkeys(
    ("Llama", "Mistral", "Qwen2", "Qwen3"), Family(LlamaFireAttention, LlamaFireDecoder, FromRoPE)
)
FAMILIES: dict[str, Family] = {**ALIBI, **LLAMA_LIKE}


def build_classes(name: str, family: Family) -> tuple[type, type[FireCausalLM]]:
    """The base model's causal LM class, and its version with FIRE."""
    base = import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")

    def build(part: str, mixin: type, **attributes: Any) -> Any:
        title = f"Fire{name}{part}"
        body = {"__module__": __name__, "__doc__": f"transformers' {name}{part} with FIRE.", **attributes}
        globals()[title] = type(title, (mixin, getattr(base, f"{name}{part}")), body)  # where pickle looks it up
        return globals()[title]

    config = strict(build("Config", FireConfig, model_type=f"longfire_{name.lower()}"))
    attention = build("Attention", family.attention)
    decoder = build("Model", family.decoder, config_class=config, attention_class=attention)
    causal_lm = build("ForCausalLM", family.causal_lm, config_class=config, decoder_class=decoder)
    return getattr(base, f"{name}ForCausalLM"), causal_lm


ARCHITECTURES: dict[type, type[FireCausalLM]] = dict(build_classes(*item) for item in FAMILIES.items())
"""Supported model classes and their retrofitted counterparts."""
