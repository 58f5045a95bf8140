"""Another encoding in longfire's own decoder: a new one, or RoPE extended to RoPE-PI or YaRN."""

import copy
from typing import Any

import torch

from longfire.encodings import position_parameters
from longfire.model.configuration import LongfireConfig
from longfire.model.extension import EXTENSIONS, extended_encoding
from longfire.model.heads import LongfireForCausalLM
from longfire.validation import at_least


def own_config(
    config: LongfireConfig, encoding: str | None, training_length: int, options: dict[str, Any]
) -> LongfireConfig:
    """The model's configuration with another encoding. Extensions of RoPE need the option `target_length`."""
    at_least("training_length", training_length, 1)
    new, name = copy.deepcopy(config), encoding or "fire"
    if name in EXTENSIONS:
        if "target_length" not in options:
            raise TypeError(
                f"{name!r} needs the length to extend to: {name}:target_length=N, above the trained length."
            )
        target, trained, *_ = options["target_length"], options.get("trained_length")
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


def retrofit_own(model: LongfireForCausalLM, config: LongfireConfig) -> LongfireForCausalLM:
    """A copy of the model with the configuration's encoding."""
    new = LongfireForCausalLM(config)
    weights = {name: tensor for name, tensor in model.state_dict().items() if "position_encoding" not in name}
    new.load_state_dict(weights, strict=False)
    new.to(model.device, model.dtype)  # type: ignore[arg-type]
    new.train(model.training)
    return new
