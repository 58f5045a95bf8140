"""LoRA on models with a longfire encoding: the encoding is left alone, or trained and saved with the adapter."""

import copy

import peft
import pytest
import torch

from longfire import FIRE, position_parameters
from longfire.model import retrofit
from tests.model.decoders import tiny
from tests.model.models import small_model, tokens
from tests.model.test_generation import generated, logits

MODELS = {
    "retrofitted": lambda: retrofit(tiny("Llama"), training_length=64),
    "own": small_model,
    "own, shared": lambda: small_model(share_position_encoding=True),
}


def lora(model, **options):
    return peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", init_lora_weights=False, **options))


def trained(model, ids):
    """After one step on everything that is trainable."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    model.train()(ids, labels=ids).loss.backward()
    optimizer.step()
    return model.eval()


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_encoding_is_trained_and_saved_with_the_adapter(make, tmp_path):
    base, ids = make(), tokens(2, 13)
    before = logits(base, ids)
    model = lora(base, modules_to_save=["position_encoding"])
    start = [p.clone() for p in position_parameters(model)]
    trained(model, ids)
    same = [torch.equal(*pair) for pair in zip(start, position_parameters(model), strict=True)]
    assert not all(same)
    after = logits(model, ids)
    with model.disable_adapter():
        assert torch.allclose(logits(model, ids), before, atol=1e-4)
    for implementation in ("sdpa", "eager"):
        base.set_attn_implementation(implementation)
        assert torch.allclose(logits(model, ids), after, atol=2e-4)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(make(), tmp_path).eval()
    assert torch.allclose(logits(loaded, ids), after, atol=1e-4)
    expected = generated(loaded, ids, use_cache=False)
    merged = loaded.merge_and_unload()
    assert torch.allclose(logits(merged, ids), after, atol=1e-4)
    assert torch.equal(generated(merged, ids), expected)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_all_linear_leaves_the_encoding_alone(make):
    model = lora(make())
    before = copy.deepcopy(position_parameters(model))
    trained(model, tokens(2, 13))
    assert not [name for name, _ in model.named_parameters() if "position_encoding" in name and "lora" in name]
    assert all(torch.equal(*pair) for pair in zip(before, position_parameters(model), strict=True))
    assert any("lora" in name for name, _ in model.named_parameters())


def test_a_frozen_low_precision_base_keeps_the_encoding_in_float32():
    base = retrofit(tiny("Llama").bfloat16(), training_length=64)
    base = peft.prepare_model_for_kbit_training(base.to(torch.bfloat16))
    model = lora(base.to(torch.bfloat16), modules_to_save=["position_encoding"])
    assert base.model.layers[0].self_attn.q_proj.base_layer.weight.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in position_parameters(model)} == {torch.float32}
    assert any(parameter.requires_grad for parameter in position_parameters(model))
    trained(model, tokens(2, 13))


def test_quantisers_do_not_see_its_layers():
    """They replace subclasses of `nn.Linear`."""
    assert not [module for module in FIRE(4).modules() if isinstance(module, torch.nn.Linear)]
