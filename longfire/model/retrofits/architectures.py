"""The architectures that can be retrofitted, and the classes built from them.

Per architecture: a configuration, a decoder, and the heads that the base model has, such as `FireLlamaConfig`,
`FireLlamaModel`, `FireLlamaForCausalLM`, `FireLlamaForSequenceClassification`. Their names and model types
(`longfire_llama`) are in checkpoints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
)

from longfire.model.retrofits import alibi
from longfire.model.retrofits.configuration import FireConfig, T5FamilyConfig
from longfire.model.retrofits.pretrained import RetrofittedHead, RetrofittedModel
from longfire.model.retrofits.rotary import RotaryModel
from longfire.model.retrofits.t5 import T5FamilyModel, T5FamilyStack

DECODER_HEADS: dict[str, Any] = {
    "ForCausalLM": AutoModelForCausalLM,
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
}
HEADS: dict[str, Any] = {
    **DECODER_HEADS,
    "ForConditionalGeneration": AutoModelForSeq2SeqLM,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "EncoderModel": AutoModelForTextEncoding,
}
"""Heads by the end of their class's name, and the Auto classes that load them."""


@dataclass(frozen=True)
class Architecture:
    """A family of models in transformers."""

    name: str
    """What its classes' names start with."""
    title: str = ""
    """In the documentation. Default: the name."""
    folder: str = ""
    """In `transformers.models`. Default: the name in lower case."""
    text: str = ""
    """What the names of its configuration, decoder and classifiers start with. Default: the name."""
    rotates: Callable[[Any], bool] = lambda attention: True
    """Whether an attention module rotates queries and keys."""
    drops_options: bool = False
    """Whether its layers keep keyword arguments from attention."""
    note: str = ""
    """For the documentation."""


UNROTATED = "layers without rotation get no encoding"
ROTARY = (
    Architecture("Llama"),
    Architecture("Mistral"),
    Architecture("Mixtral"),
    Architecture("Qwen2"),
    Architecture("Qwen2Moe", "Qwen2 MoE", "qwen2_moe"),
    Architecture("Qwen3"),
    Architecture("Qwen3Moe", "Qwen3 MoE", "qwen3_moe"),
    Architecture("Gemma"),
    Architecture("Gemma2", "Gemma 2", note="soft cap: `eager` only, unless `attn_logit_softcapping` is None"),
    Architecture("Gemma3", "Gemma 3", text="Gemma3Text", note="text only"),
    Architecture("Phi"),
    Architecture("Phi3", "Phi-3"),
    Architecture("Olmo", "OLMo"),
    Architecture("Olmo2", "OLMo 2"),
    Architecture("Olmo3", "OLMo 3"),
    Architecture("Olmoe", "OLMoE"),
    Architecture("GPTNeoX", "GPT-NeoX", "gpt_neox"),
    Architecture("StableLm", "StableLM", drops_options=True),
    Architecture("Granite"),
    Architecture("SmolLM3", rotates=lambda attention: bool(attention.use_rope), note=UNROTATED),
    Architecture("Cohere"),
    Architecture("Cohere2", "Cohere 2", rotates=lambda attention: attention.sliding_window is not None, note=UNROTATED),
    Architecture("Starcoder2"),
    Architecture("Glm", "GLM"),
    Architecture("Glm4", "GLM-4"),
    Architecture("Helium"),
    Architecture("Nemotron", drops_options=True),
    Architecture("Persimmon"),
    Architecture("Ernie4_5", "Ernie 4.5"),
    Architecture("HunYuanDenseV1", "HunYuan", "hunyuan_v1_dense"),
    Architecture(
        "Exaone4",
        "EXAONE 4",
        rotates=lambda attention: attention.sliding_window is None or attention.is_sliding,
        note=UNROTATED,
    ),
    Architecture("Arcee"),
    Architecture("Apertus"),
    Architecture("GptOss", "gpt-oss", "gpt_oss", note="attention sinks: `eager` only"),
    Architecture("DeepseekV3", "DeepSeek-V3", "deepseek_v3"),
)
ALIBI: dict[Architecture, tuple[type[RetrofittedModel], type[nn.Module]]] = {
    Architecture("Bloom"): (alibi.BloomFireModel, alibi.BloomFireAttention),
    Architecture("Mpt", "MPT"): (alibi.MptFireModel, alibi.MptFireAttention),
}
DECODERS: tuple[Architecture, ...] = (*ALIBI, *ROTARY)
T5_FAMILY = (Architecture("T5"), Architecture("MT5", "mT5"), Architecture("UMT5"))
ARCHITECTURES = (*DECODERS, *T5_FAMILY)

OWN_ATTENTION = "its attention does not use transformers' attention interface"
REFUSED = {
    "codegen": OWN_ATTENTION,
    "deepseek_v2": "it rotates by complex numbers",
    "falcon": OWN_ATTENTION,
    "gptj": OWN_ATTENTION,
}
"""Rotary models that are not supported, by model type, and why."""


def build(cls: type, mixin: type, **attributes: Any) -> Any:
    """The version of a base model's class that has an encoding."""
    title = f"Fire{cls.__name__}"
    body = {"__module__": __name__, "__doc__": f"transformers' {cls.__name__} with an encoding.", **attributes}
    globals()[title] = type(title, (mixin, cls), body)  # where pickle looks it up
    return globals()[title]


def build_classes(architecture: Architecture) -> Iterator[tuple[type, type[RetrofittedModel]]]:
    """Each of the base model's classes, and its version with an encoding."""
    name, text = architecture.name, architecture.text or architecture.name
    folder = architecture.folder or name.lower()
    base = import_module(f"transformers.models.{folder}.modeling_{folder}")
    base_config = getattr(import_module(f"transformers.models.{folder}.configuration_{folder}"), f"{text}Config")
    config_mixin = T5FamilyConfig if architecture in T5_FAMILY else FireConfig
    config = strict(build(base_config, config_mixin, model_type=f"longfire_{base_config.model_type}"))
    attention: type[nn.Module] = getattr(base, f"{name}Attention")
    own: dict[str, Any] = {"config_class": config, "attention_class": attention}
    if architecture in T5_FAMILY:
        yield from _build_t5_classes(base, name, own)
        return
    mixin: type[RetrofittedModel]
    model_class = getattr(base, f"{text}Model")
    if architecture in ALIBI:
        mixin, attention_mixin = ALIBI[architecture]
        own["attention_class"] = build(attention, attention_mixin)
        heads = ["ForCausalLM"]
    else:
        mixin, heads = RotaryModel, list(DECODER_HEADS)
        own |= {option: getattr(architecture, option) for option in ("rotates", "drops_options")}
    model = build(model_class, mixin, **own)
    yield model_class, model
    for prefix in dict.fromkeys((name, text)):
        for part in heads:
            head: Any = getattr(base, prefix + part, None)
            if getattr(head, "config_class", None) is base_config:
                yield head, build(head, RetrofittedHead, config_class=config, decoder_class=model)


def _build_t5_classes(
    base: ModuleType, name: str, own: dict[str, Any]
) -> Iterator[tuple[type, type[RetrofittedModel]]]:
    replaces: dict[type, type] = {}
    for part in ("Stack", "Model", *HEADS):  # those that others contain come first
        cls: type | None = getattr(base, f"{name}{part}", None)
        if cls is None:
            continue
        replaces[cls] = build(cls, T5FamilyStack if part == "Stack" else T5FamilyModel, replaces=replaces, **own)
        if part != "Stack":
            yield cls, replaces[cls]


def build_all() -> dict[type, type[RetrofittedModel]]:
    """Every supported class and its version with an encoding, as far as the installed transformers has them."""
    classes: dict[type, type[RetrofittedModel]] = {}
    for architecture in ARCHITECTURES:
        try:
            classes.update(build_classes(architecture))
        except ModuleNotFoundError:  # newer than the installed transformers
            continue
    return classes


CLASSES = build_all()
