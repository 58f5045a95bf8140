"""FIRE for models of others: ALiBi rewritten as FIRE by the theorem, RoPE replaced by a new FIRE."""

import copy
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BloomForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    MptForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from longfire.model.retrofits.bloom import FireBloomForCausalLM
from longfire.model.retrofits.common import FireAttention, FireCausalLM
from longfire.model.retrofits.llama import (
    FireLlamaForCausalLM,
    FireMistralForCausalLM,
    FireQwen2ForCausalLM,
    FireQwen3ForCausalLM,
)
from longfire.model.retrofits.mpt import FireMptForCausalLM
from longfire.validation import at_least, renamed

ARCHITECTURES: dict[type[PreTrainedModel], type[FireCausalLM]] = {
    BloomForCausalLM: FireBloomForCausalLM,
    MptForCausalLM: FireMptForCausalLM,
    LlamaForCausalLM: FireLlamaForCausalLM,
    MistralForCausalLM: FireMistralForCausalLM,
    Qwen2ForCausalLM: FireQwen2ForCausalLM,
    Qwen3ForCausalLM: FireQwen3ForCausalLM,
}
"""A model that can be retrofitted → what it becomes."""


@renamed(max_length="training_length")
def retrofit(model: PreTrainedModel, *, training_length: int, **options: Any) -> FireCausalLM:
    """The model with FIRE in place of its position encoding, trainable and run through `longfire.attention`.

    Bloom and MPT have ALiBi, which FIRE can be (Theorem 3.1): the result gives the same logits up to `training_length`
    tokens, and can be trained from there. Llama, Mistral, Qwen2 and Qwen3 lose RoPE to a new FIRE and must be trained
    before use; `max_position_embeddings` becomes `training_length`, and FIRE's L starts at a quarter of it.

    The result is a new model that shares its weights' memory with the given one, which goes on working as it was:
    training one changes the other. Dtype, device, training mode, which parameters are frozen, and the generation
    configuration are the same; gradient checkpointing is to be enabled anew. It is saved and loaded as its own kind
    (`longfire_bloom`, …; import `longfire.model` to make AutoModelForCausalLM know it).

    Args:
        model: a BloomForCausalLM, MptForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or
            Qwen3ForCausalLM.
        training_length: tokens in the sequences that the result will be trained on.
        options: of a new FIRE, as `longfire.build_encoding("fire", …)` takes them.
    """
    at_least("training_length", training_length, 1)
    cls = _served(model)
    config: Any = model.config
    config_class: Any = cls.config_class
    fields = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")}
    fields.update(cls.changes_for(config, training_length, options))
    with torch.device("meta"):
        new: Any = cls(config_class.from_dict(fields, name_or_path=config.name_or_path))
    keys = new.load_state_dict(model.state_dict(), strict=False, assign=True)
    if other := [key for key in keys.missing_keys + keys.unexpected_keys if "position_encoding" not in key]:
        raise ValueError(
            f"the weights are not those of a plain {type(model).__name__}: {', '.join(other[:4])}. Merge adapters into "
            f"the model before, and undo other changes to its modules."
        )
    for module in new.modules():
        if isinstance(module, FireAttention):
            module.position_encoding = module.config.build_encoding().to(model.device, model.dtype)
    new.tie_weights()
    for name, parameter in model.named_parameters():
        new.get_parameter(name).requires_grad_(parameter.requires_grad)
    new.generation_config = copy.deepcopy(model.generation_config)
    new.train(model.training)
    return new  # type: ignore[no-any-return]


def _served(model: object) -> type[FireCausalLM]:
    """What it becomes, or why it cannot."""
    known = ", ".join(cls.__name__ for cls in ARCHITECTURES)
    if isinstance(model, FireCausalLM):
        raise TypeError(f"this {type(model).__name__} has FIRE already.")
    if not isinstance(model, PreTrainedModel) or type(model) not in ARCHITECTURES:
        raise TypeError(f"retrofit does not know {type(model).__name__}. It knows {known}. {_next_step(model)}")
    if getattr(model, "is_quantized", False):
        raise ValueError("retrofit cannot take quantised weights: load the model without quantization_config.")
    places = {str(parameter.device) for parameter in model.parameters()}
    if len(places) > 1 or "meta" in places:
        raise ValueError(
            f"retrofit takes a model that is all on one device, and this one is on {', '.join(sorted(places))}: load "
            f"it without device_map. The result can be saved, and then loaded with one."
        )
    return ARCHITECTURES[type(model)]


def _next_step(model: object) -> str:
    """What to do with a model that is not served."""
    if hasattr(model, "merge_and_unload"):
        return "Merge the adapter first: retrofit(model.merge_and_unload(), …)."
    if isinstance(model, str):
        return f"Load the model first: AutoModelForCausalLM.from_pretrained({model!r})."
    if kinds := [cls.__name__ for cls in ARCHITECTURES if type(getattr(model, "config", None)) is cls.config_class]:
        return f"Load the checkpoint as a {kinds[0]}, with its head."
    return (
        "In a model of another kind, call longfire.attention(q, k, v, fire) where it computes attention: "
        'docs/use-fire.md, "Attention of your own".'
    )


def register() -> None:
    """Make retrofitted models known to the Auto classes."""
    for cls in ARCHITECTURES.values():
        config: Any = cls.config_class
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, cls.decoder_class)
        AutoModelForCausalLM.register(config, cls)
