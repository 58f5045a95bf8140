"""Building encodings by name."""

import pytest

from longfire import ENCODINGS, build_encoding
from longfire.encodings import NoPE, register

SHAPE = {"num_heads": 4, "head_dim": 16, "width": 64, "max_length": 128}


def test_names():
    assert set(ENCODINGS) >= {
        "fire", "nope", "sinusoidal", "learned", "rope", "rope_pi", "yarn", "alibi", "kerple_log", "kerple_power", "t5",
        "sandwich",
    }  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_takes_only_what_it_needs(name):
    cls = ENCODINGS[name]
    needed = {key: SHAPE[key] for key in cls.takes}
    assert type(build_encoding(name, **needed, **cls.example)) is cls


def test_width_is_the_models_and_mlp_width_fires():
    fire = build_encoding("fire", **SHAPE)
    assert fire.linears[0].out_features == 32
    assert build_encoding("fire", **SHAPE, mlp_width=7).linears[0].out_features == 7


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fier", {}, "no encoding named 'fier'. Did you mean 'fire'"),
        ("FIRE", {}, "Did you mean 'fire'"),
        ("xyz", {}, "Known: .*kerple_log"),
        ("fire-s", {}, "no encoding named 'fire-s'. .* 'fire' with the model's share_position_encoding"),
        ("fire", {"hidden_layer": 1}, "'fire' has no option 'hidden_layer'. Did you mean 'hidden_layers'"),
        ("fire", {"foo": 3}, r"'fire' has no option 'foo'. Known: hidden_layers, .*, eps, horizon, smooth_beyond\.$"),
        ("fire", {"init_l": 3.0}, "Did you mean 'init_L'"),
        ("nope", {"base": 3}, "'nope' has no option 'base'. It has none"),
        ("t5", {"buckets": 3}, "Did you mean 'num_buckets'"),
        ("rope_pi", {}, "trained_length"),
    ],
)
def test_wrong_names(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_encoding(name, **SHAPE, **options)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("learned", "max_length"),
        ("learned", "width"),
        ("sinusoidal", "width"),
        ("rope", "head_dim"),
        ("sandwich", "head_dim"),
        ("fire", "num_heads"),
    ],
)
def test_missing_arguments(name, missing):
    shape = {key: value for key, value in SHAPE.items() if key != missing}
    with pytest.raises(ValueError, match=rf"'{name}' needs {missing}: build_encoding\('{name}', …, {missing}=…\)"):
        build_encoding(name, **shape)


def test_bad_shapes():
    with pytest.raises(ValueError, match="num_heads must be at least 1, not 0"):
        build_encoding("fire", **{**SHAPE, "num_heads": 0})
    with pytest.raises(ValueError, match="head_dim must be at least 1, not 0"):
        build_encoding("fire", **{**SHAPE, "head_dim": 0})
    with pytest.raises(TypeError, match=r"head_dim must be a whole number, not 8\.0"):
        build_encoding("rope", **{**SHAPE, "head_dim": 8.0})


def test_one_name_one_encoding():
    with pytest.raises(ValueError, match="'fire' is already taken by FIRE"):
        register("fire")(type("Other", (NoPE,), {}))
