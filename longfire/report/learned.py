"""The biases that a checkpoint learned: read from its folder, and described so that a page can draw any query's.

FIRE is given as its weights, which a page evaluates itself; other encodings as samples.
"""

import base64
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longfire.encodings import ENCODINGS, FIRE, PositionEncoding
from longfire.evaluation.learned import bias_of, learned_c, learned_L
from longfire.theorem import Cosine, Step
from longfire.validation import load_without_code

FAR = 16
"""How many times the training length a page goes."""
ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.GELU: "gelu", Step: "step", Cosine: "cos"}
EVERY = 256
"""Up to this distance every one is sampled: T5's steps end at 128."""


@dataclass(frozen=True)
class Learned:
    """A checkpoint's position encodings."""

    name: str
    encoding: str
    trained: int
    encodings: list[PositionEncoding]
    per_layer: bool
    """Whether each layer has learned its own."""


def read_checkpoint(folder: Path) -> Learned:
    """The encodings in a folder that `save_pretrained` wrote, or in the model of a run's folder."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from longfire.model.loading import find_checkpoint  # importing the room registers the models

    found = find_checkpoint(folder)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model: Any = load_without_code(AutoModelForCausalLM, found, dtype="auto", local_files_only=True)
    finally:
        if shown:
            logging.enable_progress_bar()
    encodings = [module for module in model.modules() if isinstance(module, PositionEncoding)]
    if not any(encoding.has_bias for encoding in encodings):
        own = next((name for name, cls in ENCODINGS.items() if encodings and type(encodings[0]) is cls), None)
        what = f"its encoding is {own!r}" if own else f"a {model.config.model_type} model has an encoding of its own"
        raise ValueError(
            f"{folder} has no bias to draw: {what}, which adds none to the attention logits. longfire explore without "
            f"a checkpoint shows what every encoding does."
        )
    learned = any(True for encoding in encodings for _ in encoding.parameters())
    trained = getattr(model.config, "max_position_embeddings", None) or 2048
    name = next((name for name, cls in ENCODINGS.items() if type(encodings[0]) is cls), type(encodings[0]).__name__)
    return Learned(
        str(folder), name, int(trained), encodings if learned else encodings[:1], len(encodings) > 1 and learned
    )


def described(encoding: PositionEncoding, farthest: int) -> dict[str, Any]:
    """For a page: the weights of a FIRE, or samples of the bias up to a query position."""
    c, L = learned_c(encoding), learned_L(encoding)
    about: dict[str, Any] = {"c": c, "L": L, "horizon": getattr(encoding, "horizon", None)}
    if isinstance(encoding, FIRE) and is_plain(encoding):
        return about | {"kind": "fire", **_weights(encoding)}
    if encoding.distance_only:
        return about | {"kind": "sampled", "rows": [_sampled(encoding, farthest)]}
    queries = sorted({round(farthest ** (k / 24)) for k in range(25)})
    return about | {"kind": "sampled", "rows": [_sampled(encoding, query, ratio=1.2, every=16) for query in queries]}


def is_plain(fire: FIRE) -> bool:
    """Whether ψ, the normaliser and f_θ are FIRE's own, with activations that a page knows."""
    own = all(getattr(type(fire), name) is getattr(FIRE, name) for name in ("psi", "normalized_distance", "f", "bias"))
    known = (nn.Linear, *ACTIVATIONS)
    return own and all(type(layer) in known and getattr(layer, "approximate", "none") == "none" for layer in fire.mlp)


def _weights(fire: FIRE) -> dict[str, Any]:
    layers: list[dict[str, Any]] = []
    for layer in fire.mlp:
        if isinstance(layer, nn.Linear):
            size = {"in": layer.in_features, "out": layer.out_features}
            layers.append({**size, "weight": packed(layer.weight), "bias": packed(layer.bias), "activation": None})
        else:
            layers[-1]["activation"] = ACTIVATIONS[type(layer)]
    return {"log": fire.log, "first": fire.first_position, "eps": fire.eps, "heads": fire.num_heads, "mlp": layers}


@torch.no_grad()
def _sampled(encoding: PositionEncoding, query: int, ratio: float = 1.05, every: int = EVERY) -> dict[str, Any]:
    distances = sample_distances(query, ratio, every)
    values = bias_of(encoding, query, distances)
    return {"query": query, "at": distances, "heads": values.shape[0], "values": packed(values)}


def sample_distances(query: int, ratio: float, every: int) -> list[int]:
    """Every distance at first, then ever fewer; the last is that of the first key."""
    steps = math.ceil(math.log(max(query / every, 1)) / math.log(ratio))
    wide = {min(query - 1, round(every * ratio**k)) for k in range(1, steps + 1)}
    return sorted({*range(min(query, every + 1)), *wide, query - 1})


def packed(values: Tensor) -> str:
    """float32, little-endian, in base64: exact, and a third of the same as text."""
    numbers = values.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4")
    return base64.b64encode(numbers.tobytes()).decode("ascii")
