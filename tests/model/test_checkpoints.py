"""Saved and loaded: the same model, with the encoding it was trained with, or an error."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

from longfire import ENCODINGS
from longfire.model import LongfireConfig, LongfireForCausalLM, LongfireModel
from tests.model.models import NAMES, options_of, small_model, tokens
from tests.model.test_generation import logits


def saved(folder, name="fire", **changes):
    model = small_model(name, **changes)
    model.save_pretrained(folder)
    return model


def stored(folder):
    """The tensors in a checkpoint's file."""
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_is_the_one_that_was_saved(name, share, tmp_path):
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


def test_a_folder_holds_numbers_and_no_code(tmp_path):
    saved(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())  # so nothing asks for trust_remote_code


def test_code_in_a_folder_is_not_run(tmp_path):
    saved(tmp_path)
    trap = "raise SystemExit('code from a checkpoint was run')\n"
    for name in ("modeling_longfire.py", "configuration_longfire.py", "__init__.py"):
        (tmp_path / name).write_text(trap)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_longfire.LongfireConfig",
        "AutoModelForCausalLM": "modeling_longfire.LongfireForCausalLM",
    }
    path.write_text(json.dumps(config))
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is LongfireForCausalLM


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_encodings_are_exact_in_a_model_of_low_precision(name, dtype, tmp_path):
    """Parameters as they were trained and buffers as a new encoding has them, whatever the model was loaded in."""
    model, ids = saved(tmp_path, name), tokens(2, 33)
    loaded = LongfireForCausalLM.from_pretrained(tmp_path, dtype=dtype)
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
    """Nor are distances before the MLP, as in public ports, where far positions then fall together."""
    exact = saved(tmp_path, share_position_encoding=share).model.encodings[0]
    encoding = LongfireForCausalLM.from_pretrained(tmp_path, dtype=dtype).model.encodings[0]
    q, k = torch.tensor([4999, 5000]), torch.arange(4000, 5000)
    bias = encoding.bias(q, k)
    assert bias.dtype == torch.float32
    assert torch.equal(bias, exact.bias(q, k))
    assert (encoding.normalized_distance(q, k).diff(dim=-1) < 0).all()  # every key at a place of its own
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.bias(q, k), bias)


def test_in_low_precision_implementations_are_as_exact_as_eager(tmp_path):
    exact, ids = saved(tmp_path).double(), tokens(1, 300)
    truth = logits(exact, ids)

    def error(implementation):
        model = LongfireForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation=implementation)
        return (logits(model, ids).double() - truth).norm() / truth.norm()

    allowed = 2 * error("eager")
    assert 0 < allowed < 0.2
    assert error("longfire") <= allowed
    assert error("sdpa") <= allowed


def test_tied_embeddings_stay_tied_and_are_saved_once(tmp_path):
    model, ids = saved(tmp_path, tie_word_embeddings=True), tokens(2, 9)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert [key for key, tensor in stored(tmp_path).items() if tensor.shape[0] == 61] == ["model.embed_tokens.weight"]
    loaded = LongfireForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    saved(tmp_path / "untied")
    assert len([key for key, tensor in stored(tmp_path / "untied").items() if tensor.shape[0] == 61]) == 2
    untied = LongfireForCausalLM.from_pretrained(tmp_path / "untied")
    assert not torch.equal(untied.lm_head.weight, untied.model.embed_tokens.weight)


@pytest.mark.parametrize("share", [False, True])
def test_a_shared_encoding_is_saved_once(share, tmp_path):
    saved(tmp_path, share_position_encoding=share)
    keys = sorted(key for key in stored(tmp_path) if key.endswith("position_encoding.c"))
    each = [f"model.layers.{i}.attention.position_encoding.c" for i in (0, 1)]
    assert keys == (["model.position_encoding.c"] if share else each)


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
    """Also where neither has parameters, so that everything would load."""
    saved(tmp_path, name)
    for kind in (LongfireForCausalLM, AutoModelForCausalLM, AutoModel):
        with pytest.raises(ValueError, match=f"trained with .*'{name}'.* and .*'{other}'.* was asked for"):
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
def test_options_that_do_not_fit_are_refused(options, tmp_path):
    saved(tmp_path, position_encoding={"name": "fire", "init_c": 0.25})
    with pytest.raises(ValueError, match="was trained with") as refused:
        LongfireForCausalLM.from_pretrained(tmp_path, position_encoding={"name": "fire", **options})
    assert str({"name": "fire", **options}) in str(refused.value)
    assert "trained with position_encoding={'init_c': 0.25, 'name': 'fire'}" in str(refused.value)


def test_what_a_fire_began_as_does_not_matter_to_its_weights(tmp_path):
    """A checkpoint from before `init` loads, with and without asking for one, and comes back the same."""
    model = saved(tmp_path / "old", position_encoding={"name": "fire", "init_L": 4.0})
    assert "init" not in json.loads((tmp_path / "old" / "config.json").read_text())["position_encoding"]
    asked = {"name": "fire", "init_L": 4.0, "init": "kerple_log"}
    for options in ({}, {"position_encoding": asked}):
        loaded = LongfireForCausalLM.from_pretrained(tmp_path / "old", **options)
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
    loaded.save_pretrained(tmp_path / "new")
    again = LongfireForCausalLM.from_pretrained(tmp_path / "new", position_encoding=model.config.position_encoding)
    assert torch.equal(again.model.encodings[0].c, model.model.encodings[0].c)


@pytest.mark.filterwarnings("default:horizon=2 is below init_L=4")
def test_a_checkpoint_with_a_horizon_below_its_threshold_loads_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="horizon=2 is below init_L=4"):
        model = saved(tmp_path, position_encoding={"name": "fire", "init_L": 4.0, "horizon": 2})
    with pytest.warns(UserWarning, match="horizon=2 is below init_L=4"):
        loaded = LongfireForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(0, model.config.vocab_size, (1, 9))
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_a_trained_fire_may_be_given_another_smooth_beyond(tmp_path):
    """It says how the model is computed; on a CPU nothing changes. It is saved with the model."""
    model, ids = saved(tmp_path / "plain"), tokens(1, 9)
    asked = {**model.config.position_encoding, "smooth_beyond": 512}
    LongfireForCausalLM.from_pretrained(tmp_path / "plain", position_encoding=asked).save_pretrained(tmp_path / "given")
    given = LongfireForCausalLM.from_pretrained(tmp_path / "given").eval()
    assert {encoding.smooth_beyond for encoding in given.model.encodings} == {512}
    assert torch.equal(logits(given, ids), logits(model, ids))


def test_a_trained_fire_may_be_given_a_horizon(tmp_path):
    """And be rid of it. Up to there nothing changes, to the bit; beyond it does. It is saved with the model."""
    model = saved(tmp_path / "plain", position_encoding={"name": "fire", "init_L": 4.0})
    far = {"name": "fire", "init_L": 4.0, "horizon": 16}
    given = LongfireForCausalLM.from_pretrained(tmp_path / "plain", position_encoding=far).eval()
    given.save_pretrained(tmp_path / "given")
    again = LongfireForCausalLM.from_pretrained(tmp_path / "given").eval()
    rid = LongfireForCausalLM.from_pretrained(tmp_path / "given", position_encoding=model.config.position_encoding)
    tokens = torch.randint(0, model.config.vocab_size, (2, 40))
    logits, changed = model(tokens).logits, given(tokens).logits
    assert torch.equal(logits[:, :16], changed[:, :16])
    assert (logits[:, 16:] != changed[:, 16:]).any(-1).all()
    assert torch.equal(again(tokens).logits, changed)
    assert torch.equal(rid.eval()(tokens).logits, logits)
    with pytest.raises(ValueError, match="was trained with"):
        LongfireForCausalLM.from_pretrained(tmp_path / "plain", position_encoding={**far, "log": False})


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["fire", "alibi"])
def test_other_sharing_is_refused(name, share, tmp_path):
    saved(tmp_path, name, share_position_encoding=share)
    with pytest.raises(ValueError, match=f"do not fit .*={not share}: .* saved with: .*={share}"):
        LongfireForCausalLM.from_pretrained(tmp_path, share_position_encoding=not share)


def test_a_refusal_is_not_made_by_ignoring_shapes(tmp_path):
    """Which is for heads and vocabularies: an encoding that was not trained is another one."""
    saved(tmp_path)
    with pytest.raises(ValueError, match="was trained with"):
        LongfireForCausalLM.from_pretrained(
            tmp_path, position_encoding={"name": "fire", "mlp_width": 16}, ignore_mismatched_sizes=True
        )


def test_other_shapes_of_the_rest_are_refused_unless_asked_for(tmp_path):
    saved(tmp_path)
    with pytest.raises(ValueError, match=r"lm_head.weight \(61, 32\) there, \(70, 32\) here.* ignore_mismatched_sizes"):
        LongfireForCausalLM.from_pretrained(tmp_path, vocab_size=70)
    model = LongfireForCausalLM.from_pretrained(tmp_path, vocab_size=70, ignore_mismatched_sizes=True)
    assert model.lm_head.weight.shape == (70, 32)
    assert torch.isfinite(logits(model, tokens(1, 9))).all()


@pytest.mark.parametrize("other", ["rope_pi", "yarn"])
def test_rope_can_be_stretched_after_training(other, tmp_path):
    model, ids = saved(tmp_path, "rope"), tokens(1, 33)
    assert issubclass(ENCODINGS[other], ENCODINGS["rope"])
    stretched = LongfireForCausalLM.from_pretrained(tmp_path, position_encoding=options_of(other))
    assert isinstance(stretched.model.encodings[0], ENCODINGS[other])
    assert not torch.allclose(logits(stretched, ids), logits(model, ids), atol=1e-3)


@pytest.mark.parametrize("damage", ["truncated", "another format", "empty"])
def test_a_damaged_file_is_an_error(damage, tmp_path):
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "another format": b"x" * len(whole), "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"the weights in .* are damaged \(.*header.*\)\. Copy the checkpoint again"):
        LongfireForCausalLM.from_pretrained(tmp_path)


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = small_model()
    with torch.no_grad():
        model.model.encodings[1].c.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"FIRE.c is not finite .* Load an earlier checkpoint"):
        LongfireForCausalLM.from_pretrained(tmp_path)(tokens(1, 9))


def step(model, ids):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    model.zero_grad()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["fire", "kerple_power", "t5", "learned"])
def test_training_goes_on_where_it_stopped_bit_for_bit(name, share, tmp_path):
    changes = {"share_position_encoding": share, "tie_word_embeddings": True}
    first, second = tokens(2, 17), tokens(2, 17, seed=2)
    model = small_model(name, **changes)
    start = torch.nn.utils.parameters_to_vector(model.parameters())
    step(model, first)
    model.save_pretrained(tmp_path)
    step(model, second)
    resumed = LongfireForCausalLM.from_pretrained(tmp_path)
    step(resumed, second)
    expected = model.state_dict()
    assert resumed.state_dict().keys() == expected.keys()
    for key, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, expected[key]), key
    assert (torch.nn.utils.parameters_to_vector(resumed.parameters()) != start).float().mean() > 0.8
