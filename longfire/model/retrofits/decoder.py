"""Base classes of retrofitted models: attention with FIRE, the forward pass, initialisation.

These classes come before the base model's: `class FireBloomModel(FireDecoder, BloomModel)`.
Shapes: B batch, H query heads, G key heads, T queries, D head size, C width.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from longfire.encodings import PositionEncoding
from longfire.model.attention import attend, update_cache
from longfire.model.inputs import Positions, mask_and_positions
from longfire.model.loading import EncodingModel
from longfire.model.packing import take_packing


class FireAttention(nn.Module):
    """Attention with its own FIRE."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.config, self.layer = config, layer_idx
        self.position_encoding: PositionEncoding = config.build_encoding()

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],  # (B, H, T, D), (B, G, T, D), (B, G, T, D)
        positions: Positions,
        mask: Tensor | None,
        cache: Cache | None,
        *,
        scaling: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor | None]:
        """→ (B, T, H·D), and the weights if the implementation returns them."""
        q, k, v = qkv
        k, v = update_cache(cache, self.layer, k, v, positions)
        out, weights = attend(
            self,
            self.config._attn_implementation,
            (q, k, v),
            mask,
            self.position_encoding,
            positions,
            scaling=scaling,
            dropout=dropout if self.training else 0.0,
        )
        return out.flatten(2), weights


class FirePreTrainedModel(EncodingModel):
    """Initialises FIRE as configured, and the rest as the base model does."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEncoding):  # undoes the base model's initialisation of the layers inside it
            config: Any = self.config
            fresh = config.build_encoding().state_dict(keep_vars=True)
            for name, tensor in module.state_dict(keep_vars=True).items():
                if not getattr(tensor, "_is_hf_initialized", False):
                    tensor.copy_(fresh[name])
        else:
            super()._init_weights(module)


class FireDecoder(FirePreTrainedModel):
    """A decoder whose layers have FIRE. Subclasses name the base model's attributes and arguments."""

    attention_class: ClassVar[type[FireAttention]]
    layers_name: ClassVar[str]
    """The decoder's attribute with its layers."""
    attention_name: ClassVar[str]
    """A layer's attribute with its attention."""
    norm_name: ClassVar[str]
    """The decoder's attribute with its final norm."""
    positions_argument: ClassVar[str]
    """A layer's argument that reaches its attention unchanged, used to pass positions."""
    cache_argument: ClassVar[str]
    """A layer's argument for the cache."""

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Refuse configurations that cannot be honoured."""

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

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        """Tokens (B, T) or inputs_embeds (B, T, C) → the last hidden states (B, T, C).

        Args:
            input_ids: (B, T).
            options: the base model's, by keyword: attention_mask, position_ids, past_key_values, …
        """
        options = {name: value for name, value in options.items() if value is not None}  # None means the default
        self.check_output_attentions(options.get("output_attentions"))
        return self._forward(input_ids, **options)

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def _forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds.")
        hidden: Tensor = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if isinstance(attention_mask, dict):  # `generate` passes one mask per layer type; here there is one type
            (attention_mask,) = attention_mask.values()
        packing = take_packing(options)
        mask, positions = mask_and_positions(
            self.config, hidden, attention_mask, position_ids, past_key_values, packing=packing
        )
        arguments = {self.positions_argument: positions, self.cache_argument: past_key_values}
        hidden = self.normalise_embeddings(hidden)
        for layer in getattr(self, self.layers_name):
            out = layer(hidden, attention_mask=mask, **arguments)
            hidden = out[0] if isinstance(out, tuple) else out
        last: Any = getattr(self, self.norm_name)(hidden)
        return BaseModelOutputWithPast(last_hidden_state=last, past_key_values=past_key_values)


class FireCausalLM(FirePreTrainedModel):
    """A decoder with FIRE and the base model's head."""

    decoder_class: ClassVar[type[FireDecoder]]

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)  # skips the base model's, which builds a decoder without FIRE
        setattr(self, self.base_model_prefix, self.decoder_class(config))
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def config_changes(cls, config: Any, training_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """The configuration fields that retrofitting changes."""
        raise NotImplementedError(f"{cls.__name__} must define config_changes")
