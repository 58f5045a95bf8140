"""Small models from transformers and longfire, and text to evaluate them on."""

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from longfire.data import TokenSplit
from longfire.evaluation.perplexity import perplexity_by_length
from longfire.evaluation.scoring import HEAD, REPLAY
from tests.model.models import SHAPE, small_model

V = SHAPE["vocab_size"]
DOCUMENTS = (70, 5, 33, 64, 16, 100)
SIZES = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {"intermediate_size": 64, "num_key_value_heads": 2}


def split_of(*lengths, seed=3, bytes=0, vocabulary=V):
    """A split with documents of these lengths."""
    starts = np.cumsum([0, *lengths])
    ids = np.random.default_rng(seed).integers(1, vocabulary, starts[-1]).astype(np.uint16)
    return TokenSplit("validation", ids, starts, bytes, 0)


def whole_pieces(split, n):
    """The documents cut into pieces of n tokens (M, n), without the remainders."""
    return split.windows(split.pieces(n)[0], n)


def evaluate(model, split=None, lengths=(16, 32), **options):
    split = split_of(*DOCUMENTS) if split is None else split
    return perplexity_by_length(model, split, lengths, progress=False, **options)


def plain_losses(model, windows, first=1):
    """Losses (M, n − first), window by window, from all logits at once."""
    rows = []
    with torch.no_grad():
        for window in windows:
            ids = torch.from_numpy(window.astype(np.int64))
            logits = model(ids[None]).logits[0, first - 1 : -1]
            rows.append(F.cross_entropy(logits.float(), ids[first:], reduction="none"))
    return torch.stack(rows)


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **GROUPED, **changes})).eval()


def gpt2(positions=32):
    return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=positions, n_embd=32, n_layer=2, n_head=4)).eval()


def gemma(**changes):
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **GROUPED, head_dim=8, **changes)).eval()


def cohere():
    return CohereForCausalLM(CohereConfig(**SIZES, intermediate_size=64, logit_scale=0.25)).eval()


def opt():
    return OPTForCausalLM(OPTConfig(**SIZES, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=16)).eval()


def hooked():
    """A hook changes the head's outputs, as an adapter or a steering vector does."""
    model = llama()
    model.lm_head.register_forward_hook(lambda module, inputs, output: 5 * output.flip(-1))
    return model


MODELS = {
    "fire": (small_model, HEAD),
    "rope": (lambda: small_model("rope"), HEAD),
    "llama": (llama, HEAD),
    "gpt2": (gpt2, HEAD),
    "opt": (opt, HEAD),
    "gemma2": (gemma, REPLAY),
    "cohere": (cohere, REPLAY),
    "hooked": (hooked, REPLAY),
}
"""Models, and how their logits are computed."""
