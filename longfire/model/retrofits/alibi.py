"""ALiBi decoders, Bloom and MPT: attention with a FIRE that equals the model's ALiBi by Theorem 3.1.

They do not call attention through transformers' interface, so their attention is written here.
Shapes: B batch, H query heads, T queries, D head size, C width.
"""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomBlock
from transformers.models.mpt.modeling_mpt import MptAttention, MptBlock
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from longfire.encodings import PositionEncoding
from longfire.encodings.alibi import alibi_slopes
from longfire.model.attention import active_encoding, attend, update_cache
from longfire.model.inputs import Layout
from longfire.model.retrofits.pretrained import RetrofittedModel

AttentionOutput = tuple[Tensor, Tensor | None]
"""(B, T, C), and the weights (B, H, T, S) if the implementation returns them."""


class AlibiAttention(nn.Module):
    """Attention with its own FIRE."""

    layer_idx: int

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.position_encoding: PositionEncoding = config.build_encoding()

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],  # (B, H, T, D) each
        layout: Layout,
        cache: Cache | None,
        *,
        scaling: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor | None]:
        """→ (B, T, H·D), and the weights if the implementation returns them."""
        q, k, v = qkv
        k, v = update_cache(cache, self.layer_idx, k, v, layout)
        out, weights = attend(
            self,
            (q, k, v),
            active_encoding(self.position_encoding),
            layout,
            scaling=scaling,
            dropout=dropout if self.training else 0.0,
        )
        return out.flatten(2), weights


class AlibiModel(RetrofittedModel):
    """A decoder whose layers have FIRE. Subclasses name the base model's attributes and arguments."""

    attention_class: ClassVar[type[AlibiAttention]]
    layers_name: ClassVar[str]
    """The decoder's attribute with its layers."""
    attention_name: ClassVar[str]
    """A layer's attribute with its attention."""
    norm_name: ClassVar[str]
    """The decoder's attribute with its final norm."""
    layout_argument: ClassVar[str]
    """A layer's argument that reaches its attention unchanged, used to pass the layout."""
    cache_argument: ClassVar[str]
    """A layer's argument for the cache."""
    head_passes_positions = False

    @classmethod
    def config_changes(
        cls, config: Any, training_length: int, encoding: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """FIRE with the model's slopes. Bloom and MPT use the same; like transformers, ignores `alibi_bias_max`."""
        if encoding not in (None, "fire"):
            raise ValueError(
                f"encoding={encoding!r} cannot replace the ALiBi of {config.model_type}; only 'fire' equals it."
            )
        if options:
            raise TypeError(
                f"retrofit takes no {', '.join(options)} for {config.model_type}: its FIRE must equal its ALiBi, which "
                f"determines all options."
            )
        slopes = alibi_slopes(config.num_attention_heads)
        return {"position_encoding": {"theorem": {"name": "alibi", "slopes": slopes}, "max_length": training_length}}

    def normalise_embeddings(self, x: Tensor) -> Tensor:
        """Embeddings (B, T, C) → the first layer's input (B, T, C)."""
        return x

    def __init__(self, config: Any) -> None:
        self.check_config(config)
        super().__init__(config)

    def post_init(self) -> None:
        """Called at the end of the base model's constructor: replace attention before weights are initialised."""
        for i, layer in enumerate(getattr(self, self.layers_name)):
            setattr(layer, self.attention_name, self.attention_class(self.config, i))
        super().post_init()

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(self, input_ids: Tensor | None = None, **options: Any) -> BaseModelOutputWithPast:
        """Tokens (B, T) or inputs_embeds (B, T, C) → the last hidden states (B, T, C).

        Args:
            input_ids: (B, T).
            options: the base model's, by keyword: attention_mask, position_ids, past_key_values, …
        """
        self.refuse_ignored(options)  # for callers of forward alone
        hidden, cache, layout = self.prepare_inputs(input_ids, **options)
        hidden = self.normalise_embeddings(hidden)
        for layer in getattr(self, self.layers_name):
            out = layer(hidden, attention_mask=None, **{self.layout_argument: layout, self.cache_argument: cache})
            hidden = out[0] if isinstance(out, tuple) else out
        last: Any = getattr(self, self.norm_name)(hidden)
        return BaseModelOutputWithPast(last_hidden_state=last, past_key_values=cache)


class BloomFireAttention(AlibiAttention):
    """Bloom's attention with FIRE."""

    def forward(
        self: Any,
        hidden: Tensor,  # (B, T, C)
        residual: Tensor,  # (B, T, C)
        alibi: Layout,
        layer_past: Cache | None = None,
        **_: Any,
    ) -> AttentionOutput:
        qkv = self.query_key_value(hidden).unflatten(-1, (self.num_heads, 3, self.head_dim))
        qkv = qkv.transpose(1, 2).unbind(3)  # (B, H, T, D) each
        dropout, scaling = self.attention_dropout.p, self.inv_norm_factor
        out, weights = self.attend(qkv, alibi, layer_past, scaling=scaling, dropout=dropout)
        return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), weights


class BloomFireModel(AlibiModel):
    """Bloom's decoder with FIRE."""

    layers_name, attention_name, norm_name = "h", "self_attention", "ln_f"
    layout_argument, cache_argument = "alibi", "layer_past"
    head_passes_loss_options = False
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


class MptFireAttention(AlibiAttention):
    """MPT's attention with FIRE."""

    def forward(
        self: Any,
        hidden: Tensor,  # (B, T, C)
        position_bias: Layout,
        past_key_values: Cache | None = None,
        **_: Any,
    ) -> AttentionOutput:
        qkv = self.Wqkv(hidden)
        if self.clip_qkv:
            qkv = qkv.clamp(-self.clip_qkv, self.clip_qkv)
        qkv = qkv.unflatten(-1, (3, self.n_heads, self.head_dim)).transpose(1, 3).unbind(2)  # (B, H, T, D) each
        dropout, scaling = self.attn_dropout_p, self.softmax_scale
        out, weights = self.attend(qkv, position_bias, past_key_values, scaling=scaling, dropout=dropout)
        return self.out_proj(out), weights


class MptFireModel(AlibiModel):
    """MPT's decoder with FIRE."""

    layers_name, attention_name, norm_name = "blocks", "attn", "norm_f"
    layout_argument, cache_argument = "position_bias", "layer_past"
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
