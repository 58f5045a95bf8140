"""RoPE extended past its training length, and a model's number of positions."""

import pytest
import torch

import longfire.model
from longfire.model import LongfireForCausalLM, extend
from longfire.model.inspection import check_length, max_positions
from tests.model.models import NAMES, options_of, small_config, small_model, tokens
from tests.model.test_generation import logits

ROPE = {"name": "rope", "base": 500.0}


@pytest.fixture(scope="module")
def rope():
    return small_model("rope", position_encoding=ROPE)


def built(name, model, **options):
    """A model built with the encoding, with another model's weights."""
    made = LongfireForCausalLM(small_config(name, position_encoding={**ROPE, "name": name, **options}))
    made.load_state_dict(model.state_dict())
    return made.eval()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("from_folder", [False, True])
@pytest.mark.parametrize("name", ["rope_pi", "yarn"])
def test_same_weights_other_frequencies(name, from_folder, share, tmp_path):
    rope, ids = small_model("rope", position_encoding=ROPE, share_position_encoding=share), tokens(2, 200)
    rope.save_pretrained(tmp_path / "rope" / "model")
    model = extend(tmp_path / "rope" if from_folder else rope, name, 512)  # also from a run's folder
    lengths = {"trained_length": 128, "target_length": 512}
    assert model.config.position_encoding == {**ROPE, "name": name, **lengths}
    assert rope.config.position_encoding == ROPE
    found = logits(model, ids)
    assert torch.equal(found, logits(built(name, rope, **lengths), ids))
    assert not torch.allclose(found, logits(rope, ids), atol=1e-2)
    assert {encoding.base for encoding in model.model.encodings} == {500.0}
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), rope.parameters(), strict=True))
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert rope.lm_head.weight.abs().sum() > 0  # a copy


@pytest.mark.parametrize("name", ["rope_pi", "yarn"])
def test_saved_and_loaded(name, rope, tmp_path):
    model, ids = extend(rope, name, 256, trained_length=64), tokens(2, 100)
    model.save_pretrained(tmp_path)
    loaded = LongfireForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.position_encoding == {**ROPE, "name": name, "trained_length": 64, "target_length": 256}
    assert torch.equal(logits(loaded, ids), logits(model, ids))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rope"])
def test_only_rope_can_be_extended(name):
    reason = "already extended" if name in ("rope_pi", "yarn") else "only RoPE"
    with pytest.raises(ValueError, match=f"'{name}' cannot become 'yarn': .*{reason}"):
        extend(small_model(name), "yarn", 4096)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fire", 512), "cannot be 'fire'.*Known: rope_pi, yarn"),
        (("rope", 512), "cannot be 'rope'"),
        (("yarn", 128), "above the trained length of 128, not 128"),
        (("rope_pi", 256, 300), "above the trained length of 300, not 256"),
        (("yarn", 512, 0), "trained_length must be at least 1"),
    ],
)
def test_bad_extensions(arguments, message, rope):
    with pytest.raises(ValueError, match=message):
        extend(rope, *arguments)


@pytest.mark.parametrize("name", NAMES)
def test_number_of_positions(name):
    model = small_model(name, position_encoding=options_of(name))
    assert max_positions(model) == (128 if name == "learned" else None)
    check_length(model, 128 if name == "learned" else 10**6)
    if name == "learned":
        with pytest.raises(ValueError, match=r"128 positions, .* 129 tokens.*'learned'"):
            check_length(model, 129)


def test_old_names_warn():
    for name, new in (("furthest", max_positions), ("refuse_beyond", check_length)):
        with pytest.warns(FutureWarning, match=f"longfire.model.{name} is now .*{new.__name__}"):
            assert getattr(longfire.model, name) is new
    with pytest.raises(AttributeError, match="nonsense"):
        _ = longfire.model.nonsense
