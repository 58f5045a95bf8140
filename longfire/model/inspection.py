"""Inspect a loaded model: its position encodings, how many positions it has, and which attention it uses."""

from typing import Any

import torch

from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.encodings.positions import check_range
from longfire.engines import attention_plan
from longfire.model.inputs import LONGFIRE


def find_encodings(model: Any) -> list[PositionEncoding]:
    """The longfire encodings in a model; empty for models with their own."""
    return [module for module in model.modules() if isinstance(module, PositionEncoding)]


def encoding_name(model: Any) -> str:
    """The name that `build_encoding` takes, or "<model type>'s own"."""
    kinds = {type(encoding) for encoding in find_encodings(model)}
    names = [name for name, cls in ENCODINGS.items() if cls in kinds]
    return ", ".join(names) or f"{model.config.model_type}'s own"


def max_positions(model: Any) -> int | None:
    """The number of positions a model supports. None: unlimited."""
    limits = (encoding.max_length for encoding in find_encodings(model))
    return min((limit for limit in limits if limit is not None), default=None)


def check_length(model: Any, length: int, what: str = "") -> None:
    """Refuse sequences (or `what`) with more tokens than the model has positions."""
    if (drawn := getattr(model.config, "random_positions", None)) is not None:
        check_range(length, drawn)
    limit = max_positions(model)
    if limit is not None and length > limit:
        raise ValueError(
            f"the model has {limit} positions, too few for {what or f'sequences of {length} tokens'}: its encoding is "
            f"{encoding_name(model)!r}. Use at most {limit} tokens, or a model whose encoding "
            f"extrapolates, such as 'fire'."
        )


def attention_used(model: Any, tokens: int, cached: bool) -> str:
    """The attention implementation and, for "longfire", the engine it picks for a step after `tokens` tokens."""
    config = model.config
    if config._attn_implementation != LONGFIRE:
        return str(config._attn_implementation)
    H = config.num_attention_heads
    D = getattr(config, "head_dim", None) or config.hidden_size // H
    G = getattr(config, "num_key_value_heads", None) or H
    like = {"device": model.device, "dtype": model.dtype}
    q = torch.empty(1, H, 1 if cached else tokens, D, **like)
    k = torch.empty(1, G, tokens, D, **like)
    bias = next((encoding for encoding in find_encodings(model) if encoding.has_bias), None)
    window = getattr(config, "attention_window", None)
    return f"{LONGFIRE} ({attention_plan(q, k, k, bias, window=window).engine})"
