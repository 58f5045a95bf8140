"""What all retrofitted models share: initialisation, the inputs of a forward pass, and attention with a bias.

The classes come before the base model's: `class FireLlamaModel(RotaryModel, LlamaModel)`.
Shapes: B batch, H query heads, G key heads, T queries, S keys, D head size, C width.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Cache, DynamicCache
from transformers.utils.generic import TransformersKwargs

from longfire.encodings import PositionEncoding
from longfire.engines.value_checks import holds
from longfire.model.attention import active_encoding, attend
from longfire.model.inputs import LONGFIRE, Layout, find_layout
from longfire.model.loading import INSTEAD, EncodingModel, parameters_of
from longfire.model.packing import ARGUMENTS, take_packing

BIASED = "longfire_biased"
"""What the attention modules' own configurations name as their implementation; the model's names the real one."""
DROPPED = (
    "attention_mask hides tokens between others, so a window, which counts positions, may reach keys that a sliding "
    "window's cache has dropped"
)
CALL_OPTIONS = (*TransformersKwargs.__annotations__, *ARGUMENTS, "cache_position", "return_dict")
"""Keyword arguments of a call that transformers knows, besides those in a model's signature."""


class RetrofittedModel(EncodingModel):
    """Initialises the encoding as configured, and the rest as the base model does."""

    _known_options: dict[str, None]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As in PyTorch, but refuses what the base model would drop. None means the default."""
        options = {name: value for name, value in options.items() if value is not None}
        self.refuse_ignored(options)
        return super().__call__(*arguments, **options)

    def refuse_ignored(self, options: dict[str, Any]) -> None:
        """Refuse keyword arguments of a call that would be ignored."""
        if any(name not in self._known_options for name in options):
            self._known_options |= self.known_options()  # another library may have replaced forward or the loss
        self.check_options(options, self._known_options)

    def post_init(self) -> None:
        """Called at the end of the base model's constructor."""
        super().post_init()
        self._known_options = self.known_options()  # now: a compiled graph cannot look it up

    def known_options(self) -> dict[str, None]:
        """The keyword arguments of a call that are not ignored."""
        forwards = [
            vars(cls)["forward"] for cls in type(self).__mro__ if "forward" in vars(cls) and cls is not nn.Module
        ]
        names: dict[str, None] = {}
        for forward in (self.forward, *forwards):
            names |= parameters_of(forward)
        return {name: None for name in (*names, *CALL_OPTIONS) if name not in INSTEAD}

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

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Called by transformers. The default is "longfire", or "eager" if only that serves the model."""
        missing = eager_only(self.config)
        requested = "eager" if requested_attention is None and missing else requested_attention
        chosen = super().get_correct_attn_implementation(requested, is_init_check)
        if missing and chosen != "eager":
            raise ValueError(
                f"attn_implementation={chosen!r} has no {missing}, which this model needs. Use 'eager', its default."
            )
        return chosen

    head_passes_positions: ClassVar[bool] = True
    """Whether the base model's heads hand position ids and packing arguments to their decoder."""
    head_passes_loss_options: ClassVar[bool] = True
    """Whether the base model's heads hand all keyword arguments to their loss."""

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Refuse configurations that cannot be honoured."""

    @classmethod
    def config_changes(
        cls, config: Any, training_length: Any, encoding: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The configuration fields that retrofitting changes."""
        raise NotImplementedError(f"{cls.__name__} must define config_changes")

    def encoding_from(self, model: nn.Module, name: str) -> PositionEncoding:
        """The encoding called `name`, for the weights of the base model."""
        config: Any = self.config
        return config.build_encoding()  # type: ignore[no-any-return]

    def prepare_inputs(
        self: Any,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> tuple[Tensor, Cache | None, Layout]:
        """The embeddings (B, T, C), the cache, created if needed, and the layout."""
        hidden = self.embed_inputs(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        where = (self.config, hidden, attention_mask, position_ids, past_key_values)
        return hidden, past_key_values, find_layout(*where, packing=take_packing(options))


def eager_only(config: Any) -> str | None:
    """What the model needs that only "eager" has; None if nothing."""
    if getattr(config, "attn_logit_softcapping", None):
        return "soft cap on logits"
    return "attention sinks" if config.model_type == "longfire_gpt_oss" else None


class RetrofittedHead(RetrofittedModel):
    """A head on a retrofitted decoder."""

    decoder_class: ClassVar[type[RetrofittedModel]]

    def __init__(self, config: Any) -> None:
        self.decoder_class.check_config(config)
        super().__init__(config)

    def post_init(self) -> None:
        """Called at the end of the base model's constructor, which has built a decoder without the encoding."""
        name = self.base_model_prefix
        if not isinstance(getattr(self, name), self.decoder_class):
            setattr(self, name, self.decoder_class(self.config))
        if not self.decoder_class.head_passes_positions:
            self.register_forward_pre_hook(_refuse_positions, with_kwargs=True)
        super().post_init()

    def known_options(self) -> dict[str, None]:
        """Those of the loss, too, which the decoder receives as well."""
        loss: dict[str, None] = {}
        if self.decoder_class.head_passes_loss_options:
            loss = parameters_of(self.loss_function) | {"ignore_index": None}
            getattr(self, self.base_model_prefix)._known_options |= loss
        return super().known_options() | loss


def _refuse_positions(head: nn.Module, _: Any, options: dict[str, Any]) -> None:
    """A hook on heads that would drop these options."""
    dropped = [name for name in ("position_ids", *ARGUMENTS) if options.get(name) is not None]
    if dropped:
        raise ValueError(
            f"{type(head).__name__} does not pass {', '.join(dropped)} on to its decoder. Call model.base_model(…), or "
            f"put each document in its own row."
        )


def of_layer(layout: Layout, S: int) -> Layout:
    """The layout of the S keys that a layer has, if a sliding window's cache has dropped earlier ones."""
    keys, key_mask, mask = layout.keys, layout.key_mask, layout.mask
    if keys.shape[-1] <= S:
        return layout
    if key_mask is not None and not holds(has_no_holes, key_mask, message=DROPPED):
        raise ValueError(f"{DROPPED}. Pad on the left, or pass past_key_values=DynamicCache(), which keeps all.")
    first = layout.total - S
    first = first.clamp(min=0) if isinstance(first, Tensor) else max(first, 0)  # 0: the cache is not yet full
    kept = torch.arange(S, device=keys.device) + first
    return replace(
        layout,
        keys=keys[..., kept],
        key_mask=None if key_mask is None else key_mask[..., kept],
        mask=mask[..., kept] if mask is not None and mask.shape[-1] > S else mask,  # the caller's may be for these keys
        in_order=False,
        padding=None,
    )


def has_no_holes(mask: Tensor) -> Tensor:
    """Whether the tokens that a mask (B, S) keeps are next to each other in every row: one bool."""
    return (pad(mask.int(), (1, 1)).diff().abs().sum(-1) <= 2).all()


def biased_attention(
    module: nn.Module,
    query: Tensor,  # (B, H, T, D)
    key: Tensor,  # (B, G, S, D)
    value: Tensor,  # (B, G, S, D), or with another head size
    _: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as the model's implementation computes it, with the layer's bias. → (B, T, H, D)"""
    layout = getattr(module, "layout", None) if layout is None else layout
    layout = layout.cross if layout is not None and getattr(module, "crosses", False) else layout
    if layout is None:
        raise ValueError(f"{type(module).__name__} received no positions. Call the model, not its layers.")
    S = min(key.shape[2], layout.keys.shape[-1])  # a static cache has spare slots
    key, value = key[:, :, :S], value[:, :, :S]
    layout = of_layer(layout, S)
    special: dict[str, Any] = {name: one for name, one in (("softcap", softcap), ("s_aux", s_aux)) if one is not None}
    if special and layout.implementation != "eager":
        raise ValueError(f"attn_implementation={layout.implementation!r} has no {', '.join(special)}. Use 'eager'.")
    D, D_value = key.shape[-1], value.shape[-1]
    own = active_encoding(module.position_encoding)
    pads = layout.implementation == LONGFIRE and D_value < D  # latent attention; the engines need one head size
    out, weights = attend(
        module,
        (query, key, pad(value, (0, D - D_value)) if pads else value),
        own if layout.bias is None and own is not None and own.has_bias else layout.bias,
        layout,
        scaling=scaling,
        dropout=dropout,
        window=sliding_window,
        **special,
    )
    return out[..., :D_value] if pads else out, weights
