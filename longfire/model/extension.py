"""Another encoding in longfire's own decoder: RoPE extended to RoPE-PI or YaRN, or a new one.

Only RoPE can be extended without training, by other frequencies with the same weights: other encodings have learned
parameters, or the model has adapted to them.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from longfire.encodings import ENCODINGS, position_parameters
from longfire.encodings.rope import ScaledRoPE
from longfire.model.configuration import LongfireConfig
from longfire.model.heads import LongfireForCausalLM
from longfire.model.loading import checkpoint_in
from longfire.validation import at_least, one_of

EXTENSIONS = tuple(name for name, cls in ENCODINGS.items() if issubclass(cls, ScaledRoPE))
"""The encodings that RoPE can be extended to."""


def extend(
    source: str | Path | LongfireForCausalLM, encoding: str, target_length: int, trained_length: int | None = None
) -> LongfireForCausalLM:
    """Extend the context of a model trained with RoPE, using `"rope_pi"` or `"yarn"`. Weights do not change.

    Args:
        source: a checkpoint folder, a training run's folder, or a model, which is copied.
        encoding: `"rope_pi"` or `"yarn"`.
        target_length: the length to extend to.
        trained_length: the length the model was trained at. Default: its `max_position_embeddings`.
    """
    if isinstance(source, LongfireForCausalLM):
        config = deepcopy(source.config)
        config.position_encoding = extended_encoding(config, encoding, target_length, trained_length)
        return with_config(source, config)
    folder = checkpoint_in(Path(source))
    requested = extended_encoding(LongfireConfig.from_pretrained(folder), encoding, target_length, trained_length)
    loaded: LongfireForCausalLM = LongfireForCausalLM.from_pretrained(folder, position_encoding=requested)
    return loaded


def extended_encoding(
    config: LongfireConfig, encoding: str, target_length: int, trained_length: int | None = None
) -> dict[str, Any]:
    """The extended `position_encoding` of a configuration. Options such as `base` are kept."""
    one_of("the encoding to extend to", encoding, EXTENSIONS)
    saved: dict[str, Any] = dict(config.position_encoding or {})  # type: ignore[arg-type]
    if (name := saved["name"]) != "rope":
        reason = (
            "it is already extended. Start from the original 'rope' checkpoint."
            if name in EXTENSIONS
            else "only RoPE can be extended without training. Run others past their training length as they are."
        )
        raise ValueError(f"a checkpoint with {name!r} cannot become {encoding!r}: {reason}")
    trained = config.max_position_embeddings if trained_length is None else trained_length
    at_least("trained_length", trained, 1)
    at_least("target_length", target_length, 1)
    if target_length <= trained:
        raise ValueError(
            f"target_length must be above the trained length of {trained}, not {target_length}: up to there, the "
            f"checkpoint needs no extension."
        )
    return {**saved, "name": encoding, "trained_length": trained, "target_length": target_length}


def retrofitted_config(
    config: LongfireConfig, encoding: str | None, training_length: int, options: dict[str, Any]
) -> LongfireConfig:
    """The model's configuration with another encoding. Extensions of RoPE need the option `target_length`."""
    at_least("training_length", training_length, 1)
    refuse_bidirectional(options)
    new, name = deepcopy(config), encoding or "fire"
    if name in EXTENSIONS:
        if "target_length" not in options:
            raise TypeError(
                f"{name!r} needs the length to extend to: {name}:target_length=N, above the trained length."
            )
        target, trained = options["target_length"], options.get("trained_length")
        chosen = {**options, **extended_encoding(config, name, target, trained)}
    else:
        default = {"init_L": training_length / 4} if name == "fire" else {}
        chosen = {"name": name, **default, **options}
    new.position_encoding, new.max_position_embeddings = chosen, training_length
    new.validate_architecture()
    with torch.device("meta"):
        learned = bool(position_parameters(config.build_encoding()))
    saved: dict[str, Any] = dict(config.position_encoding or {})  # type: ignore[arg-type]
    if learned and saved.get("name") == name:
        raise ValueError(f"this model already has {name!r}, which it has learned. Fine-tune it as it is.")
    return new


def refuse_bidirectional(options: dict[str, Any]) -> None:
    """Refuse options for keys after the query, which causal attention hides."""
    if options.get("bidirectional"):
        raise TypeError("bidirectional=True is for encoders, but the attention of this model is causal: omit it.")


def with_config(model: LongfireForCausalLM, config: LongfireConfig) -> LongfireForCausalLM:
    """A copy of the model with the configuration's encoding."""
    new = LongfireForCausalLM(config)
    weights = {name: tensor for name, tensor in model.state_dict().items() if "position_encoding" not in name}
    new.load_state_dict(weights, strict=False)
    new.to(model.device, model.dtype)  # type: ignore[arg-type]
    new.train(model.training)
    return new
