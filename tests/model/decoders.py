"""Tiny random models of every decoder that can be retrofitted."""

import torch

from longfire.model.retrofits.architectures import CLASSES, DECODERS

LENGTH = 64
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOW = 7
WINDOWED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
SPECIAL = {
    "Mistral": {"sliding_window": WINDOW},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "Qwen3Moe": EXPERTS,
    "Gemma2": {**WINDOWED, "attn_logit_softcapping": 2.0},
    "Gemma3": WINDOWED,
    "Olmo3": WINDOWED,
    "Olmoe": EXPERTS,
    "SmolLM3": {"no_rope_layers": [1, 0]},
    "Cohere2": WINDOWED,
    "Exaone4": {**WINDOWED, "sliding_window_pattern": 2},
    "GptOss": {**WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        "num_key_value_heads": 4,
        "head_dim": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": LENGTH, "use_cache": True},
}
NAMES = tuple(architecture.name for architecture in DECODERS)
NAMED = {cls.__name__: cls for cls in CLASSES}


def tiny(name, **changes):
    """A causal language model."""
    return tiny_class(NAMED[f"{name}ForCausalLM"], **changes)


def tiny_class(cls, **changes):
    """In evaluation mode, with weights large enough that every layer and position matters."""
    torch.manual_seed(0)
    name = max((name for name in NAMES if cls.__name__.startswith(name)), key=len)
    known = {"Bloom": ("vocab_size", "hidden_size"), "Mpt": ("vocab_size",)}.get(name, SHAPE)
    shape = {key: SHAPE[key] for key in known}
    model = cls(cls.config_class(**{**shape, **SPECIAL.get(name, {}), **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()
