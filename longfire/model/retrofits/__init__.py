"""Retrofit FIRE: ALiBi models keep their logits (Theorem 3.1), RoPE models get a new FIRE to train."""

import copy
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

from longfire.model.retrofits.decoder import FireAttention, FireCausalLM
from longfire.model.retrofits.families import ARCHITECTURES
from longfire.validation import at_least, renamed


@renamed(max_length="training_length")
def retrofit(model: PreTrainedModel, *, training_length: int, **options: Any) -> FireCausalLM:
    """Replace a Hugging Face model's position encoding with FIRE, trainable and run by `longfire.attention`.

    Bloom and MPT have ALiBi, which FIRE can represent exactly (Theorem 3.1): the result gives the same logits up to
    `training_length` tokens and can be trained from there. In Llama, Mistral, Qwen2 and Qwen3 a new FIRE replaces RoPE,
    and the model must be trained before use; `max_position_embeddings` becomes `training_length`, and L starts at a
    quarter of it.

    The result is a new model that shares memory with the original: training one changes the other, but the original
    keeps working. Dtype, device, training mode, frozen parameters and the generation configuration carry over; gradient
    checkpointing must be enabled again. It is saved and loaded as its own model type (`longfire_bloom`, …), which
    AutoModelForCausalLM knows after `import longfire.model`.

    Args:
        model: a BloomForCausalLM, MptForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or
            Qwen3ForCausalLM.
        training_length: sequence length that the result will be trained at.
        options: of the new FIRE, as in `longfire.build_encoding("fire", …)`.
    """
    at_least("training_length", training_length, 1)
    cls = _target_class(model)
    config: Any = model.config
    config_class: Any = cls.config_class
    fields = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")}
    fields.update(cls.config_changes(config, training_length, options))
    with torch.device("meta"):
        new: Any = cls(config_class.from_dict(fields, name_or_path=config.name_or_path))
    keys = new.load_state_dict(model.state_dict(), strict=False, assign=True)
    if wrong := [key for key in keys.missing_keys + keys.unexpected_keys if "position_encoding" not in key]:
        raise ValueError(
            f"this is not a plain {type(model).__name__}; missing or unexpected weights: {', '.join(wrong[:4])}. Merge "
            f"adapters and undo other changes to its modules first."
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


def _target_class(model: object) -> type[FireCausalLM]:
    """The class a model becomes; refuses models that cannot be retrofitted."""
    if isinstance(model, FireCausalLM):
        raise TypeError(f"this {type(model).__name__} already has FIRE.")
    if not isinstance(model, PreTrainedModel) or type(model) not in ARCHITECTURES:
        known = ", ".join(cls.__name__ for cls in ARCHITECTURES)
        raise TypeError(f"retrofit does not support {type(model).__name__}, only {known}. {_remedy(model)}")
    if getattr(model, "is_quantized", False):
        raise ValueError("retrofit does not support quantised weights: load the model without quantization_config.")
    devices = {str(parameter.device) for parameter in model.parameters()}
    if len(devices) > 1 or "meta" in devices:
        raise ValueError(
            f"retrofit needs a model on one device, but this one is on {', '.join(sorted(devices))}: load it without "
            f"device_map. The result can be saved and then loaded with one."
        )
    return ARCHITECTURES[type(model)]


def _remedy(model: object) -> str:
    if hasattr(model, "merge_and_unload"):
        return "Merge the adapter first: retrofit(model.merge_and_unload(), …)."
    if isinstance(model, str):
        return f"Load the model first: AutoModelForCausalLM.from_pretrained({model!r})."
    for cls in ARCHITECTURES:
        if type(getattr(model, "config", None)) is getattr(cls, "config_class", None):
            return f"Load the checkpoint as a {cls.__name__}, including its head."
    return (
        "In other models, call longfire.attention(q, k, v, fire) where they compute attention: docs/use-fire.md, "
        '"In your own attention".'
    )


def register() -> None:
    """Register retrofitted models with the Auto classes."""
    for cls in ARCHITECTURES.values():
        config: Any = cls.config_class
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, cls.decoder_class)
        AutoModelForCausalLM.register(config, cls)
