"""Retrofit an encoding into a Hugging Face model: ALiBi and T5's bias are kept, a rotation is replaced."""

import copy
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModel, PreTrainedModel

from longfire.encodings import PositionEncoding
from longfire.model.configuration import LongfireConfig
from longfire.model.extension import retrofitted_config, with_config
from longfire.model.heads import LongfireForCausalLM
from longfire.model.retrofits import rotary, t5
from longfire.model.retrofits.architectures import ARCHITECTURES, CLASSES, HEADS, REFUSED
from longfire.model.retrofits.configuration import FireConfig
from longfire.model.retrofits.pretrained import BIASED, RetrofittedHead, RetrofittedModel, biased_attention
from longfire.validation import at_least, renamed

DOCS = "docs/retrofit.md"
ENCODING_NAMES = ("position_encoding", t5.OWN_TABLE)
"""In the names of an encoding's tensors: ours, and T5's own."""
NEEDS_LENGTH = (
    "retrofit needs training_length=…, the sequence length that the result will be trained at. Only a T5 model that "
    "keeps its own bias does without."
)
QUANTISED = "retrofit does not support quantised weights: load the model without quantization_config."
OWN_CODE = (
    'Elsewhere, call longfire.attention(q, k, v, fire) where the model computes attention: docs/use-fire.md, "In your '
    'own attention".'
)


@renamed(max_length="training_length")
def retrofit(
    model: PreTrainedModel, encoding: str | None = None, *, training_length: int | None = None, **options: Any
) -> PreTrainedModel:
    """Replace a Hugging Face model's position encoding with FIRE, trainable and run by `longfire.attention`.

    Bloom and MPT have ALiBi, which FIRE can represent exactly (Theorem 3.1): the result gives the same logits up to
    `training_length` tokens and can be trained from there. In rotary decoders (Llama, Qwen, Gemma, …: docs/retrofit.md
    has the list) a new encoding replaces the rotation, and the model must be trained before use;
    `max_position_embeddings` becomes `training_length`, and FIRE's L starts at a quarter of it. T5, mT5 and UMT5 keep
    their own bias, with the same logits at every length; `encoding="fire"` continues as FIRE with the same logits up to
    `training_length` tokens, in the encoder and the decoder, and only the heights of its steps are trained. A
    `LongfireForCausalLM` is copied, with any other encoding, or with its RoPE extended to "rope_pi" or "yarn"
    (`target_length=…`).

    The result is a new model that shares memory with the original: training one changes the other, but the original
    keeps working. Dtype, device, training mode, frozen parameters and the generation configuration carry over; gradient
    checkpointing must be enabled again. It is saved and loaded as its own model type (`longfire_bloom`, …), which
    the Auto classes know after `import longfire.model`.

    Args:
        model: a decoder of a supported architecture, alone or with a head for language modelling or for classification
            of sequences or tokens; any model of the T5 family; or a `LongfireForCausalLM`.
        encoding: the name of an encoding with a bias, or "nope". Default: FIRE, or T5's own bias.
        training_length: sequence length that the result will be trained at. T5 with its own bias takes none.
        options: of the new encoding, as in `longfire.build_encoding`.
    """
    _check_name(encoding)
    if isinstance(model, LongfireForCausalLM):
        if training_length is None:
            raise TypeError(NEEDS_LENGTH)
        return with_config(model, retrofitted_config(model.config, encoding, training_length, options))
    cls = _target_class(model)
    new: Any = _on_meta(cls, model.config, encoding, training_length, options)
    keys = new.load_state_dict(model.state_dict(), strict=False, assign=True)
    found = keys.missing_keys + keys.unexpected_keys
    if wrong := [key for key in found if not any(name in key for name in ENCODING_NAMES)]:
        raise ValueError(
            f"this is not a plain {type(model).__name__}; missing or unexpected weights: {', '.join(wrong[:4])}. Merge "
            f"adapters and undo other changes to its modules first."
        )
    for name, module in list(new.named_modules()):
        if isinstance(module, PositionEncoding):
            new.set_submodule(name, new.encoding_from(model, name).to(model.device, model.dtype))
        elif isinstance(module, rotary.IdentityRotation):
            module.rotary = copy.deepcopy(model.get_submodule(name))
    for name, buffer in list(new.named_buffers()):
        if buffer.is_meta:  # not in the state dict
            owner, _, attribute = name.rpartition(".")
            setattr(new.get_submodule(owner), attribute, model.get_buffer(name).clone())
    new.tie_weights()
    for name, parameter in model.named_parameters():
        if t5.OWN_TABLE not in name:
            new.get_parameter(name).requires_grad_(parameter.requires_grad)
    if new.can_generate():
        new.generation_config = copy.deepcopy(model.generation_config)
    new.train(model.training)
    return new  # type: ignore[no-any-return]


def retrofit_on_meta(config: Any, encoding: str | None = None, *, training_length: int, **options: Any) -> Any:
    """What `retrofit` makes of a causal language model with this configuration, without weights, on the meta device.

    Refuses what `retrofit` refuses.
    """
    _check_name(encoding)
    if isinstance(config, FireConfig):
        kind = getattr(config, "model_type", "")
        raise TypeError(f"this {kind} already has an encoding of longfire's.")
    if getattr(config, "quantization_config", None):
        raise ValueError(QUANTISED)
    if isinstance(config, LongfireConfig):
        with torch.device("meta"):
            return LongfireForCausalLM(retrofitted_config(config, encoding, training_length, options))
    served = {base.config_class: cls for base, cls in CLASSES.items() if base.__name__.endswith("ForCausalLM")}  # type: ignore[attr-defined]
    if type(config) not in served:
        raise TypeError(f"retrofit does not support {config.model_type}. {_served(config.model_type)}")
    return _on_meta(served[type(config)], config, encoding, training_length, options)


def _on_meta(
    cls: type[RetrofittedModel], config: Any, encoding: str | None, training_length: int | None, options: dict[str, Any]
) -> RetrofittedModel:
    """The new model without weights. Refuses an encoding that the model cannot have."""
    decoder_class: Any = cls.decoder_class if issubclass(cls, RetrofittedHead) else cls
    if training_length is not None:
        at_least("training_length", training_length, 1)
        if encoding is None and issubclass(cls, t5.T5FamilyModel):
            raise TypeError(
                f"training_length={training_length} has no effect: {config.model_type} keeps its own bias. Omit it; "
                f"for FIRE write retrofit(model, 'fire', training_length={training_length})."
            )
    elif encoding is not None or not issubclass(cls, t5.T5FamilyModel):
        raise TypeError(NEEDS_LENGTH)
    decoder_class.check_config(config)
    config_class: Any = cls.config_class
    fields = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")}
    fields.update(decoder_class.config_changes(config, training_length, encoding, options))
    with torch.device("meta"):
        return cls(config_class.from_dict(fields, name_or_path=config.name_or_path))


def _check_name(encoding: object) -> None:
    if encoding is not None and not isinstance(encoding, str):
        given = repr(encoding) if isinstance(encoding, dict) else type(encoding).__name__
        raise TypeError(
            f"encoding must be a name, not {given}. Pass its options as keywords: retrofit(model, 'fire', "
            f"training_length=…, horizon=…)."
        )


def _target_class(model: object) -> type[RetrofittedModel]:
    """The class a model becomes; refuses models that cannot be retrofitted."""
    if isinstance(model, RetrofittedModel):
        raise TypeError(f"this {type(model).__name__} already has an encoding of longfire's.")
    if not isinstance(model, PreTrainedModel) or type(model) not in CLASSES:
        raise TypeError(f"retrofit does not support {type(model).__name__}. {_remedy(model)}")
    if getattr(model, "is_quantized", False):
        raise ValueError(QUANTISED)
    devices = {str(parameter.device) for parameter in model.parameters()}
    if len(devices) > 1 or "meta" in devices:
        raise ValueError(
            f"retrofit needs a model on one device, but this one is on {', '.join(sorted(devices))}: load it without "
            f"device_map. The result can be saved and then loaded with one."
        )
    return CLASSES[type(model)]


def _remedy(model: object) -> str:
    if hasattr(model, "merge_and_unload"):
        return "Merge the adapter first: retrofit(model.merge_and_unload(), …)."
    if isinstance(model, str):
        return f"Load the model first: AutoModelForCausalLM.from_pretrained({model!r})."
    config: Any = getattr(model, "config", None)
    heads = [cls.__name__ for cls in CLASSES if getattr(cls, "config_class", None) is type(config)]
    if heads:
        return f"Load the checkpoint as {' or '.join(heads)}."
    return _served(getattr(config, "model_type", ""))


def _served(model_type: str) -> str:
    why = REFUSED.get(model_type)
    served = ", ".join(architecture.title or architecture.name for architecture in ARCHITECTURES)
    return f"{f'Reason: {why}. ' if why else ''}Supported are {served} ({DOCS}). {OWN_CODE}"


def register() -> None:
    """Register retrofitted models with the Auto classes, and their attention function. Masks come with `Layout`."""
    AttentionInterface.register(BIASED, biased_attention)
    for base, cls in CLASSES.items():
        config: Any = cls.config_class
        auto: Any = next((HEADS[part] for part in HEADS if base.__name__.endswith(part)), AutoModel)
        if auto is AutoModel:
            AutoConfig.register(config.model_type, config)
        auto.register(config, cls)
