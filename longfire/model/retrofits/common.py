"""What all retrofitted models share: attention with FIRE, the pass through the layers, loading and starting weights.

The classes here come before the base model's own: `class FireBloomModel(FireDecoder, BloomModel)`.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from longfire.encodings import PositionEncoding
from longfire.model import attention
from longfire.model.checkpoints import RefusesOtherEncodings
from longfire.model.modeling import masks_and_positions
from longfire.model.positions import Positions


class FireAttention(nn.Module):
    """Attention with a FIRE of its own."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.config, self.layer = config, layer_idx
        self.position_encoding: PositionEncoding = config.build_encoding()

    def attend(
        self,
        q: Tensor,  # (B, H, T, D)
        k: Tensor,  # (B, H or fewer, T, D)
        v: Tensor,
        positions: Positions,
        mask: Tensor | None,
        cache: Cache | None,
        *,
        scaling: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor | None]:
        """→ (B, T, H·D), and the weights where the implementation has them."""
        k, v = attention.cached(cache, self.layer, k, v, positions)
        out, weights = attention.attend(
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


class FirePreTrainedModel(attention.TakesOurAttention, RefusesOtherEncodings):
    """Loading, saving and starting weights."""

    _keep_in_fp32_modules_strict = ["position_encoding"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEncoding):  # after the layers in it, which the base model has started as its own
            config: Any = self.config
            fresh = config.build_encoding().state_dict(keep_vars=True)
            for name, tensor in module.state_dict(keep_vars=True).items():
                if not getattr(tensor, "_is_hf_initialized", False):
                    tensor.copy_(fresh[name])
        else:
            super()._init_weights(module)


class FireDecoder(FirePreTrainedModel):
    """A decoder whose layers have FIRE. A subclass says where its parts are."""

    attention_class: ClassVar[type[FireAttention]]
    layers_at: ClassVar[str]
    """The attribute that holds its layers."""
    attention_at: ClassVar[str]
    """A layer's attribute that holds attention."""
    norm_at: ClassVar[str]
    """The attribute that holds the last norm."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuse what cannot be honoured."""

    def first(self, hidden: Tensor) -> Tensor:
        """What happens to embeddings before the first layer."""
        return hidden

    def step(
        self, layer: Any, hidden: Tensor, positions: Positions, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Through a layer."""
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def __init__(self, config: Any) -> None:
        self.check(config)
        super().__init__(config)

    def post_init(self) -> None:
        """Called at the end of the base model's constructor: before weights start, its attention gives way to ours."""
        for i, layer in enumerate(getattr(self, self.layers_at)):
            setattr(layer, self.attention_at, self.attention_class(self.config, i))
        super().post_init()

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        """Tokens (B, T), or inputs_embeds (B, T, C) → what the last layer says of each (B, T, C).

        Args:
            input_ids: (B, T).
            options: as the base model takes them, by name: attention_mask, position_ids, past_key_values, …
        """
        given = {name: value for name, value in options.items() if value is not None}  # or else as configured
        self.refuse_output_attentions(given.get("output_attentions"))
        return self._forward(input_ids, **given)

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
        **_: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, one of the two.")
        hidden: Tensor = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if isinstance(attention_mask, dict):  # by kinds of layers, as `generate` makes them; here there is one
            (attention_mask,) = attention_mask.values()
        mask, positions = masks_and_positions(self.config, hidden, attention_mask, position_ids, past_key_values)
        hidden = self.first(hidden)
        for layer in getattr(self, self.layers_at):
            hidden = self.step(layer, hidden, positions, mask, past_key_values)
        last: Any = getattr(self, self.norm_at)(hidden)
        return BaseModelOutputWithPast(last_hidden_state=last, past_key_values=past_key_values)


class FireCausalLM(FirePreTrainedModel):
    """A decoder with FIRE under the base model's head."""

    decoder_class: ClassVar[type[FireDecoder]]

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)  # past the base model's, which makes the decoder without FIRE
        setattr(self, self.base_model_prefix, self.decoder_class(config))
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def changes_for(cls, config: Any, training_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """The fields of its configuration that a retrofitted model has of its own."""
        raise NotImplementedError(f"{cls.__name__} must define changes_for")
