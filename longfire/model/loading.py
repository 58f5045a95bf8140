"""Find and load checkpoints, always with the position encoding they were trained with."""

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from longfire.encodings import ENCODINGS, position_parameters
from longfire.encodings.base import EncodingLinear
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.inputs import LONGFIRE, key_slots
from longfire.validation import hint, one_of

WINDOW = "Windows are config.sliding_window, in models that have one, or longfire.attention(window=…)."
INSTEAD = {
    "segment_ids": "To keep packed documents apart, pass position_ids that restart in each, seq_idx or cu_seq_lens_q.",
    "window": WINDOW,
    "sliding_window": WINDOW,
    "sequence_group": "Only longfire's own models split a sequence across ranks. Call longfire.parallel.attention in "
    "your own.",
    "token_type_ids": "Omit them: tokenizer(…, return_token_type_ids=False).",
}
"""What to pass in place of keyword arguments that transformers' models ignore."""


def checkpoint_in(folder: Path) -> Path:
    """The folder itself if it is a checkpoint, or the model inside a training run's folder."""
    inner = folder / "model"
    is_checkpoint = (folder / "config.json").is_file() or not (inner / "config.json").is_file()
    return folder if is_checkpoint else inner


def find_checkpoint(source: str | Path) -> Path:
    """Like `checkpoint_in`, but an error says what is missing."""
    folder = Path(source)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}. Pass a folder written by save_pretrained.")
    checkpoint = checkpoint_in(folder)
    if not (checkpoint / "config.json").is_file():
        if (folder / "recipe.json").is_file():
            raise FileNotFoundError(
                f"{folder} is an unfinished training run without a model. Run the command that started it to resume."
            )
        inside = sorted((*folder.glob("runs/*/model/config.json"), *folder.glob("*/model/config.json")))
        run = f", or a training run: {inside[0].parent.parent}" if inside else ""
        raise FileNotFoundError(f"{folder} has no config.json. Pass a folder written by save_pretrained{run}.")
    return checkpoint


class EncodingModel(PreTrainedModel):
    """Base of longfire's own and retrofitted models.

    Attention defaults to "longfire", encodings stay in float32, and a checkpoint loads only with the position encoding
    it was saved with.
    """

    _supports_sdpa = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _supports_context_parallel = False  # accelerate's, which drops masks and so biases
    _keep_in_fp32_modules_strict = ["position_encoding"]  # noqa: RUF012

    @classmethod
    def from_pretrained(cls, source: Any, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """transformers' `from_pretrained`, but requesting a different position encoding is an error."""
        return_info = options.pop("output_loading_info", False)
        any_shape = options.pop("ignore_mismatched_sizes", False)
        try:
            loaded: Any = super().from_pretrained(
                source, *arguments, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        except SafetensorError as error:
            raise ValueError(
                f"the weights in {source} are damaged ({error}). Copy the checkpoint again, or retrain."
            ) from error
        model, info = loaded
        check_encoding(source, model, info, options)
        if not any_shape:
            check_shapes(source, info)
        return (model, info) if return_info else model

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Called by transformers. For an encoding's layers, draws what it drew when they were nn.Linear, and drops it.

        Otherwise a seed would give another model than it used to.
        """
        if isinstance(module, EncodingLinear) and not getattr(module, "_is_hf_initialized", False):
            torch.empty_like(module.weight).normal_()
        super()._initialize_weights(module, is_custom_code)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Called by transformers."""
        one_of("attn_implementation", requested_attention, (None, *IMPLEMENTATIONS))
        return requested_attention or LONGFIRE

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True

    def embed_inputs(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The embeddings (B, T, C) of tokens (B, T), or those given in their place."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds.")
        for name, given, shape in (("input_ids", input_ids, "(B, T)"), ("inputs_embeds", inputs_embeds, "(B, T, C)")):
            if given is not None and given.ndim != len(shape.split()):
                raise ValueError(
                    f"{name} must have shape {shape}, not {tuple(given.shape)}. For one sequence, pass {name}[None]."
                )
        embedded: Tensor = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        return embedded

    causal: bool | None = True
    """Whether attention is causal. None: a model's parts differ."""
    has_other_kind: ClassVar[bool] = False
    """Whether `LongfireConfig(is_causal=…)` builds a model whose attention differs in that."""

    def check_options(self, options: Mapping[str, Any], known: Collection[str]) -> None:
        """Refuse keyword arguments of a call that would be ignored: those not `known`, besides the model's own."""
        for name, value in options.items():
            if value is not None and name not in known:
                remedy = INSTEAD.get(name) or hint(name, dict.fromkeys([*parameters_of(self.forward), *known]))
                raise TypeError(f"{type(self).__name__} takes no {name}. {remedy}")
        if self.causal is not None and (asked := options.get("is_causal")) not in (None, self.causal):
            other = f", or build a model with LongfireConfig(is_causal={asked})" if self.has_other_kind else ""
            raise ValueError(
                f"is_causal={asked} is not supported: this model was built with is_causal={self.causal}. Omit "
                f"it{other}."
            )
        self.check_output_attentions(options.get("output_attentions"))

    def create_masks_for_generate(
        self, *, inputs_embeds: Tensor, attention_mask: Tensor | None, past_key_values: Cache, **_: Any
    ) -> Tensor | None:
        """Called by `generate` with a static cache: the mask (B, S), whose shape must not change."""
        slots = key_slots(past_key_values, inputs_embeds.shape[1])
        if attention_mask is None or attention_mask.shape[1] >= slots:
            return attention_mask
        return nn.functional.pad(attention_mask, (0, slots - attention_mask.shape[1]))

    def check_output_attentions(self, requested: bool | None) -> None:
        """Refuse `output_attentions` (None: the configuration's) for implementations that compute no weights."""
        config: Any = self.config
        implementation = config._attn_implementation
        if (config.output_attentions if requested is None else requested) and implementation != "eager":
            raise ValueError(
                f"attn_implementation={implementation!r} cannot return attention weights. Omit output_attentions, or "
                f"call model.set_attn_implementation('eager') first."
            )


def parameters_of(function: Callable[..., Any] | None) -> dict[str, None]:
    """The names of a function's parameters, and of those that it wraps, in order."""
    names: dict[str, None] = {}
    while function is not None:
        parameters = signature(function, follow_wrapped=False).parameters.values()
        names |= dict.fromkeys(
            p.name for p in parameters if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        )
        function = getattr(function, "__wrapped__", None)
    names.pop("self", None)
    return names


def check_encoding(source: Any, model: PreTrainedModel, info: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse a model whose position encoding differs from the checkpoint's."""
    config: Any = model.config
    hub = {key: options[key] for key in ("cache_dir", "revision", "subfolder", "token") if key in options}
    saved_config, _ = PreTrainedConfig.get_config_dict(source, **hub)
    saved = saved_config.get("position_encoding") or {}
    if saved and not is_compatible(saved, config.position_encoding, bool(position_parameters(model))):
        raise ValueError(
            f"the checkpoint in {source} was trained with position_encoding={saved}, but {config.position_encoding} "
            f"was requested. Omit position_encoding, or train a model with it."
        )
    keys = {key for kind in ("missing_keys", "unexpected_keys") for key in info[kind]}
    keys |= {entry[0] for entry in info.get("mismatched_keys", ())}
    if wrong := sorted(key for key in keys if "position_encoding" in key):
        raise ValueError(
            f"the position encoding's parameters in {source} do not fit {_describe(vars(config))}: "
            f"{', '.join(wrong[:4])}. Load the checkpoint with its own configuration: {_describe(saved_config)}."
        )


def check_shapes(source: Any, info: dict[str, Any]) -> None:
    """Refuse a checkpoint whose tensors have different shapes from the model's."""
    if wrong := sorted(info.get("mismatched_keys", ())):
        shown = ", ".join(f"{key} {tuple(saved)} instead of {tuple(own)}" for key, saved, own in wrong[:4])
        raise ValueError(
            f"{len(wrong)} tensors in {source} have the wrong shape: {shown}. Load the checkpoint with its own "
            f"configuration, or reinitialise these tensors with ignore_mismatched_sizes=True."
        )


def is_compatible(saved: dict[str, Any], requested: dict[str, Any], learned: bool) -> bool:
    """Whether a checkpoint saved with one encoding may be loaded with another.

    Learned encodings and those built by the theorem must match, except for their `free` options. Otherwise a subclass
    is accepted, so that RoPE checkpoints load as RoPE-PI and YaRN.
    """
    before, now = (ENCODINGS.get(encoding.get("name", "")) for encoding in (saved, requested))
    if learned or "theorem" in saved or "theorem" in requested:
        free = before.free if before is not None else ()
        saved, requested = ({key: one[key] for key in one if key not in free} for one in (saved, requested))
        return saved == requested
    return before is None or now is None or issubclass(now, before)


def _describe(config: dict[str, Any]) -> str:
    shared = config.get("share_position_encoding")
    return f"{config.get('position_encoding')}{'' if shared is None else f' with share_position_encoding={shared}'}"
