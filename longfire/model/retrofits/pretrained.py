"""What all retrofitted models share: initialisation, and the inputs of a forward pass.

The classes come before the base model's: `class FireLlamaModel(RotaryModel, LlamaModel)`.
Shapes: B batch, T queries, S keys, C width.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from longfire.encodings import PositionEncoding
from longfire.model.inputs import Layout, find_layout
from longfire.model.loading import EncodingModel
from longfire.model.packing import ARGUMENTS, take_packing


class RetrofittedModel(EncodingModel):
    """Initialises the encoding as configured, and the rest as the base model does."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As in PyTorch, but refuses what the base model would drop. None means the default."""
        options = {name: value for name, value in options.items() if value is not None}
        self.check_options(options)
        return super().__call__(*arguments, **options)

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


def _refuse_positions(head: nn.Module, _: Any, options: dict[str, Any]) -> None:
    """A hook on heads that would drop these options."""
    dropped = [name for name in ("position_ids", *ARGUMENTS) if options.get(name) is not None]
    if dropped:
        raise ValueError(
            f"{type(head).__name__} does not pass {', '.join(dropped)} on to its decoder. Call model.base_model(…), or "
            f"put each document in its own row."
        )
