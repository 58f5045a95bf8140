"""Every decoder that can be retrofitted, as a tiny random model."""

import copy
import functools
import types

import pytest
import torch
import transformers as hf

from longfire import FIRE, position_parameters
from longfire.model import retrofit
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.retrofits.architectures import CLASSES, HEADS, ROTARY, T5_FAMILY
from tests.model.decoders import LENGTH, NAMES, WINDOW, tiny, tiny_class
from tests.model.models import tokens
from tests.model.test_generation import STATIC, generated, left_padded, logits
from tests.model.test_retrofit import encodings

ROTARY_NAMES = tuple(architecture.name for architecture in ROTARY)
T5_NAMES = tuple(architecture.name for architecture in T5_FAMILY)  # tests/model/test_t5.py
OTHER_CLASSES = [cls for cls in CLASSES if not cls.__name__.endswith("ForCausalLM") | cls.__name__.startswith(T5_NAMES)]


def retrofitted(model, **options):
    """With new encodings large enough to matter."""
    new = retrofit(model, training_length=LENGTH, **options)
    if "theorem" not in new.config.position_encoding:
        with torch.no_grad():
            for encoding in encodings(new):
                encoding.linears[-1].weight.mul_(10)
    return new


def reference(model, new):
    """The base model in eager mode without rotation, whose attention masks contain the new model's biases."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.register_forward_hook(lambda _, __, out: (torch.ones_like(out[0]), torch.zeros_like(out[1])))
    for name, module in new.named_modules():
        if isinstance(module, FIRE):
            attention = model.get_submodule(name.rpartition(".")[0])

            def add_bias(_, arguments, options, encoding=module):
                positions = torch.arange(options["attention_mask"].shape[-1])
                return arguments, options | {
                    "attention_mask": options["attention_mask"] + encoding(positions, positions)
                }

            attention.register_forward_pre_hook(add_bias, with_kwargs=True)
    return model


def served_by(model):
    """The attention implementations that serve a model."""
    default = model.config._attn_implementation
    return ("eager",) if default == "eager" else IMPLEMENTATIONS


@pytest.mark.parametrize("name", ROTARY_NAMES)
def test_logits_are_those_of_the_base_model_with_a_bias_and_no_rotation(name):
    model, ids = tiny(name), tokens(2, 13)
    new = retrofitted(model)
    expected = logits(reference(model, new), ids)
    assert (expected - logits(model, ids)).abs().max() > 0.1
    for implementation in served_by(new):
        new.set_attn_implementation(implementation)
        assert torch.allclose(logits(new, ids), expected, atol=2e-4)


@pytest.mark.parametrize("cls", OTHER_CLASSES)
def test_base_models_and_classifiers(cls, tmp_path):
    model, ids = tiny_class(cls), tokens(2, WINDOW)
    new = retrofitted(model)
    new.save_pretrained(tmp_path)
    auto = next((HEADS[part] for part in HEADS if cls.__name__.endswith(part)), hf.AutoModel)
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is type(new)
    with torch.no_grad():
        alone = model if cls.__name__ in ("BloomModel", "MptModel") else reference(model, new)
        expected, *found = (m(ids)[0] for m in (alone, new, loaded))
    assert all(torch.allclose(one, expected, atol=2e-4) for one in found)
    with pytest.raises(TypeError, match=r"takes no token_type_ids\. Omit them"):
        new(ids, token_type_ids=torch.zeros_like(ids))


@pytest.mark.parametrize("name", NAMES)
def test_generates_padded_with_and_without_a_cache(name):
    new, ids = retrofitted(tiny(name)), tokens(2, 9)
    mask = left_padded(ids, 3)
    alone = [generated(new, part, use_cache=False, new=5) for part in (ids[:1], ids[1:, 3:])]
    assert torch.equal(generated(new, ids, attention_mask=mask, new=5), torch.cat(alone))


@pytest.mark.parametrize("name", NAMES)
def test_trains_saves_and_loads(name, tmp_path):
    model, ids = tiny(name), tokens(2, WINDOW)
    new = retrofitted(model).train()
    before = [parameter.clone() for parameter in position_parameters(new)]
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    new(ids, labels=ids).loss.backward()
    optimizer.step()
    moved = [not torch.equal(*pair) for pair in zip(before, position_parameters(new), strict=True)]
    assert sum(moved) >= len(moved) - len(encodings(new))  # a threshold L may not matter in a short sequence
    new.eval().save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(new)
    assert torch.allclose(logits(loaded, ids), logits(new, ids), atol=1e-5)  # products differ by memory alignment
    for cls in (type(model), type(model.config)):
        with pytest.raises(Exception, match="see base_config"):
            cls.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_keyword_is_honoured_or_refused(name):
    model, ids = tiny(name), tokens(2, WINDOW)
    new, other = retrofitted(model), {"labels": ids, "shift_labels": tokens(2, WINDOW, seed=5)}
    for call in (new, new.base_model):
        with pytest.raises(TypeError, match=r"takes no attn_mask\. Did you mean 'attention_mask'"):
            call(ids, attn_mask=torch.ones(2, WINDOW))
    known = {"num_items_in_batch": 8, "cache_position": torch.arange(WINDOW), "output_hidden_states": True}
    expected = new(ids, labels=ids, **known).loss
    if name == "Bloom":  # its head does not hand them to the loss
        with pytest.raises(TypeError, match="takes no shift_labels"):
            new(ids, **other)
    else:
        assert (new(ids, **other, **known).loss - expected).abs() > 1e-3


def test_keywords_of_a_replaced_forward_or_loss_are_known():
    """As other libraries replace them: on the model, behind the original's signature."""
    new, ids, seen = retrofitted(tiny("Llama")), tokens(2, WINDOW), []

    @functools.wraps(type(new).forward)
    def forward(self, *arguments, own=None, **options):
        seen.append(own)
        return type(self).forward(self, *arguments, **options)

    new.forward = types.MethodType(forward, new)
    new.loss_function = lambda logits, labels, temperature=1.0, **_: logits.mean() * 0 + temperature
    assert new(ids, labels=ids, own=3, temperature=2.0).loss == 2.0
    assert seen == [3]
    with pytest.raises(TypeError, match="takes no misspelt"):
        new(ids, misspelt=1)


@pytest.mark.parametrize("implementation", ["longfire", "sdpa"])
@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "Gemma3", "Cohere2", "GptOss"])
def test_windows_with_every_cache(name, implementation):
    """Past the window, a cache keeps only the last keys."""
    new, ids = retrofitted(tiny(name)), tokens(2, 19)
    if new.config._attn_implementation != "eager":
        new.set_attn_implementation(implementation)
    mask = left_padded(ids)
    whole = logits(new, ids, attention_mask=mask)
    assert torch.allclose(whole[1:, 4:], logits(new, ids[1:, 4:]), atol=2e-4)
    for cache in (hf.DynamicCache(config=new.config), hf.StaticCache(new.config, max_cache_len=24)):
        parts = []
        for start, end in ((0, 9), (9, 10), (10, 18), (18, 19)):
            given = {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True}
            parts.append(logits(new, ids[:, start:end], **given))
        assert torch.allclose(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], atol=2e-4)
    assert torch.equal(generated(new, ids, attention_mask=mask, **STATIC), generated(new, ids, attention_mask=mask))


@pytest.mark.parametrize("name", ["Mistral", "Gemma3", "Bloom", "Mpt"])
def test_packed_documents(name):
    """By position ids that restart, and the arguments of padding-free collators, unless the head drops both."""
    new, ids = retrofitted(tiny(name)), tokens(1, 5 + WINDOW + 3)
    packed = {"position_ids": torch.tensor([[*range(5), *range(WINDOW + 3)]]), "use_cache": False}
    lengths = torch.tensor([0, 5, ids.shape[1]], dtype=torch.int32)
    if name in ("Bloom", "Mpt"):
        with pytest.raises(ValueError, match="does not pass position_ids, cu_seq_lens_q on to its decoder"):
            new(ids, **packed, cu_seq_lens_q=lengths)
        with torch.no_grad():
            parts = [new.base_model(part).last_hidden_state for part in (ids[:, :5], ids[:, 5:])]
            found = new.base_model(ids, **packed).last_hidden_state
        assert torch.allclose(found, torch.cat(parts, 1), atol=2e-4)
        return
    expected = torch.cat([logits(new, ids[:, :5]), logits(new, ids[:, 5:])], 1)
    for more in ({}, {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 10, "max_length_k": 10}):
        for implementation in served_by(new):
            new.set_attn_implementation(implementation)
            assert torch.allclose(logits(new, ids, **packed, **more), expected, atol=2e-4)


def test_longfire_decodes_past_the_window():
    """One query sees exactly the keys that a sliding window's cache keeps."""
    new, ids = retrofitted(tiny("Gemma3")), tokens(2, WINDOW - 2)
    mask, found = left_padded(ids, 2), []
    for implementation in ("longfire", "sdpa"):
        new.set_attn_implementation(implementation)
        found.append(generated(new, ids, attention_mask=mask))
    assert torch.equal(*found)


def test_compiled():
    new, ids = retrofitted(tiny("StableLm", num_hidden_layers=1)), tokens(2, 13)
    new.set_attn_implementation("sdpa")
    torch.compiler.reset()
    with torch.no_grad():
        found = torch.compile(new, fullgraph=True, backend="eager")(ids, use_cache=False).logits
    assert torch.allclose(found, logits(new, ids), atol=2e-4)


@pytest.mark.parametrize("name", ["StableLm", "Gemma3"])
def test_two_forward_passes_before_a_checkpointed_backward(name):
    """Recomputing the first one's layers uses its own positions."""
    new, ids = retrofitted(tiny(name)).train(), tokens(2, WINDOW)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            new.gradient_checkpointing_enable()
        new.zero_grad()
        losses = [new(part, labels=part).loss for part in (ids, ids[:, 2:])]
        sum(losses).backward()
        gradients.append([parameter.grad.clone() for parameter in position_parameters(new)])
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*gradients, strict=True))


def test_layers_without_rotation_have_no_encoding():
    for name, count in (("Llama", 2), ("SmolLM3", 1), ("Cohere2", 1), ("Exaone4", 1)):
        assert len(encodings(retrofitted(tiny(name)))) == count


def test_weights_and_hidden_states_are_returned():
    new, ids = retrofitted(tiny("Gemma2")), tokens(1, 13)
    with torch.no_grad():
        out = new(ids, output_attentions=True, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    assert [tuple(weights.shape) for weights in out.attentions] == [(1, 4, 13, 13)] * 2
    assert not out.attentions[0][0, 0, WINDOW:, 0].any()


def test_what_an_implementation_lacks_is_refused_by_name():
    for name, what in (("Gemma2", "soft cap on logits"), ("GptOss", "attention sinks")):
        new = retrofitted(tiny(name))
        for implementation in ("longfire", "sdpa"):
            with pytest.raises(ValueError, match=rf"attn_implementation='{implementation}' has no {what}"):
                new.set_attn_implementation(implementation)
    uncapped = retrofitted(tiny("Gemma2", attn_logit_softcapping=None))
    assert uncapped.config._attn_implementation == "longfire"
    with pytest.raises(ValueError, match="is_causal=False is not supported"):
        retrofitted(tiny("Llama"))(tokens(1, 5), is_causal=False)


def test_a_layer_called_alone_is_refused():
    new = retrofitted(tiny("Llama"))
    rotation = torch.ones(1, 5, 8), torch.zeros(1, 5, 8)
    with pytest.raises(ValueError, match="LlamaAttention received no positions"):
        new.model.layers[0](torch.randn(1, 5, 32), position_embeddings=rotation)
