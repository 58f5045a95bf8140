"""Rotary decoders: the rotation becomes the identity, and attention adds the layer's bias.

The base model's own code runs. Its rotary modules are wrapped (`IdentityRotation`); its attention modules get an
encoding and call `biased_attention`, which is registered with transformers; and the decoder's forward pass hands them
the mask and the positions as one more keyword argument.
Shapes: B batch, H query heads, G key heads, T queries, S keys, D head size, C width.
"""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.generic import merge_with_config_defaults

from longfire.model.extension import refuse_bidirectional
from longfire.model.packing import take_packing
from longfire.model.retrofits.pretrained import BIASED, RetrofittedModel

LAYER_TYPES = ("full_attention", "sliding_attention")


class IdentityRotation(nn.Module):
    """A rotary module whose cosines are 1 and sines 0, with its shapes and dtypes."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(*arguments, **options)
        return torch.ones_like(cos), torch.zeros_like(sin)


class RotaryModel(RetrofittedModel):
    """A decoder whose layers have an encoding in place of their rotation."""

    attention_class: ClassVar[type[nn.Module]]
    rotates: ClassVar[Callable[[nn.Module], bool]]
    """Whether an attention module rotates its queries; layers that do not get no encoding."""
    drops_options: ClassVar[bool]
    """Whether layers keep keyword arguments from attention."""

    def __init__(self, config: Any) -> None:
        self.check_config(config)
        super().__init__(config)

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Refuse configurations that cannot be honoured."""
        kinds = set(getattr(config, "layer_types", None) or ()) - set(LAYER_TYPES)
        if kinds:
            raise ValueError(f"layer_types has {sorted(kinds)}; only {' and '.join(LAYER_TYPES)} are supported.")
        both_ways = getattr(config, "use_bidirectional_attention", None) or False
        if both_ways or not getattr(config, "is_causal", True):
            raise ValueError("this model's attention is bidirectional; retrofit supports causal models only.")

    @classmethod
    def config_changes(
        cls, config: Any, training_length: int, encoding: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """A new encoding, which must be trained."""
        refuse_bidirectional(options)
        name = "fire" if encoding is None else encoding
        default = {"init_L": training_length / 4} if name == "fire" else {}
        return {
            "position_encoding": {"name": name, **default, **options},
            "max_position_embeddings": training_length,
        }

    def post_init(self) -> None:
        """Called at the end of the base model's constructor: replace the rotation before weights are initialised."""
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if type(child).__name__.endswith("RotaryEmbedding"):
                    setattr(module, name, IdentityRotation(child))
                elif isinstance(child, self.attention_class):
                    self._give_encoding(child)
                    if self.drops_options:
                        module.register_forward_pre_hook(_hand_layout_to(name), with_kwargs=True)
        super().post_init()

    def _give_encoding(self, attention: Any) -> None:
        config: Any = self.config
        attention.config = copy.copy(config)
        attention.config._attn_implementation_internal = BIASED
        attention.position_encoding = config.build_encoding() if type(self).rotates(attention) else None

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> Any:
        """Tokens (B, T) or inputs_embeds (B, T, C) → the last hidden states (B, T, C).

        Args:
            input_ids: (B, T).
            attention_mask: (B, tokens so far), 1 for tokens and 0 for padding.
            position_ids: (B, T), if tokens are not numbered from 0.
            past_key_values: the cache that an earlier call returned.
            inputs_embeds: (B, T, C), instead of input_ids.
            use_cache: return a cache for the next call.
            options: the base model's.
        """
        self.refuse_ignored(options)  # for callers of forward alone
        hidden, cache, layout = self.prepare_inputs(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, **take_packing(options)
        )
        return super().forward(
            inputs_embeds=hidden,
            attention_mask=hidden.new_ones(1, 1, 1, 1),  # 4-D: the base model builds no mask of its own
            past_key_values=cache,
            use_cache=use_cache,
            layout=layout,
            **options,
        )


def _hand_layout_to(attention: str) -> Callable[..., None]:
    """A hook on a layer that gives its attention the layout. It also runs when a checkpointed layer is recomputed."""

    def hook(layer: nn.Module, _: Any, options: dict[str, Any]) -> None:
        getattr(layer, attention).layout = options["layout"]

    return hook
