"""Retrofitted models: the same logits as with ALiBi; consistent and trainable in place of RoPE."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from longfire import FIRE, attention_plan, position_parameters
from longfire.model import retrofit
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.retrofits.architectures import CLASSES
from tests.model.models import tokens
from tests.model.test_generation import STATIC, generated, left_padded, logits

LENGTH = 64
LLAMA_LIKE = ("Llama", "Mistral", "Qwen2", "Qwen3")
NAMES = ("Bloom", "Mpt", *LLAMA_LIKE)


def config_of(name, heads=4, **changes):
    C = 8 * heads
    llama = {"hidden_size": C, "intermediate_size": 2 * C, "num_hidden_layers": 2, "num_attention_heads": heads}
    llama |= {"num_key_value_heads": 2, "rms_norm_eps": 1e-5}
    own = {
        "Bloom": {"hidden_size": C, "n_layer": 2, "n_head": heads},
        "Mpt": {"d_model": C, "n_layers": 2, "n_heads": heads, "max_seq_len": LENGTH, "use_cache": True},
        "Llama": llama,
        "Mistral": llama,
        "Qwen2": llama,
        "Qwen3": {**llama, "head_dim": 16},
    }
    return getattr(hf, f"{name}Config")(**{"vocab_size": 61, "eos_token_id": None, **own[name], **changes})


@pytest.mark.parametrize("name", ["Llama", "Bloom", "Mpt"])
def test_splitting_a_sequence_is_refused(name):
    model = retrofit(original(name), training_length=16)
    with pytest.raises(TypeError, match=r"takes no sequence_group. Only longfire's own models"):
        model(tokens(1, 4), sequence_group=object())


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Bloom", "Mpt"])
def test_arguments_that_the_base_model_would_ignore(name):
    model = retrofit(original(name), training_length=16)
    for call in (model, model.base_model):
        for argument in ("segment_ids", "window", "sliding_window", "attn_mask", "misspelt"):
            with pytest.raises(TypeError, match=rf"Fire{name}.* takes no {argument}\. \w"):
                call(tokens(1, 4), **{argument: tokens(1, 4)})
        with pytest.raises(ValueError, match=r"is_causal=False is not supported: .* is_causal=True\. Omit it\.$"):
            call(tokens(1, 4), is_causal=False)
    assert logits(model, tokens(1, 4), window=None).isfinite().all()


def original(name, heads=4, **changes):
    """In evaluation mode, with weights large enough that every layer and position matters."""
    torch.manual_seed(0)
    config = config_of(name, heads, tie_word_embeddings=False, **changes)
    model = getattr(hf, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def retrofitted(name, **changes):
    """With a FIRE large enough to matter."""
    model = retrofit(original(name, **changes), training_length=LENGTH)
    if name in LLAMA_LIKE:
        with torch.no_grad():
            for encoding in encodings(model):
                encoding.linears[-1].weight.mul_(10)
    return model


def encodings(model):
    return [module for module in model.modules() if isinstance(module, FIRE)]


@pytest.mark.parametrize("heads", [4, 6, 8, 12])
@pytest.mark.parametrize("name", ["Bloom", "Mpt"])
def test_alibi_has_the_same_logits(name, heads):
    changes = {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.7}} if name == "Mpt" else {}
    model = original(name, heads, **changes)
    new, ids = retrofit(model, training_length=LENGTH), tokens(2, LENGTH)
    expected, found = logits(model, ids), logits(new, ids)
    assert (expected - logits(model, ids.flip(1)).flip(1)).abs().max() > 1
    assert (found - expected).abs().max() <= 1e-4
    mask = left_padded(ids, 9)
    found, expected = (logits(m, ids, attention_mask=mask) for m in (new, model))
    assert (found - expected)[mask.bool()].abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["Bloom", "Mpt"])
def test_alibi_generates_the_same(name):
    model, ids = original(name), tokens(2, 11)
    new = retrofit(model, training_length=LENGTH)
    assert generated(model, tokens(6, 9), new=12).unique().numel() > 12
    mask = left_padded(ids)
    for options in ({}, {"attention_mask": mask}, {"attention_mask": mask, "num_beams": 3}):
        expected = generated(model, ids, **options)
        for cache in ({}, {"use_cache": False}, STATIC):
            assert torch.equal(generated(new, ids, **options, **cache), expected)


def test_the_old_name_of_the_training_length_warns():
    with pytest.warns(FutureWarning, match=r"retrofit\(max_length=…\) is now training_length=…"):
        new = retrofit(original("Llama"), max_length=64)
    assert new.config.max_position_embeddings == 64


def test_beyond_the_training_length_alibi_is_interpolated():
    model, ids = original("Bloom"), tokens(1, 96)
    new = retrofit(model, training_length=48)
    difference = (logits(new, ids) - logits(model, ids)).abs().amax((0, 2))
    assert difference[:48].max() <= 1e-4
    assert difference[48:].max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_caches_padding_and_implementations_agree(name):
    model, ids = retrofitted(name), tokens(2, 23)
    mask = left_padded(ids)
    whole = logits(model, ids, attention_mask=mask)
    swapped = ids[:, [3, 1, 2, 0, *range(4, 23)]]
    assert (logits(model, ids)[:, -1] - logits(model, swapped)[:, -1]).abs().max() > 0.1  # positions matter
    assert torch.allclose(whole[1:, 4:], logits(model, ids[1:, 4:]), atol=2e-4)
    for cache in (hf.DynamicCache(config=model.config), hf.StaticCache(model.config, max_cache_len=40)):
        parts = []
        for start, end in ((0, 9), (9, 10), (10, 23)):
            given = {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True}
            parts.append(logits(model, ids[:, start:end], **given))
        assert torch.allclose(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], atol=2e-4)
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        found = logits(model, ids, attention_mask=mask)
        assert torch.allclose(found[mask.bool()], whole[mask.bool()], atol=2e-4)


@pytest.mark.parametrize("implementation", ["longfire", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_generates_in_padded_batches_with_every_cache(name, implementation):
    model, ids = retrofitted(name), tokens(2, 11)
    model.set_attn_implementation(implementation)
    mask = left_padded(ids)
    for beams in (1, 3):
        alone = [generated(model, part, use_cache=False, num_beams=beams, new=6) for part in (ids[:1], ids[1:, 4:])]
        options = {"attention_mask": mask, "num_beams": beams, "new": 6}
        for cache in ({}, STATIC):
            assert torch.equal(generated(model, ids, **options, **cache), torch.cat(alone))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Bloom's GELU, compiled
@pytest.mark.parametrize("name", ["Bloom", "Mpt", "Qwen3"])
def test_a_compiled_step_with_a_static_cache(name):
    layers = {"Bloom": "n_layer", "Mpt": "n_layers"}.get(name, "num_hidden_layers")
    model, ids = retrofitted(name, **{layers: 1}), tokens(2, 9)
    torch.compiler.reset()
    cache = hf.StaticCache(model.config, max_cache_len=16)
    logits(model, ids[:, :8], past_key_values=cache, use_cache=True)
    with torch.no_grad():
        step = torch.compile(model, fullgraph=True, backend="eager")
        found = step(ids[:, 8:], past_key_values=cache, use_cache=True).logits
    assert torch.allclose(found, logits(model, ids)[:, 8:], atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_training_with_and_without_gradient_checkpointing(name):
    model, ids = retrofitted(name).train(), tokens(2, 16)
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        assert all(encoding.linears[-1].weight.grad.abs().max() > 0 for encoding in encodings(model))
    assert all(parameter.grad is not None for parameter in position_parameters(model))
    for plain, checkpointed in zip(*found, strict=True):
        assert torch.allclose(plain, checkpointed, atol=1e-5, rtol=1e-4)


def test_dropout_of_attention_is_kept():
    ids = tokens(1, 16)
    for name in ("Bloom", "Mpt", "Llama"):
        model = retrofitted(name, **({} if name == "Mpt" else {"attention_dropout": 0.5}))
        for block in model.transformer.blocks if name == "Mpt" else ():
            block.attn.attn_dropout_p = 0.5  # its configuration accepts only whole numbers
        assert torch.equal(logits(model, ids), logits(model, ids))
        model.train()
        assert not torch.equal(logits(model, ids), logits(model, ids))


@pytest.mark.parametrize("name", NAMES)
def test_the_original_does_not_change(name):
    model, ids = original(name), tokens(1, 16)
    model.generation_config.top_k = 7
    model.train().bfloat16()
    model.get_input_embeddings().weight.requires_grad_(False)
    before, config = {key: value.clone() for key, value in model.state_dict().items()}, model.config.to_dict()
    new = retrofit(model, training_length=LENGTH)
    assert model.config.to_dict() == config
    assert type(model).__name__ == f"{name}ForCausalLM"
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert new.training
    assert new.generation_config.top_k == 7
    assert new.generation_config is not model.generation_config
    assert new.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in position_parameters(new)} == {torch.float32}
    assert new.lm_head.weight.data_ptr() == model.lm_head.weight.data_ptr()
    assert sum(not parameter.requires_grad for parameter in new.parameters()) == 1
    assert torch.isfinite(logits(new.eval(), ids)).all()


@pytest.mark.parametrize("name", ["Bloom", "Llama"])
def test_tied_weights_stay_tied(name):
    model = getattr(hf, f"{name}ForCausalLM")(config_of(name, tie_word_embeddings=True))
    new = retrofit(model, training_length=LENGTH)
    assert new.lm_head.weight is new.get_input_embeddings().weight


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded(name, tmp_path):
    model, ids = retrofitted(name), tokens(2, 20)
    with torch.no_grad():
        for parameter in position_parameters(model):
            parameter.mul_(1.1)  # trained
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config.position_encoding == model.config.position_encoding
    assert loaded.config.vocab_size == 61
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    half = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    for mine, other in zip(position_parameters(half), position_parameters(model), strict=True):
        assert torch.equal(mine, other)
    base = hf.AutoModel.from_pretrained(tmp_path)
    assert type(base) is type(model.base_model)
    assert pickle.loads(pickle.dumps(type(model))) is type(model)
    assert isinstance(model, getattr(hf, f"{name}ForCausalLM"))
    assert isinstance(model.config, getattr(hf, f"{name}Config"))
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["model_type"], saved["architectures"]) == (f"longfire_{name.lower()}", [f"Fire{name}ForCausalLM"])
    loaded.save_pretrained(tmp_path / "again")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(logits(again, ids), logits(model, ids))


@pytest.mark.parametrize("name", NAMES)
def test_plain_transformers_refuses_the_checkpoint(name, tmp_path):
    default = {"hidden_size": 64, "n_layer": 2, "n_head": 8, "vocab_size": 61} if name == "Bloom" else {}
    retrofit(original(name, **default), training_length=LENGTH).save_pretrained(tmp_path)
    for loader in (f"{name}Config", f"{name}ForCausalLM", f"{name}Model"):
        with pytest.raises(Exception, match=f"longfire_{name.lower()}, see base_config"):
            getattr(hf, loader).from_pretrained(tmp_path)


def test_a_checkpoint_without_its_encoding_is_refused(tmp_path):
    for name in ("Bloom", "Llama"):
        folder = tmp_path / name
        retrofitted(name).save_pretrained(folder)
        state = load_file(folder / "model.safetensors")
        kept = {key: value for key, value in state.items() if "1.self_att" not in key or "mlp" not in key}
        assert len(kept) < len(state)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match="position encoding's parameters"):
            hf.AutoModelForCausalLM.from_pretrained(folder)
        original(name).save_pretrained(tmp_path / "plain")
        with pytest.raises(ValueError, match=r"retrofit\(model"):
            CLASSES[getattr(hf, f"{name}ForCausalLM")].from_pretrained(tmp_path / "plain")


def test_another_encoding_than_the_saved_one_is_refused(tmp_path):
    retrofitted("Bloom").save_pretrained(tmp_path)
    requested = copy.deepcopy(json.loads((tmp_path / "config.json").read_text())["position_encoding"])
    requested["max_length"] *= 2
    with pytest.raises(ValueError, match="was requested"):
        hf.AutoModelForCausalLM.from_pretrained(tmp_path, position_encoding=requested)


def test_initialisation_from_the_configuration():
    """The base model's initialisation of linear layers does not reach FIRE."""
    new, ids = retrofitted("Bloom"), tokens(1, 32)
    fresh = hf.AutoModelForCausalLM.from_config(new.config).eval()
    for mine, other in zip(encodings(fresh), encodings(new), strict=True):
        assert torch.equal(mine.linears[0].weight, other.linears[0].weight)
    base = {key: value for key, value in fresh.state_dict().items() if "position_encoding" not in key}
    model = hf.BloomForCausalLM(config_of("Bloom", tie_word_embeddings=False)).eval()
    model.load_state_dict(base)
    assert (logits(fresh, ids) - logits(model, ids)).abs().max() <= 1e-4
    llama = hf.AutoModelForCausalLM.from_config(retrofitted("Llama").config)
    assert all(encoding.linears[0].bias.abs().min() > 0 for encoding in encodings(llama))  # Llama's would be 0


def test_options_of_a_new_fire():
    new = retrofit(original("Llama"), training_length=512, mlp_width=16, hidden_layers=1)
    assert [encoding.L.item() for encoding in encodings(new)] == [128.0, 128.0]
    assert encodings(new)[0].linears[0].out_features == 16
    assert new.config.max_position_embeddings == 512
    kerple = retrofit(original("Llama"), training_length=512, init="kerple_log")
    assert {encoding.c.item() for encoding in encodings(kerple)} == {1.0}


@pytest.mark.parametrize("name", ["Bloom", "Mpt"])
def test_weights_and_hidden_states_are_the_originals(name):
    model, ids = original(name), tokens(1, 16)
    new = retrofit(model, training_length=LENGTH)
    with pytest.raises(ValueError, match="cannot return attention weights"):
        new(ids, output_attentions=True)
    new.set_attn_implementation("eager")
    with torch.no_grad():
        expected, found = (m(ids, output_attentions=True, output_hidden_states=True) for m in (model, new))
    for mine, other in ((found.attentions, expected.attentions), (found.hidden_states, expected.hidden_states)):
        assert len(mine) == len(other) >= 2
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(mine, other, strict=True))


def test_unsupported_models_are_refused():
    gpt2 = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, n_embd=8, n_layer=1, n_head=2))
    with pytest.raises(TypeError, match=r"does not support GPT2LMHeadModel\. Supported are Bloom.*Qwen3.*use-fire\.md"):
        retrofit(gpt2, training_length=64)
    falcon = hf.FalconModel(hf.FalconConfig(vocab_size=61, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(TypeError, match=r"FalconModel\. Reason: its attention does not use.*Supported are"):
        retrofit(falcon, training_length=64)
    gpt2.merge_and_unload = None  # as on an adapter
    for model, remedy in (
        (gpt2, "Merge the adapter"),
        ("gpt2", "Load the model"),
        (torch.nn.Linear(1, 1), "longfire.attention"),
        (hf.LlamaForQuestionAnswering(config_of("Llama")), "Load the checkpoint as LlamaModel or LlamaForCausalLM or"),
    ):
        with pytest.raises(TypeError, match=f"does not support {type(model).__name__}.*{remedy}"):
            retrofit(model, training_length=64)
    with pytest.raises(TypeError, match="already has an encoding"):
        retrofit(retrofitted("Llama"), training_length=64)
    with torch.device("meta"), pytest.raises(ValueError, match="is on meta"):
        retrofit(hf.LlamaForCausalLM(config_of("Llama")), training_length=64)
    adapted = original("Llama")
    adapted.model.layers[0].self_attn.q_proj = torch.nn.ModuleDict({"base_layer": torch.nn.Linear(32, 32)})
    with pytest.raises(ValueError, match=r"not a plain LlamaForCausalLM; .*q_proj.*Merge adapters"):
        retrofit(adapted, training_length=64)
    with pytest.raises(ValueError, match="attn_implementation cannot be 'flash_attention_2'"):
        retrofitted("Llama").set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize(
    ("name", "changes", "options", "message"),
    [
        ("Bloom", {}, {"training_length": 0}, "at least 1"),
        ("Bloom", {}, {"mlp_width": 8}, "takes no mlp_width"),
        ("Bloom", {"slow_but_exact": True, "pretraining_tp": 2}, {}, "slow_but_exact"),
        ("Mpt", {"attn_config": {"alibi": False}}, {}, r"attn_config.alibi=False"),
        ("Llama", {}, {"foo": 1}, "no option 'foo'. Known: hidden_layers"),
        ("Llama", {}, {"widht": 1}, "no option 'widht'"),
        ("Llama", {}, {"num_heads": 8}, "'num_heads' is the model's num_attention_heads"),
        ("Llama", {}, {"width": 8}, "'width' is the model's hidden_size.* Did you mean 'mlp_width'"),
        ("Bloom", {}, {"encoding": "kerple_log"}, "'kerple_log' cannot replace the ALiBi of bloom"),
        ("Llama", {}, {"encoding": "rope"}, "needs an encoding with a bias, or 'nope', not 'rope'"),
        ("Llama", {}, {"encoding": "yarn"}, "needs an encoding with a bias, or 'nope', not 'yarn'"),
        ("Llama", {}, {"encoding": {"name": "fire"}}, "must be a name, not {'name': 'fire'}. Pass its options as"),
        ("Llama", {}, {"encoding": FIRE(4)}, "must be a name, not FIRE. Pass its options as keywords: retrofit"),
        ("Llama", {}, {"bidirectional": True}, "bidirectional=True is for encoders"),
        ("Llama", {"is_causal": False}, {}, "attention is bidirectional"),
        ("Qwen2", {"layer_types": ["chunked_attention"] * 2}, {}, r"layer_types has \['chunked_attention'\]"),
    ],
)
def test_unsupported_configurations_and_options_are_refused(name, changes, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        retrofit(original(name, **changes), **{"training_length": 64, **options})


@pytest.mark.parametrize("encoding", ["kerple_log", "alibi", "t5", "sandwich", "nope"])
def test_other_encodings(encoding, tmp_path):
    new, ids = retrofit(original("Llama"), encoding, training_length=LENGTH), tokens(1, 20)
    found = [logits(new, ids)]
    new.save_pretrained(tmp_path)
    new.set_attn_implementation("eager")
    found.append(logits(new, ids))
    assert torch.allclose(*found, atol=2e-4)
    assert torch.equal(logits(hf.AutoModelForCausalLM.from_pretrained(tmp_path), ids), found[0])


def test_a_window_can_be_removed_first():
    model = original("Mistral", sliding_window=16)
    model.config.sliding_window = None
    assert logits(retrofit(model, training_length=LENGTH), tokens(1, 20)).shape == (1, 20, 61)


@pytest.mark.parametrize("name", NAMES)
def test_loads_checkpoints_of_earlier_versions(name):
    """Saved by the first release, whose retrofitted models had an attention and a forward pass of their own."""
    folder = Path(__file__).parents[1] / "data" / "retrofitted"
    model = hf.AutoModelForCausalLM.from_pretrained(folder / name)
    expected = load_file(folder / "logits.safetensors")[name]
    assert torch.allclose(logits(model, torch.arange(1, 12)[None]), expected, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_is_fused_and_as_accurate_as_eager(name):
    shape = {"Bloom": {"hidden_size": 256}, "Mpt": {"d_model": 256}}.get(name, {"hidden_size": 256, "head_dim": 64})
    model, ids = retrofitted(name, **shape).cuda(), tokens(2, 700).cuda()
    exact = logits(copy.deepcopy(model).double(), ids)
    model.bfloat16()
    q = torch.empty(1, 4, 700, 64, device="cuda", dtype=torch.bfloat16)
    window = getattr(model.config, "sliding_window", None)
    assert attention_plan(q, q, q, encodings(model)[0], window=window).engine == "fused"
    fused = logits(model, ids)  # far beyond the training length
    model.set_attn_implementation("eager")
    errors = [(found - exact).norm() / exact.norm() for found in (fused, logits(model, ids))]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's
@pytest.mark.parametrize("name", ["Bloom", "Mpt", "Qwen3"])
def test_on_a_gpu_a_static_cache_is_compiled_and_generates_the_same(name):
    model, ids = retrofitted(name).cuda(), tokens(2, 11).cuda()
    mask = left_padded(ids)
    expected = generated(model, ids, attention_mask=mask, use_cache=False)
    assert torch.equal(generated(model, ids, attention_mask=mask), expected)
    assert torch.equal(generated(model, ids, attention_mask=mask, cache_implementation="static"), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Bloom", "Qwen3"])
def test_on_a_gpu_it_trains_as_on_a_cpu(name):
    model, ids = retrofitted(name), tokens(2, 96)
    found = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        model(ids.to(device), labels=ids.to(device)).loss.backward()
        found.append([parameter.grad.cpu().clone() for parameter in model.parameters()])
    for here, there in zip(*found, strict=True):
        assert (here - there).norm() <= 1e-2 * here.norm() + 1e-6
