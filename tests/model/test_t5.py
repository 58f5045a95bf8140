"""Retrofitted T5, mT5 and UMT5: the same logits with their own bias, and as FIRE."""

import copy
import json
import pickle

import pytest
import torch
import transformers as hf

from longfire import FIRE, T5, attention_plan, position_parameters
from longfire.model import retrofit
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.inspection import encoding_name, find_encodings
from longfire.model.retrofits.architectures import CLASSES, HEADS
from tests.model.models import tokens

NAMES = ("T5", "MT5", "UMT5")
LENGTH = 48
SHAPE = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 12,  # H · d_kv is not d_model
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
}


def tiny(name, part="ForConditionalGeneration", **changes):
    """In evaluation mode, with weights large enough that every layer and bias matters.

    In eager mode: with sdpa, the decoder of UMT5 sees later tokens in older versions of transformers.
    """
    torch.manual_seed(0)
    cls = getattr(hf, name + part)
    model = cls._from_config(cls.config_class(**{**SHAPE, **changes}), attn_implementation="eager")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 if "relative" in key else 0.3)
    return model.eval()


def inputs(T=37, padded=7):
    """A batch whose second row is shorter, and decoder inputs."""
    ids, mask = tokens(2, T), torch.ones(2, T, dtype=torch.long)
    mask[1, T - padded :] = 0
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": tokens(2, 23, seed=2)}


@torch.no_grad()
def logits(model, **batch):
    return model(**batch).logits


def difference(one, other):
    return (one - other).abs().max().item()


@pytest.mark.parametrize("encoding", [None, "fire"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_logits(name, encoding):
    model, batch = tiny(name), inputs()
    new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
    expected = logits(model, **batch)
    without = copy.deepcopy(model)
    for key, parameter in without.named_parameters():
        if "relative" in key:
            parameter.data.zero_()
    assert difference(logits(without, **batch), expected) > 0.1  # the bias matters
    for implementation in IMPLEMENTATIONS:
        new.set_attn_implementation(implementation)
        assert difference(logits(new, **batch), expected) <= 1e-4 * expected.abs().max()
    assert all(isinstance(one, T5 if encoding is None else FIRE) for one in find_encodings(new))
    assert len(find_encodings(new)) == (4 if name == "UMT5" else 2)
    assert all(one.bidirectional for one in find_encodings(new.encoder))
    assert not any(one.bidirectional for one in find_encodings(new.decoder))


@pytest.mark.parametrize("encoding", [None, "fire"])
@pytest.mark.parametrize("name", NAMES)
def test_every_class_saved_and_loaded(name, encoding, tmp_path):
    for cls in (cls for cls in CLASSES if cls.config_class is getattr(hf, f"{name}Config")):
        model = tiny(name, cls.__name__.removeprefix(name), eos_token_id=1)
        new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
        folder = tmp_path / cls.__name__
        new.save_pretrained(folder)
        auto = next((HEADS[part] for part in HEADS if cls.__name__.endswith(part)), hf.AutoModel)
        loaded = auto.from_pretrained(folder)
        assert type(loaded) is type(new)
        assert pickle.loads(pickle.dumps(type(new))) is type(new)
        batch = inputs()
        batch["input_ids"][:, 3] = 1
        if cls.__name__.endswith(("EncoderModel", "ForTokenClassification")):
            del batch["decoder_input_ids"]
        if cls.__name__.endswith("ForSequenceClassification"):
            batch["decoder_input_ids"] = batch["input_ids"]
        with torch.no_grad():
            expected, *found = (m(**batch)[0] for m in (model, new, loaded))
        assert difference(found[0], expected) <= 1e-4 * expected.abs().max()
        assert torch.allclose(*found, atol=1e-5)
        for plain in (cls, cls.config_class):
            with pytest.raises(Exception, match=f"longfire_{name.lower()}, see base_config"):
                plain.from_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == f"longfire_{name.lower()}"


def test_the_table_is_at_the_same_place_and_in_the_same_memory():
    model = tiny("T5")
    new = retrofit(model)
    own = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    table = new.decoder.block[0].layer[0].SelfAttention.position_encoding.table
    assert table.data_ptr() == own.data_ptr()
    assert encoding_name(new) == "t5"
    own.requires_grad_(False)
    model.shared.weight.requires_grad_(False)
    frozen = [key for key, parameter in retrofit(model).named_parameters() if not parameter.requires_grad]
    assert frozen == ["shared.weight", "decoder.block.0.layer.0.SelfAttention.position_encoding.table"]
    assert new.lm_head.weight is new.shared.weight is new.encoder.embed_tokens.weight


def test_the_original_does_not_change():
    model, batch = tiny("T5", tie_word_embeddings=False), inputs()  # v1.1: outputs are not scaled
    before, config = logits(model, **batch), model.config.to_dict()
    keys = list(model.state_dict())
    new = retrofit(model, "fire", training_length=LENGTH)
    assert (model.config.to_dict(), list(model.state_dict()), type(model)) == (
        config,
        keys,
        hf.T5ForConditionalGeneration,
    )
    assert torch.equal(logits(model, **batch), before)
    assert difference(logits(new, **batch), before) <= 1e-4 * before.abs().max()


@pytest.mark.parametrize("encoding", [None, "fire"])
@pytest.mark.parametrize("name", NAMES)
def test_generates_the_same(name, encoding):
    model, batch = tiny(name), inputs()
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.ndim > 1):
            parameter.mul_(2)  # or it repeats one token
    new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
    del batch["decoder_input_ids"]
    for options in ({}, {"num_beams": 3}):
        options |= {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
        expected = model.generate(**batch, **options)
        assert expected.unique().numel() > 4
        for implementation in ("longfire", "sdpa"):
            new.set_attn_implementation(implementation)
            for cache in ({}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
                assert torch.equal(new.generate(**batch, **options, **cache), expected)


@pytest.mark.parametrize("encoding", [None, "fire"])
def test_a_cache_continues(encoding):
    model, batch = tiny("T5"), inputs()
    new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
    expected, dec = logits(model, **batch), batch.pop("decoder_input_ids")
    cache, parts = None, []
    for start, end in ((0, 9), (9, 10), (10, 23)):
        with torch.no_grad():
            out = new(**batch, decoder_input_ids=dec[:, start:end], past_key_values=cache, use_cache=True)
        cache, parts = out.past_key_values, [*parts, out.logits]
    assert difference(torch.cat(parts, 1), expected) <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("encoding", [None, "fire"])
def test_masks(encoding, implementation):
    """Left padding and holes, in encoder and decoder; masks by query where an implementation can honour them."""
    model, batch = tiny("T5"), inputs()
    new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
    new.set_attn_implementation(implementation)
    dec = torch.ones(2, 23, dtype=torch.long)
    dec[0, :4] = 0
    dec[1, 7:10] = 0
    for hidden in (slice(0, 5), slice(11, 17)):
        batch["attention_mask"] = torch.ones(2, 37)
        batch["attention_mask"][1, hidden] = 0
        given = {**batch, "decoder_attention_mask": dec}
        found, expected = logits(new, **given), logits(model, **given)
        assert difference(found[dec.bool()], expected[dec.bool()]) <= 1e-4 * expected.abs().max()
    by_query = torch.rand(2, 1, 37, 37) < 0.5
    by_query |= torch.eye(37, dtype=torch.bool)
    if implementation == "longfire":
        with pytest.raises(ValueError, match=r"takes an attention mask of shape \(B, tokens so far\).*'sdpa'"):
            new.encoder(batch["input_ids"], by_query)
        with pytest.raises(ValueError, match="takes an attention mask of shape"):
            new(encoder_outputs=(torch.randn(2, 37, 32),), attention_mask=by_query, decoder_input_ids=dec)
    else:
        with torch.no_grad():
            additive = torch.zeros(by_query.shape).masked_fill(~by_query, torch.finfo(torch.float32).min)
            expected = model.encoder(batch["input_ids"], additive).last_hidden_state
            found = new.encoder(batch["input_ids"], by_query).last_hidden_state
            assert difference(found, expected) <= 1e-4 * expected.abs().max()
            states, queries = (torch.randn(2, 37, 32),), by_query[:, :, :23]
            given = {
                "encoder_outputs": states,
                "attention_mask": queries,
                "decoder_input_ids": batch["decoder_input_ids"],
            }
            expected = logits(model, **given | {"attention_mask": additive[:, :, :23]})
            assert difference(logits(new, **given), expected) <= 1e-4 * expected.abs().max()
            with pytest.raises(ValueError, match=r"must be boolean or floating point, \(B, 1, 1 or 23, 37\)"):
                new(**given | {"attention_mask": by_query})


def test_a_longer_decoder_than_encoder_and_given_embeddings():
    model = tiny("UMT5")
    new = retrofit(model)
    batch = {"inputs_embeds": torch.randn(2, 5, 32), "decoder_inputs_embeds": torch.randn(2, 30, 32)}
    expected = logits(model, **batch)
    assert difference(logits(new, **batch), expected) <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("encoding", [None, "fire"])
@pytest.mark.parametrize("name", NAMES)
def test_trains_with_and_without_gradient_checkpointing(name, encoding):
    """The gradients are the base model's, to the table as well; of FIRE, the heights of the steps learn."""
    model, batch = tiny(name, dropout_rate=0.0), inputs()
    batch["labels"] = batch["decoder_input_ids"]
    new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
    model(**batch).loss.backward()
    expected = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    for checkpointing in (False, True):
        model.zero_grad()  # shares memory, not gradients
        new.zero_grad()
        if checkpointing:
            new.train().gradient_checkpointing_enable()
        new(**batch).loss.backward()
        for key, parameter in new.named_parameters():
            if "position_encoding" not in key:
                assert torch.allclose(parameter.grad, expected[key], atol=1e-4, rtol=1e-3)
            elif encoding is None:
                own = expected[key.replace("position_encoding.table", "relative_attention_bias.weight")]
                assert own.abs().max() > 1e-3
                assert torch.allclose(parameter.grad, own, atol=1e-4, rtol=1e-3)
            else:
                assert parameter.requires_grad == ("mlp.0" not in key)
                if key.endswith("mlp.2.weight"):
                    assert parameter.grad.abs().max() > 1e-3
    with pytest.raises(ValueError, match="use_reentrant=False"):
        new.gradient_checkpointing_enable({"use_reentrant": True})


def test_dropout_of_attention_is_kept():
    new, batch = retrofit(tiny("T5", dropout_rate=0.5)), inputs()
    for module in new.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(logits(new, **batch), logits(new, **batch))
    new.train()
    assert not torch.equal(logits(new, **batch), logits(new, **batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype, tmp_path):
    model, batch = tiny("T5"), inputs()
    exact = logits(model, **batch)
    model.to(dtype)
    new = retrofit(model)
    assert {parameter.dtype for parameter in position_parameters(new)} == {torch.float32}
    errors = [(logits(m, **batch).float() - exact).norm() for m in (new, model)]
    assert errors[0] <= 1.5 * errors[1]
    new.save_pretrained(tmp_path)
    loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
    for mine, other in zip(position_parameters(loaded), position_parameters(new), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("encoding", ["kerple_log", "alibi", "sandwich", "t5", "nope"])
def test_other_encodings(encoding, tmp_path):
    options = {"num_buckets": 8} if encoding == "t5" else {}
    new, batch = retrofit(tiny("T5"), encoding, training_length=LENGTH, **options), inputs()
    found = [logits(new, **batch)]
    new.save_pretrained(tmp_path)
    new.set_attn_implementation("eager")
    found.append(logits(new, **batch))
    assert torch.allclose(*found, atol=2e-4)
    assert torch.allclose(logits(hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path), **batch), found[0], atol=1e-5)


def test_weights_and_hidden_states_are_the_originals():
    model, batch = tiny("T5"), inputs()
    new = retrofit(model)
    with pytest.raises(ValueError, match="cannot return attention weights"):
        new(**batch, output_attentions=True)
    new.set_attn_implementation("eager")
    with torch.no_grad():
        expected, found = (m(**batch, output_attentions=True, output_hidden_states=True) for m in (model, new))
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions", "decoder_hidden_states"):
        assert len(found[kind]) == len(expected[kind]) >= 2
        assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(found[kind], expected[kind], strict=True))


@pytest.mark.parametrize("implementation", ["longfire", "sdpa"])
def test_compiled(implementation):
    new, batch = retrofit(tiny("T5", num_layers=1)), inputs()
    new.set_attn_implementation(implementation)
    torch.compiler.reset()
    with torch.no_grad():
        found = torch.compile(new, fullgraph=True, backend="eager")(**batch, use_cache=False).logits
    assert torch.allclose(found, logits(new, **batch), atol=2e-4)


def test_a_compiled_step_with_a_static_cache():
    new, batch = retrofit(tiny("T5", num_layers=1)), inputs()
    expected, dec = logits(new, **batch), batch.pop("decoder_input_ids")
    with torch.no_grad():
        batch["encoder_outputs"] = new.encoder(batch.pop("input_ids"), batch["attention_mask"])
    sizes = (32, 37)
    cache = hf.EncoderDecoderCache(*(hf.StaticCache(new.config, max_cache_len=size) for size in sizes))
    batch |= {"past_key_values": cache, "use_cache": True}
    found = [logits(new, **batch, decoder_input_ids=dec[:, :21])]
    torch.compiler.reset()
    step = torch.compile(new, fullgraph=True, backend="eager")
    found += [logits(step, **batch, decoder_input_ids=dec[:, i : i + 1]) for i in (21, 22)]
    assert torch.allclose(torch.cat(found, 1), expected, atol=2e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": "fire"}, "needs training_length"),
        ({"training_length": 0}, "at least 1"),
        (
            {"training_length": 64},
            r"=64 has no effect: t5 keeps .* write retrofit\(model, 'fire', training_length=64\)",
        ),
        ({"num_buckets": 8}, "takes no num_buckets for t5"),
        ({"encoding": "fire", "training_length": 64, "init": "kerple_log"}, "takes no init for t5"),
        ({"encoding": "kerple_log", "training_length": 64, "bidirectional": True}, "sets bidirectional itself"),
        ({"encoding": "rope", "training_length": 64}, "needs an encoding with a bias, or 'nope'"),
    ],
)
def test_unsupported_options_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        retrofit(tiny("T5"), **arguments)


def test_unsupported_calls_are_refused():
    with pytest.raises(TypeError, match="Only a T5 model"):
        retrofit(hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1)))
    with pytest.raises(TypeError, match="already has an encoding"):
        retrofit(retrofit(tiny("T5")))
    with pytest.raises(TypeError, match="Load the checkpoint as T5Model or"):
        retrofit(tiny("T5").encoder)
    new, ids = retrofit(tiny("T5")), tokens(2, 9)
    for wrong, message in (
        ({"position_ids": torch.arange(9)[None]}, "takes no position_ids: T5 numbers"),
        ({"is_causal": True}, "is_causal=True is not supported"),
        ({"inputs_embeds": torch.randn(2, 9, 32)}, "either input_ids or inputs_embeds"),
        ({"attention_mask": torch.full((2, 9), 2)}, "1 for tokens and 0 for padding"),
    ):
        with pytest.raises(ValueError, match=message):
            new.encoder(ids, **wrong)
    for call, arguments in ((new, {"input_ids": ids, "decoder_input_ids": ids}), (new.encoder, {"input_ids": ids})):
        for name, message in (("attn_mask", "Did you mean 'attention_mask'"), ("misspelt", "Known: input_ids")):
            with pytest.raises(TypeError, match=rf"Fire.* takes no {name}\. {message}"):
                call(**arguments, **{name: 1})
    with pytest.raises(ValueError, match="T5Attention received no positions"):
        new.encoder.block[0](torch.randn(1, 5, 32))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_is_fused_and_as_accurate_as_eager(name):
    model, batch = tiny(name, d_kv=64).cuda(), {key: value.cuda() for key, value in inputs(700, 90).items()}
    exact = logits(copy.deepcopy(model).double(), **batch)
    new = retrofit(model.bfloat16())
    q = torch.empty(1, 4, 700, 64, device="cuda", dtype=torch.bfloat16)
    for part, causal in ((new.encoder, False), (new.decoder, True)):
        encoding = find_encodings(part)[0]
        assert attention_plan(q, q, q, encoding, causal=causal, scale=1.0).engine == "fused"
    fused = logits(new, **batch)
    errors = [(found - exact).norm() / exact.norm() for found in (fused, logits(model, **batch))]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_trains_as_on_a_cpu(name):
    new, batch = retrofit(tiny(name)), inputs()
    batch["labels"] = batch["decoder_input_ids"]
    found = []
    for device in ("cpu", "cuda"):
        new.to(device).zero_grad()
        new(**{key: value.to(device) for key, value in batch.items()}).loss.backward()
        found.append([parameter.grad.cpu().clone() for parameter in new.parameters()])
    for here, there in zip(*found, strict=True):
        assert (here - there).norm() <= 1e-2 * here.norm() + 1e-6


@pytest.mark.gpu
def test_on_a_gpu_it_generates_the_same():
    model, batch = tiny("T5").cuda(), {key: value.cuda() for key, value in inputs().items()}
    del batch["decoder_input_ids"]
    options = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    expected = model.generate(**batch, **options)
    for encoding in (None, "fire"):
        new = retrofit(model, encoding, training_length=LENGTH if encoding else None)
        for more in ({}, {"num_beams": 3}):
            same = expected if not more else model.generate(**batch, **options, **more)
            assert torch.equal(new.generate(**batch, **options, **more), same)
