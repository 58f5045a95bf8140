"""A saved model loads with the encoding it was trained with, or not at all."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

from longfire import ENCODINGS
from longfire.model import LongfireConfig, LongfireForCausalLM, LongfireModel
from tests.model.models import NAMES, options_of, small_model, tokens
from tests.model.test_generation import logits

load = LongfireForCausalLM.from_pretrained


def saved(folder, name="fire", **changes):
    model = small_model(name, **changes)
    model.save_pretrained(folder)
    return model


def stored(folder):
    """The tensors in a checkpoint's file."""
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, share, tmp_path):
    model, ids = saved(tmp_path, name, share_position_encoding=share), tokens(2, 33)
    expected = logits(model, ids)
    for kind in (LongfireForCausalLM, AutoModelForCausalLM):
        loaded, info = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert type(loaded) is LongfireForCausalLM
        assert not loaded.training
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert loaded.config.position_encoding == options_of(name)
        assert torch.equal(logits(loaded, ids), expected)


def test_the_decoder_alone(tmp_path):
    model, ids = saved(tmp_path / "whole"), tokens(2, 9)
    model.model.save_pretrained(tmp_path / "decoder")
    for folder in ("whole", "decoder"):
        for kind in (AutoModel, LongfireModel):
            loaded = kind.from_pretrained(tmp_path / folder)
            assert type(loaded) is LongfireModel
            with torch.no_grad():
                assert torch.equal(loaded(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_code_in_a_folder_is_neither_saved_nor_run(tmp_path):
    saved(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert "auto_map" not in config  # so nothing needs trust_remote_code
    for name in ("modeling_longfire.py", "configuration_longfire.py", "__init__.py"):
        (tmp_path / name).write_text("raise SystemExit('code from a checkpoint was run')\n")
    config["auto_map"] = {
        "AutoConfig": "configuration_longfire.LongfireConfig",
        "AutoModelForCausalLM": "modeling_longfire.LongfireForCausalLM",
    }
    path.write_text(json.dumps(config))
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is LongfireForCausalLM


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_encodings_stay_exact_in_low_precision_models(name, dtype, tmp_path):
    """Parameters equal the trained ones; buffers equal a new encoding's."""
    model, ids = saved(tmp_path, name), tokens(2, 33)
    loaded = load(tmp_path, dtype=dtype)
    assert loaded.lm_head.weight.dtype == dtype
    fresh = LongfireConfig.from_pretrained(tmp_path).build_encoding()
    for encoding, original in zip(loaded.model.encodings, model.model.encodings, strict=True):
        assert {buffer.dtype for buffer in encoding.buffers()} <= {torch.float32, torch.int64}
        for (key, buffer), new in zip(encoding.named_buffers(), fresh.buffers(), strict=True):
            assert torch.equal(buffer.to(new.dtype), new), key
        for (key, parameter), trained in zip(encoding.named_parameters(), original.parameters(), strict=True):
            assert torch.equal(parameter, trained), key
            assert parameter.dtype == torch.float32
    cast = logits(model.to(dtype), ids)
    assert cast.dtype == dtype
    assert torch.equal(logits(loaded, ids), cast)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [False, True])
def test_the_bias_is_not_cast_to_half_precision(dtype, share, tmp_path):
    """Nor are the distances; in public ports, distant positions coincide."""
    exact = saved(tmp_path, share_position_encoding=share).model.encodings[0]
    encoding = load(tmp_path, dtype=dtype).model.encodings[0]
    q, k = torch.tensor([4999, 5000]), torch.arange(4000, 5000)
    bias = encoding.bias(q, k)
    assert bias.dtype == torch.float32
    assert torch.equal(bias, exact.bias(q, k))
    assert (encoding.normalized_distance(q, k).diff(dim=-1) < 0).all()  # all distinct
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.bias(q, k), bias)


def test_in_low_precision_implementations_are_as_accurate_as_eager(tmp_path):
    exact, ids = saved(tmp_path).double(), tokens(1, 300)
    truth = logits(exact, ids)

    def error(implementation):
        model = load(tmp_path, dtype=torch.bfloat16, attn_implementation=implementation)
        return (logits(model, ids).double() - truth).norm() / truth.norm()

    allowed = 2 * error("eager")
    assert 0 < allowed < 0.2
    assert error("longfire") <= allowed
    assert error("sdpa") <= allowed


def test_tied_embeddings_stay_tied_and_are_saved_once(tmp_path):
    model, ids = saved(tmp_path, tie_word_embeddings=True), tokens(2, 9)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert [key for key, tensor in stored(tmp_path).items() if tensor.shape[0] == 61] == ["model.embed_tokens.weight"]
    loaded = load(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    saved(tmp_path / "untied")
    assert len([key for key, tensor in stored(tmp_path / "untied").items() if tensor.shape[0] == 61]) == 2
    untied = load(tmp_path / "untied")
    assert not torch.equal(untied.lm_head.weight, untied.model.embed_tokens.weight)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["fire", "alibi"])
def test_a_shared_encoding_is_saved_once_and_stays_shared(name, share, tmp_path):
    saved(tmp_path, name, share_position_encoding=share)
    if name == "fire":
        keys = sorted(key for key in stored(tmp_path) if key.endswith("position_encoding.c"))
        each = [f"model.layers.{i}.attention.position_encoding.c" for i in (0, 1)]
        assert keys == (["model.position_encoding.c"] if share else each)
    with pytest.raises(ValueError, match=f"do not fit .*={not share}: .* configuration: .*={share}"):
        load(tmp_path, share_position_encoding=not share)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("rope", "alibi"),
        ("rope", "nope"),
        ("nope", "rope"),
        ("alibi", "nope"),
        ("yarn", "rope"),
        ("fire", "kerple_log"),
        ("kerple_log", "kerple_power"),
        ("sinusoidal", "learned"),
    ],
)
def test_another_encoding_is_refused(name, other, tmp_path):
    """Even if neither has parameters, so that everything would load."""
    saved(tmp_path, name)
    for kind in (LongfireForCausalLM, AutoModelForCausalLM, AutoModel):
        with pytest.raises(ValueError, match=f"trained with .*'{name}'.* but .*'{other}'.* was requested"):
            kind.from_pretrained(tmp_path, position_encoding=options_of(other))


OTHER_OPTIONS = [
    {"hidden_layers": 1},
    {"mlp_width": 16},
    {"log": False},
    {"threshold": None},
    {"threshold": "fixed"},
    {"activation": "gelu"},
    {"first_position": 0},
    {"init_L": 64.0},
]


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
def test_other_options_are_refused(options, tmp_path):
    """Also with ignore_mismatched_sizes, which is for heads and vocabularies."""
    saved(tmp_path, position_encoding={"name": "fire", "init_c": 0.25})
    for ignored in (False, True):
        with pytest.raises(ValueError, match="was trained with") as refused:
            load(tmp_path, position_encoding={"name": "fire", **options}, ignore_mismatched_sizes=ignored)
    assert str({"name": "fire", **options}) in str(refused.value)
    assert "trained with position_encoding={'init_c': 0.25, 'name': 'fire'}" in str(refused.value)


def test_fires_init_may_change_after_training(tmp_path):
    """A checkpoint from before the option `init` loads with and without it, with the same weights."""
    model = saved(tmp_path / "old", position_encoding={"name": "fire", "init_L": 4.0})
    assert "init" not in json.loads((tmp_path / "old" / "config.json").read_text())["position_encoding"]
    requested = {"name": "fire", "init_L": 4.0, "init": "kerple_log"}
    for options in ({}, {"position_encoding": requested}):
        loaded = load(tmp_path / "old", **options)
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
    loaded.save_pretrained(tmp_path / "new")
    again = load(tmp_path / "new", position_encoding=model.config.position_encoding)
    assert torch.equal(again.model.encodings[0].c, model.model.encodings[0].c)


def test_fires_smooth_beyond_may_change_after_training(tmp_path):
    """On a CPU nothing changes. It is saved with the model."""
    model, ids = saved(tmp_path / "plain"), tokens(1, 9)
    requested = {**model.config.position_encoding, "smooth_beyond": 512}
    load(tmp_path / "plain", position_encoding=requested).save_pretrained(tmp_path / "given")
    given = load(tmp_path / "given").eval()
    assert {encoding.smooth_beyond for encoding in given.model.encodings} == {512}
    assert torch.equal(logits(given, ids), logits(model, ids))


def test_fires_horizon_may_change_after_training(tmp_path):
    """Bitwise equal up to the horizon, different beyond it. It is saved with the model."""
    model, ids = saved(tmp_path / "plain", position_encoding={"name": "fire", "init_L": 4.0}), tokens(2, 40)
    far = {"name": "fire", "init_L": 4.0, "horizon": 16}
    given = load(tmp_path / "plain", position_encoding=far)
    given.save_pretrained(tmp_path / "given")
    plain, changed = logits(model, ids), logits(given, ids)
    assert torch.equal(plain[:, :16], changed[:, :16])
    assert (plain[:, 16:] != changed[:, 16:]).any(-1).all()
    assert torch.equal(logits(load(tmp_path / "given"), ids), changed)
    removed = load(tmp_path / "given", position_encoding=model.config.position_encoding)
    assert torch.equal(logits(removed, ids), plain)
    with pytest.raises(ValueError, match="was trained with"):
        load(tmp_path / "plain", position_encoding={**far, "log": False})


@pytest.mark.filterwarnings("default:horizon=2 is below init_L=4")
def test_a_checkpoint_with_a_horizon_below_its_threshold_loads_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="horizon=2 is below init_L=4"):
        model = saved(tmp_path, position_encoding={"name": "fire", "init_L": 4.0, "horizon": 2})
    with pytest.warns(UserWarning, match="horizon=2 is below init_L=4"):
        loaded = load(tmp_path)
    assert torch.equal(logits(loaded, tokens(1, 9)), logits(model, tokens(1, 9)))


def test_mismatched_shapes_are_refused_by_default(tmp_path):
    saved(tmp_path)
    with pytest.raises(ValueError, match=r"lm_head.weight \(61, 32\) .*\(70, 32\).* ignore_mismatched_sizes"):
        load(tmp_path, vocab_size=70)
    model = load(tmp_path, vocab_size=70, ignore_mismatched_sizes=True)
    assert model.lm_head.weight.shape == (70, 32)
    assert torch.isfinite(logits(model, tokens(1, 9))).all()


@pytest.mark.parametrize("other", ["rope_pi", "yarn"])
def test_rope_can_be_extended_after_training(other, tmp_path):
    model, ids = saved(tmp_path, "rope"), tokens(1, 33)
    extended = load(tmp_path, position_encoding=options_of(other))
    assert isinstance(extended.model.encodings[0], ENCODINGS[other])
    assert not torch.allclose(logits(extended, ids), logits(model, ids), atol=1e-3)


@pytest.mark.parametrize("damage", ["truncated", "another format", "empty"])
def test_damaged_weights_are_an_error(damage, tmp_path):
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "another format": b"x" * len(whole), "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"weights in .* are damaged \(.*header.*\)"):
        load(tmp_path)


def test_parameters_that_are_not_finite_are_named(tmp_path):
    model = small_model()
    with torch.no_grad():
        model.model.encodings[1].c.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"FIRE.c is not finite .* Load an earlier checkpoint"):
        load(tmp_path)(tokens(1, 9))


def step(model, ids):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    model.zero_grad()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["fire", "kerple_power", "t5", "learned"])
def test_training_resumes_bit_for_bit(name, share, tmp_path):
    first, second = tokens(2, 17), tokens(2, 17, seed=2)
    model = small_model(name, share_position_encoding=share, tie_word_embeddings=True)
    start = torch.nn.utils.parameters_to_vector(model.parameters())
    step(model, first)
    model.save_pretrained(tmp_path)
    step(model, second)
    resumed = load(tmp_path)
    step(resumed, second)
    expected = model.state_dict()
    assert resumed.state_dict().keys() == expected.keys()
    for key, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, expected[key]), key
    assert (torch.nn.utils.parameters_to_vector(resumed.parameters()) != start).float().mean() > 0.8


@pytest.mark.parametrize("options", [{}, {"log": False, "threshold": None}, {"init": "kerple_log"}], ids=str)
def test_an_encoding_in_a_model_has_its_own_initial_weights(options):
    encoding = small_model(position_encoding={"name": "fire", **options}).model.encodings[0]
    first = encoding.linears[0].weight / 3  # small_model enlarges them
    assert 0.4 < first.std() < 0.8  # uniform in (−1, 1), not transformers' normal distribution
