"""The T5 family (T5, mT5, UMT5): its own relative bias in `longfire.attention`, or another encoding in its place.

The base model's own code runs. Its self-attention modules get an encoding in place of their table of biases, and its
encoder and decoder hand the layout to `biased_attention`, with the shared bias, as one more keyword argument.
Cross-attention has no bias. In the state dict, `relative_attention_bias.weight` is now `position_encoding.table`.
Shapes: B batch, H heads, T queries, S keys, D head size, C width.
"""

import copy
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.generic import merge_with_config_defaults

from longfire.encodings import PositionEncoding
from longfire.model.attention import active_encoding
from longfire.model.inputs import LONGFIRE, Layout, find_layout, find_positions, is_traced
from longfire.model.packing import ARGUMENTS
from longfire.model.retrofits.configuration import T5FamilyConfig
from longfire.model.retrofits.pretrained import BIASED, RetrofittedModel

OWN_TABLE = "relative_attention_bias"
"""The base model's module with its table of biases."""


class T5FamilyModel(RetrofittedModel):
    """An encoder, a decoder, or both, alone or with a head."""

    causal = None
    replaces: ClassVar[dict[type, type]]
    """The base model's classes that this one may contain, and their versions with an encoding."""

    @classmethod
    def config_changes(
        cls, config: Any, training_length: int | None, encoding: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The model's own bias as a longfire encoding, FIRE that equals it by Theorem 3.1, or a new encoding."""
        own = T5FamilyConfig.own_bias.fget(config)  # type: ignore[attr-defined]
        if config.relative_attention_num_buckets % 2:
            raise ValueError(
                f"relative_attention_num_buckets must be even, half of them for each side of the encoder's queries, "
                f"not {config.relative_attention_num_buckets}."
            )
        if "bidirectional" in options:
            raise TypeError("retrofit sets bidirectional itself: True in the encoder, False in the decoder.")
        if options and encoding in (None, "fire"):
            raise TypeError(
                f"retrofit takes no {', '.join(options)} for {config.model_type} with encoding={encoding!r}: the "
                f"result must equal the model's own bias, which determines all options."
            )
        if encoding == "fire":
            chosen = {"theorem": own, "max_length": training_length}
        else:
            chosen = own if encoding is None else {"name": encoding, **(own if encoding == "t5" else {}), **options}
        return {"position_encoding": chosen, "max_position_embeddings": training_length}

    def encoding_from(self, model: nn.Module, name: str) -> PositionEncoding:
        """The encoding called `name`, with the base model's table if it continues that."""
        attention = name.removesuffix(".position_encoding")
        own: Any = model.get_submodule(attention)
        built: Any = self.get_submodule(attention)
        return built.config.build_encoding(own.relative_attention_bias.weight)  # type: ignore[no-any-return]

    def post_init(self) -> None:
        """Called at the end of the base model's constructor, which has built an encoder and a decoder of its own."""
        for name, child in list(self.named_children()):
            if type(child) in self.replaces:
                setattr(self, name, self.replaces[type(child)](child.config))
        super().post_init()

    def set_attn_implementation(self, *arguments: Any, **options: Any) -> None:
        """As in transformers, whose older versions forget the encoder and the decoder."""
        super().set_attn_implementation(*arguments, **options)
        config: Any = self.config
        for module in self.modules():
            if isinstance(module, T5FamilyModel):
                module.config._attn_implementation_internal = config._attn_implementation

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Any = None, *rest: Any, **options: Any
    ) -> None:
        """As in transformers, but refuses reentrant checkpointing of a shared bias."""
        if (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise ValueError("layers that share a bias need use_reentrant=False, the default.")
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, *rest, **options)


def no_dense_bias(*_: Any, **__: Any) -> None:
    """In place of the base model's (1, H, T, S) tensor of biases, or of zeros in cross-attention."""


class T5FamilyStack(T5FamilyModel):
    """An encoder or a decoder whose self-attention has an encoding."""

    attention_class: ClassVar[type[nn.Module]]

    def post_init(self) -> None:
        """Called at the end of the base model's constructor: replace biases before weights are initialised."""
        self.causal = self.config.is_decoder
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, self.attention_class):
                    self._give_encoding(child, crosses=name == "EncDecAttention")
        super().post_init()

    def _give_encoding(self, attention: Any, crosses: bool) -> None:
        config: Any = self.config
        attention.config = copy.copy(config)
        attention.config._attn_implementation_internal = BIASED
        attention.crosses, attention.is_causal = crosses, config.is_decoder and not crosses
        attention.position_encoding = config.build_encoding() if attention.has_relative_attention_bias else None
        attention.relative_attention_bias = None
        attention.has_relative_attention_bias, attention.compute_bias = True, no_dense_bias

    @torch.no_grad()
    def _init_weights(self, module: Any) -> None:
        ours = isinstance(module, self.attention_class)
        if ours:
            module.has_relative_attention_bias = False  # there is no table to initialise
        super()._init_weights(module)
        if ours:
            module.has_relative_attention_bias = True

    @property
    def encodings(self) -> list[PositionEncoding]:
        """The encoding that all layers share, or one per layer."""
        blocks: Any = self.block
        found = (active_encoding(block.layer[0].SelfAttention.position_encoding) for block in blocks)
        return [encoding for encoding in found if encoding is not None]

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    def forward(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> Any:
        """Tokens (B, T) or inputs_embeds (B, T, C) → the last hidden states (B, T, C).

        Args:
            input_ids: (B, T).
            attention_mask: (B, tokens so far), 1 for tokens and 0 for padding.
            encoder_hidden_states: (B, S, C), for the decoder's cross-attention.
            encoder_attention_mask: (B, S).
            inputs_embeds: (B, T, C), instead of input_ids.
            past_key_values: the cache that an earlier call of the decoder returned.
            use_cache: return a cache for the next call.
            options: the base model's.
        """
        self.refuse_ignored(options)  # for callers of forward alone
        if unused := [name for name in ("position_ids", *ARGUMENTS) if name in options]:
            raise ValueError(
                f"{type(self).__name__} takes no {', '.join(unused)}: T5 numbers the tokens of a row from 0, and its "
                f"decoder would see all documents of a packed row. Put each document in its own row."
            )
        hidden = self.embed_inputs(input_ids, inputs_embeds)
        crossing = self.is_decoder and encoder_hidden_states is not None
        everything = hidden.new_ones(1, 1, 1, 1)  # 4-D: the base model builds no mask of its own
        return super().forward(
            inputs_embeds=hidden,
            attention_mask=everything,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=everything if crossing else None,
            past_key_values=past_key_values,
            use_cache=use_cache,
            layout=self._layout(
                hidden,
                attention_mask,
                past_key_values,
                encoder_hidden_states if crossing else None,
                encoder_attention_mask,
            ),
            **options,
        )

    def _layout(
        self: Any,
        hidden: Tensor,  # (B, T, C)
        mask: Tensor | None,
        cache: Cache | None,
        states: Tensor | None,  # (B, S, C)
        states_mask: Tensor | None,
    ) -> Layout:
        config, encodings = self.config, self.encodings
        cache = None if not self.is_decoder else getattr(cache, "self_attention_cache", cache)
        own = find_layout(config, hidden, mask, None, cache, causal=self.is_decoder)
        if isinstance(own.total, int) or not is_traced(hidden):
            own = _counting_padding(own)
        shared = encodings[0] if len(encodings) == 1 and encodings[0].has_bias else None
        cross = None if states is None else _cross_layout(config._attn_implementation, hidden, states, states_mask)
        return replace(own, cross=cross, bias=None if shared is None else own.prepare(shared))


def _counting_padding(layout: Layout) -> Layout:
    """Positions that count padding, too, as T5's do: distances are the same, and no engine has to read them."""
    T, S = layout.queries.shape[-1], layout.keys.shape[-1]
    index = torch.arange(S, device=layout.keys.device)
    return replace(layout, queries=index[S - T :], keys=index, in_order=True, padding=None)


def _cross_layout(implementation: str, hidden: Tensor, states: Tensor, mask: Tensor | None) -> Layout:
    """Queries hidden (B, T, C) see the encoder's states (B, S, C) that the mask keeps."""
    T, S = hidden.shape[1], states.shape[1]
    queries, keys = (torch.arange(length, device=hidden.device) for length in (T, S))
    layout = Layout(queries, keys, causal=False, implementation=implementation)
    if mask is not None and mask.ndim == 4 and implementation != LONGFIRE:
        additive_or_bool = mask.dtype == torch.bool or mask.is_floating_point()
        if not additive_or_bool or mask.shape[2] not in (1, T) or mask.shape[3] != S:
            raise ValueError(
                f"a 4-D mask of the encoder's states must be boolean or floating point, (B, 1, 1 or {T}, {S}), not "
                f"{tuple(mask.shape)} of {mask.dtype}. For padding, pass (B, {S})."
            )
        return replace(layout, mask=mask)
    layout = replace(layout, key_mask=find_positions(states, 0, S, mask).key_mask)
    return replace(layout, mask=layout.dense_mask())
