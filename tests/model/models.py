"""Small models whose outputs vary and depend on positions."""

import torch

from longfire import ENCODINGS
from longfire.model import LongfireConfig, LongfireForCausalLM

NAMES = sorted(ENCODINGS)
SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def options_of(name, **options):
    return {"name": name, **ENCODINGS[name].example, **options}


def small_config(name="fire", **changes):
    changes = {"max_position_embeddings": 128, "tie_word_embeddings": False, **SHAPE, **changes}
    changes.setdefault("position_encoding", options_of(name))
    return LongfireConfig(**changes)


def small_model(name="fire", implementation="longfire", seed=0, **changes):
    """In evaluation mode, with weights large enough that every layer and the encoding matter."""
    torch.manual_seed(seed)
    model = LongfireForCausalLM._from_config(small_config(name, **changes), attn_implementation=implementation)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "position_encoding" not in parameter_name:
                parameter.mul_(50 if "embed" in parameter_name else 30 if "out_proj" in parameter_name else 15)
        for encoding in model.model.encodings:
            for parameter_name, parameter in encoding.named_parameters():
                if "mlp" in parameter_name or "table" in parameter_name:
                    parameter.mul_(3)
    return model.eval()


def tokens(*shape, seed=1):
    """Random tokens other than 0, which is padding."""
    return torch.randint(1, SHAPE["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))
