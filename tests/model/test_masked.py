"""The encoder: attention in both directions, and a loss on masked tokens."""

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longfire.model import LongfireConfig, LongfireForCausalLM, LongfireForMaskedLM, LongfireModel
from longfire.model.attention import IMPLEMENTATIONS
from tests.model.models import SHAPE, options_of, tokens
from tests.model.test_generation import left_padded, logits

NAMES = ["fire", "t5", "alibi", "rope", "sinusoidal", "nope"]


def encoder(name="fire", implementation="longfire", **changes):
    torch.manual_seed(0)
    both = {"bidirectional": True} if name in ("fire", "t5") else {}
    options = {**SHAPE, "position_encoding": options_of(name, **both), "is_causal": False, **changes}
    model = LongfireForMaskedLM._from_config(LongfireConfig(**options), attn_implementation=implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_implementations_agree(name):
    ids = tokens(2, 13)
    packed = torch.cat([torch.arange(6), torch.arange(7)])[None]
    right = torch.ones_like(ids)
    right[1, 9:] = 0
    for options in ({}, {"attention_mask": right}, {"attention_mask": left_padded(ids, 4)}, {"position_ids": packed}):
        found = [logits(encoder(name, one), ids, **options) for one in IMPLEMENTATIONS]
        for other in found[1:]:
            kept = options.get("attention_mask", torch.ones_like(ids)).bool()
            assert torch.allclose(found[0][kept], other[kept], atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_token_sees_every_other_and_no_padding(implementation):
    model, ids = encoder(implementation=implementation), tokens(1, 9)
    before = logits(model, ids)
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 61
    assert ((logits(model, changed) - before).abs().amax(-1) > 1e-5).all()
    padded, mask = torch.cat([ids, tokens(1, 4)], dim=1), torch.tensor([[1] * 9 + [0] * 4])
    assert torch.allclose(logits(model, padded, attention_mask=mask)[:, :9], before, atol=1e-4)
    packed = {"position_ids": torch.cat([torch.arange(9), torch.arange(4)])[None]}
    assert torch.allclose(logits(model, padded, **packed)[:, :9], before, atol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_it_tells_left_from_right(shared):
    model, ids = encoder(share_position_encoding=shared), tokens(1, 9)
    assert not torch.allclose(logits(model, ids.flip(1)).flip(1), logits(model, ids), atol=1e-3)


def test_loss_and_checkpoint(tmp_path):
    model, ids = encoder(tie_word_embeddings=True), tokens(2, 9)
    labels = torch.full_like(ids, -100)
    labels[:, 3:5] = ids[:, 3:5]
    out = model(ids, labels=labels, skip_logits=False)
    expected = torch.nn.functional.cross_entropy(out.logits[:, 3:5].flatten(0, 1), ids[:, 3:5].flatten())
    torch.testing.assert_close(out.loss, expected)
    assert model.train()(ids, labels=labels).logits is None
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(loaded) is LongfireForMaskedLM
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_refusals():
    config = LongfireConfig(**SHAPE, is_causal=False)
    assert config.position_encoding == {"name": "fire", "bidirectional": True}
    assert not config.use_cache
    with pytest.raises(ValueError, match="use LongfireForMaskedLM"):
        LongfireForCausalLM(config)
    with pytest.raises(ValueError, match=r"needs LongfireConfig\(is_causal=False\)"):
        LongfireForMaskedLM(LongfireConfig(**SHAPE))
    with pytest.raises(Exception, match=r"FIRE\(…, bidirectional=True\)"):
        LongfireConfig(**SHAPE, is_causal=False, position_encoding="fire")
    with pytest.raises(ValueError, match="a cache needs causal attention"):
        LongfireModel(config)(tokens(1, 4), use_cache=True)
    with pytest.raises(ValueError, match=r"is_causal=True is not supported: .* built with is_causal=False"):
        encoder()(tokens(1, 4), is_causal=True)
