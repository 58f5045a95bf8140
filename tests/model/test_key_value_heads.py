"""Grouped-query attention: several query heads per key and value head."""

import pytest
import torch

from longfire.model import LongfireConfig, LongfireForCausalLM
from longfire.model.attention import IMPLEMENTATIONS
from tests.model.models import SHAPE, small_model, tokens
from tests.model.test_generation import generated, left_padded, logits


def repeated(model, heads=4):
    """The same model with a key and value head for every query head."""
    groups, D = model.config.num_key_value_heads, model.config.head_dim
    config = LongfireConfig(**{**model.config.to_dict(), "num_key_value_heads": heads})
    other = LongfireForCausalLM._from_config(config, attn_implementation=model.config._attn_implementation).eval()
    state = model.state_dict()
    for name, value in state.items():
        if "qkv_proj" in name:
            q, k, v = value.split([heads * D, groups * D, groups * D])
            k, v = (x.unflatten(0, (groups, D)).repeat_interleave(heads // groups, 0).flatten(0, 1) for x in (k, v))
            state[name] = torch.cat([q, k, v])
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["fire", "rope"])
def test_equals_a_model_with_repeated_heads(name, groups, implementation):
    model, ids = small_model(name, implementation, num_key_value_heads=groups), tokens(2, 11)
    mask = left_padded(ids, 3)
    expected = logits(repeated(model), ids, attention_mask=mask)
    assert torch.allclose(logits(model, ids, attention_mask=mask), expected, atol=2e-4)


def test_the_cache_has_fewer_heads(tmp_path):
    model, ids = small_model(num_key_value_heads=2), tokens(2, 11)
    cache = model(ids, use_cache=True).past_key_values
    assert cache.layers[0].keys.shape == (2, 2, 11, 8)
    expected = generated(model, ids, use_cache=False)
    for options in ({}, {"cache_implementation": "static"}):
        assert torch.equal(generated(model, ids, **options), expected)
    model.save_pretrained(tmp_path)
    loaded = LongfireForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.num_key_value_heads == 2
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_default_and_refusals():
    assert LongfireConfig(**SHAPE).num_key_value_heads == 4
    model = small_model()
    assert model.model.layers[0].attention.qkv_proj.out_features == 3 * 32  # as in checkpoints of earlier releases
    for wrong, message in ((3, "num_attention_heads=4 must be a multiple of num_key_value_heads=3"), (0, "at least 1")):
        with pytest.raises(Exception, match=message):
            LongfireConfig(**SHAPE, num_key_value_heads=wrong)
