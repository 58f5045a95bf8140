"""How far a model's positions go, and RoPE stretched beyond the length it was trained at.

A checkpoint trained with RoPE is read as RoPE-PI or YaRN: same weights, other frequencies. For no other pair would the
weights mean the same, since what an encoding learned, or what attention learned with it, is that encoding's alone.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.encodings.rope import Stretched
from longfire.model.checkpoints import checkpoint_in
from longfire.model.configuration import LongfireConfig
from longfire.model.modeling import LongfireForCausalLM
from longfire.validation import at_least, one_of

STRETCHED = tuple(name for name, cls in ENCODINGS.items() if issubclass(cls, Stretched))
"""The names of what RoPE can be extended to."""


def extend(
    source: str | Path | LongfireForCausalLM, encoding: str, target_length: int, trained_length: int | None = None
) -> LongfireForCausalLM:
    """A model of RoPE with the same weights and "rope_pi" or "yarn" in its place, which its configuration says.

    Args:
        source: a checkpoint's folder, a training run's, or a model, which stays as it is.
        encoding: "rope_pi" or "yarn".
        target_length: to reach.
        trained_length: what it was trained at; its `max_position_embeddings`, unless given.
    """
    if isinstance(source, LongfireForCausalLM):
        config = deepcopy(source.config)
        config.position_encoding = extended(config, encoding, target_length, trained_length)
        model = LongfireForCausalLM(config)
        model.to(source.device, source.dtype)  # type: ignore[arg-type]
        model.load_state_dict(source.state_dict())
        model.train(source.training)
        return model
    folder = checkpoint_in(Path(source))
    asked = extended(LongfireConfig.from_pretrained(folder), encoding, target_length, trained_length)
    loaded: LongfireForCausalLM = LongfireForCausalLM.from_pretrained(folder, position_encoding=asked)
    return loaded


def extended(
    config: LongfireConfig, encoding: str, target_length: int, trained_length: int | None = None
) -> dict[str, Any]:
    """The position encoding of a configuration, extended; its own options, such as `base`, are kept."""
    one_of("the encoding to extend to", encoding, STRETCHED)
    before: dict[str, Any] = dict(config.position_encoding or {})  # type: ignore[arg-type]
    if before["name"] != "rope":
        raise ValueError(f"a checkpoint with {before['name']!r} cannot become {encoding!r}: {_reason(before['name'])}")
    trained = config.max_position_embeddings if trained_length is None else trained_length
    at_least("the trained length", trained, 1)
    at_least("the target length", target_length, 1)
    if target_length <= trained:
        raise ValueError(
            f"the target length must be above the trained length, or there is nothing to extend: {target_length} is "
            f"not above {trained}. Up to there the checkpoint serves as it is."
        )
    return {**before, "name": encoding, "trained_length": trained, "target_length": target_length}


def furthest(model: Any) -> int | None:
    """How many positions the encodings in a model have. None: any number."""
    found = (module.max_length for module in model.modules() if isinstance(module, PositionEncoding))
    return min((length for length in found if length is not None), default=None)


def refuse_beyond(model: Any, length: int) -> None:
    """Refuse sequences that a model has no positions for."""
    most = furthest(model)
    if most is not None and length > most:
        name = (getattr(model.config, "position_encoding", None) or {}).get("name", "its own")
        raise ValueError(
            f"the model has {most} positions, and sequences of {length} tokens were asked for: its encoding, {name!r}, "
            f"has nothing beyond. Take a length of at most {most}, or a checkpoint whose encoding goes on, such as "
            f"'fire'."
        )


def _reason(name: str) -> str:
    if name in STRETCHED:
        return "it has been extended already. Start from the checkpoint with 'rope' that it was made of."
    return (
        "only RoPE's angles can be stretched without training anew. Other encodings are used beyond their training "
        "length as they are: leave the extension out."
    )
