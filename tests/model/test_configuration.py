"""Configurations: sizes, encodings, and refusals."""

import json

import pytest
import torch
from transformers import AutoConfig

from longfire import ENCODINGS, __version__, build_encoding
from longfire.model import SIZES, LongfireConfig, LongfireForCausalLM
from tests.model.models import NAMES, options_of, small_config, small_model, tokens


def number_of_parameters(config):
    with torch.device("meta"):  # no memory, no time
        return LongfireForCausalLM(config).num_parameters()


def expected_number(config):
    V, C, H, layers = config.vocab_size, config.hidden_size, config.num_attention_heads, config.num_hidden_layers
    attention = C * 3 * C + 3 * C + C * C + C
    mlp = C * 4 * C + 4 * C + 4 * C * C + C
    norm = 2 * C
    fire = (1 * 32 + 32) + (32 * 32 + 32) + (32 * H + H) + 2  # two hidden layers of 32; c and L
    return V * C + layers * (attention + mlp + 2 * norm + fire) + norm  # tied: none for the head


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_the_papers_numbers_of_parameters(size):
    config = LongfireConfig.of_size(size)
    found = number_of_parameters(config)
    assert found == expected_number(config)
    assert found == pytest.approx({"base": 125e6, "large": 350e6}.get(size, found), rel=0.02)


def test_shapes_of_the_sizes():
    def shape(size):
        config = LongfireConfig.of_size(size)
        return config.num_hidden_layers, config.num_attention_heads, config.head_dim

    assert [shape(size) for size in ("small", "base", "large")] == [(6, 8, 64), (12, 12, 64), (24, 16, 64)]
    assert LongfireConfig.of_size("small", hidden_size=256).head_dim == 32
    assert number_of_parameters(LongfireConfig.of_size("small", vocab_size=8192)) == pytest.approx(23e6, rel=0.02)
    with pytest.raises(ValueError, match=r"no size named 'bse'. Did you mean 'base'\?"):
        LongfireConfig.of_size("bse")


def test_the_default_is_the_base_model_with_the_papers_fire():
    config = LongfireConfig()
    assert config.to_dict() == LongfireConfig.of_size("base").to_dict()
    assert (config.position_encoding, config.max_position_embeddings) == ({"name": "fire"}, 2048)
    assert (config.tie_word_embeddings, config.share_position_encoding) == (True, False)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_any_encoding_by_name(name, share):
    model = small_model(name, share_position_encoding=share)
    count = 1 if share or ENCODINGS[name].scope == "model" else 2
    assert [type(encoding) for encoding in model.model.encodings] == [ENCODINGS[name]] * count
    assert len({id(encoding) for encoding in model.model.encodings}) == count
    assert LongfireConfig.of_size("demo", position_encoding="alibi").position_encoding == {"name": "alibi"}


def test_options_reach_the_encoding():
    options = {"name": "fire", "mlp_width": 5, "hidden_layers": 1, "threshold": "fixed", "init_L": 7.0, "init_c": 0.5}
    for encoding in small_model(position_encoding=options).model.encodings:
        assert encoding.mlp[0].out_features == 5
        assert (encoding.L.item(), encoding.c.item()) == (7.0, 0.5)
        assert "L_multiplier" not in dict(encoding.named_parameters())
    slopes = {"name": "alibi", "slopes": [4.0, 3.0, 2.0, 1.0]}
    (shared,) = small_model(position_encoding=slopes, share_position_encoding=True).model.encodings
    assert shared.slopes.tolist() == [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize("implementation", ["longfire", "sdpa", "eager"])
@pytest.mark.parametrize("share", [False, True])
def test_an_encoding_is_called_once_per_forward_pass(implementation, share):
    """So a forward hook sees the bias, and its return value is what is added."""
    model, ids, calls = small_model(implementation=implementation, share_position_encoding=share), tokens(2, 9), []
    before = model(ids).logits
    for encoding in model.model.encodings:
        encoding.register_forward_hook(lambda module, given, bias: calls.append(module) or 3 * bias)
    assert not torch.allclose(model(ids).logits, before)
    assert calls == model.model.encodings


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"position_encoding": {"name": "fier"}}, ["no encoding named 'fier'", "Did you mean 'fire'"]),
        ({"position_encoding": {"name": "fire", "mlp_wdith": 8}}, ["no option 'mlp_wdith'", "mean 'mlp_width'"]),
        ({"position_encoding": {"name": "fire", "width": 8}}, ["'width' is the model's hidden_size", "'mlp_width'"]),
        ({"position_encoding": {"name": "fire", "init": "kerple"}}, ["init cannot be 'kerple'"]),
        ({"position_encoding": {"name": "learned", "max_length": 8}}, ["the model's max_position_embeddings"]),
        ({"position_encoding": {"name": "nope", "base": 8}}, ["'nope' has no option 'base'"]),
        ({"position_encoding": {"name": "yarn"}}, ["'yarn' needs trained_length and target_length"]),
        ({"position_encoding": {"init_L": 8.0}}, ["needs a name, such as {'name': 'fire'}"]),
        ({"position_encoding": {"name": "fire", "init_L": -1.0}}, ["init_L must be above 0"]),
        ({"position_encoding": "fier"}, ["Did you mean 'fire'"]),
        ({"hidden_size": 100}, ["hidden_size=100 must be a multiple"]),
        ({"num_attention_heads": 0}, ["num_attention_heads must be at least 1"]),
        ({"sliding_window": 0}, ["sliding_window must be at least 1, not 0"]),
        ({"sliding_window": 2.5}, ["sliding_window"]),
    ],
)
def test_impossible_configurations_are_refused_at_once(changes, messages):
    with pytest.raises(Exception, match="alidation error") as refused:  # transformers' own kind of error
        LongfireConfig(**changes)
    for message in messages:
        assert message in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_configurations_survive_json(name, tmp_path):
    config = small_config(name, share_position_encoding=True, eos_token_id=[0, 5], resid_dropout=0.25, sliding_window=9)
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "longfire"
    assert written["position_encoding"] == options_of(name)
    for loaded in (LongfireConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is LongfireConfig
        assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()


def test_options_and_version_survive_json(tmp_path):
    options = {"name": "fire", "threshold": None, "log": False, "activation": "gelu", "eps": 1e-5}
    LongfireConfig(position_encoding=options, longfire_version="0.0.0").save_pretrained(tmp_path)
    loaded = LongfireConfig.from_pretrained(tmp_path)
    assert loaded.position_encoding == options
    encoding = loaded.build_encoding()
    assert (encoding.threshold, encoding.log, encoding.eps) == (None, False, 1e-5)
    assert loaded.longfire_version == __version__  # the version that saved it


def test_a_configuration_copies_its_options():
    options = {"name": "fire"}
    config = LongfireConfig(position_encoding=options)
    options["name"] = "nonsense"
    config.build_encoding()
    assert LongfireConfig().position_encoding is not LongfireConfig().position_encoding


@pytest.mark.parametrize("name", NAMES)
def test_the_training_length_limits_only_learned_positions(name):
    model, ids = small_model(name, max_position_embeddings=16), tokens(1, 48)
    if name == "learned":
        assert torch.isfinite(model(ids[:, :16]).logits).all()
        with pytest.raises(ValueError, match=r"learned positions end at 15 \(max_length=16\), .* 47"):
            model(ids)
    else:
        longer = small_model(name, max_position_embeddings=64)
        with torch.no_grad():
            assert torch.equal(model(ids).logits, longer(ids).logits)


def test_fires_init_reaches_every_layer():
    encoding = {"name": "fire", "init_L": 16.0, "init": "kerple_log"}
    model = LongfireForCausalLM(LongfireConfig.of_size("demo", vocab_size=64, position_encoding=encoding))
    built = build_encoding("fire", num_heads=4, init_L=16.0, init="kerple_log")
    positions = torch.arange(16)
    kerple = -torch.tensor([0.25, 0.75, 1.25, 1.75])[:, None] * torch.log1p(15.0 - positions)
    for fire in (*model.model.encodings, built):
        torch.testing.assert_close(fire.bias(positions[-1:], positions)[:, 0], kerple, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        ("num_hidden_layer", TypeError, "Did you mean 'num_hidden_layers'"),
        ("share_position_encodings", TypeError, "Did you mean 'share_position_encoding'"),
        ("window", ValueError, "window=8 is not supported: pass sliding_window"),
        ("layer_types", ValueError, "layer_types=8 is not supported: pass sliding_window"),
        ("rope_theta", ValueError, "rope_theta=8 is not supported: pass position_encoding"),
        ("rope_scaling", ValueError, "rope_scaling=8 is not supported: pass position_encoding"),
        ("training_length", ValueError, "training_length=8 is not supported: pass max_position_embeddings"),
        ("max_length", ValueError, "max_length=8 is not supported: pass max_position_embeddings"),
        ("dropout", ValueError, "dropout=8 is not supported: pass attention_dropout and resid_dropout"),
        ("hidden_dropout", ValueError, "hidden_dropout=8 is not supported: pass attention_dropout and resid_dropout"),
        ("head_dim", ValueError, "head_dim=8 is not supported: it is hidden_size"),
        ("attention_window", ValueError, "attention_window=8 is not supported: pass sliding_window"),
        ("intermediate_size", ValueError, "intermediate_size=8 is not supported: it is 4"),
        ("hidden_act", ValueError, "hidden_act=8 is not supported: it is GELU"),
        ("horizon", TypeError, "option of fire: pass position_encoding={'name': 'fire', 'horizon': 8}"),
        ("init", TypeError, "option of fire: pass position_encoding={'name': 'fire', 'init': 8}"),
        ("bidirectional", TypeError, "'bidirectional' is an option of fire and t5: pass position_encoding"),
        ("causal", TypeError, "Did you mean 'is_causal'"),
        ("encoding", TypeError, "Did you mean 'position_encoding'"),
        ("n_layers", TypeError, "Did you mean 'num_hidden_layers'"),
        ("num_layers", TypeError, "Did you mean 'num_hidden_layers'"),
        ("num_kv_heads", TypeError, "Did you mean 'num_key_value_heads'"),
        ("temperature", TypeError, "there is no field 'temperature'"),
        ("foo", TypeError, "there is no field 'foo'. Known: vocab_size, "),
    ],
)
def test_fields_that_would_be_ignored_are_refused(field, error, message):
    for build in (
        LongfireConfig,
        lambda **fields: LongfireConfig.of_size("demo", **fields),
        lambda **fields: AutoConfig.for_model("longfire", **fields),
    ):
        with pytest.raises(error, match=message):
            build(**{field: 8})
        build(**{field: None})


def test_what_transformers_and_other_tools_save_is_loaded(tmp_path):
    """Tools set attributes, which transformers saves. A misspelt field in a file is refused."""
    config = LongfireConfig.of_size("demo", sep_token_id=3, layer_types=None, num_labels=3, torch_dtype="bfloat16")
    config.architectures, config.auto_map, config.of_a_tool = ["LongfireForCausalLM"], {"AutoConfig": "a.B"}, {"x": 1}
    config.quantization_config, config.transformers_version = {"quant_method": "awq"}, "5.14.0"
    assert LongfireConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    for cls in (LongfireConfig, AutoConfig):
        loaded = cls.from_pretrained(tmp_path)
        assert (loaded.of_a_tool, loaded.sep_token_id, loaded.num_labels) == ({"x": 1}, 3, 3)
        assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert cls.from_pretrained(tmp_path, of_a_tool="other").of_a_tool == "other"
    file = tmp_path / "config.json"
    written = json.loads(file.read_text())
    for wrong in ("num_hidden_layer", "window", "horizon", "head_dim"):
        file.write_text(json.dumps({**written, wrong: 8}))
        with pytest.raises(
            (TypeError, ValueError), match=f"{wrong}.*(not supported|Did you mean|is an option of fire)"
        ):
            LongfireConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("targets", ["labels", "shift_labels"])
def test_labels_must_match_the_tokens(targets):
    model = small_model()
    with pytest.raises(ValueError, match=r"labels must be \(2, 9\), like the tokens, not \(2, 8\)"):
        model(tokens(2, 9), **{targets: tokens(2, 8)})
