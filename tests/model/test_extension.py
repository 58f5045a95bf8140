"""RoPE stretched beyond its training length, and how far positions go."""

import pytest
import torch

from longfire.model import LongfireForCausalLM, extend
from longfire.model.inspection import check_length, max_positions
from tests.model.models import NAMES, options_of, small_config, small_model, tokens
from tests.model.test_generation import logits

ROPE = {"name": "rope", "base": 500.0}


@pytest.fixture(scope="module")
def rope():
    return small_model("rope", position_encoding=ROPE)


def built(name, model, **options):
    """A model made with the encoding, and given the weights."""
    config = small_config(name, position_encoding={**ROPE, "name": name, **options})
    made = LongfireForCausalLM(config)
    made.load_state_dict(model.state_dict())
    return made.eval()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("from_folder", [False, True])
@pytest.mark.parametrize("name", ["rope_pi", "yarn"])
def test_the_same_weights_with_other_frequencies(name, from_folder, share, tmp_path):
    rope, ids = small_model("rope", position_encoding=ROPE, share_position_encoding=share), tokens(2, 200)
    rope.save_pretrained(tmp_path / "rope" / "model")
    model = extend(tmp_path / "rope" if from_folder else rope, name, 512)  # a run's folder will do
    lengths = {"trained_length": 128, "target_length": 512}
    assert model.config.position_encoding == {**ROPE, "name": name, **lengths}
    assert rope.config.position_encoding == ROPE
    found = logits(model, ids)
    assert torch.equal(found, logits(built(name, rope, **lengths), ids))
    assert not torch.allclose(found, logits(rope, ids), atol=1e-2)
    assert {encoding.base for encoding in model.model.encodings} == {500.0}
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), rope.parameters(), strict=True))


@pytest.mark.parametrize("name", ["rope_pi", "yarn"])
def test_saved_and_loaded(name, rope, tmp_path):
    model, ids = extend(rope, name, 256, trained_length=64), tokens(2, 100)
    model.save_pretrained(tmp_path)
    loaded = LongfireForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.position_encoding == {**ROPE, "name": name, "trained_length": 64, "target_length": 256}
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_interpolation_puts_positions_between_the_trained_ones(rope):
    """Every fourth position of PI at four times the length is turned as RoPE's own."""
    encoding, own = extend(rope, "rope_pi", 512).model.encodings[0], rope.model.encodings[0]
    x = torch.randn(1, 4, 128, 8)
    assert torch.allclose(encoding.rotate(x, torch.arange(128) * 4), own.rotate(x, torch.arange(128)), atol=1e-5)


def test_the_model_that_was_extended_stays_as_it_is(rope):
    model = extend(rope, "yarn", 512)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert rope.lm_head.weight.abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rope"])
def test_nothing_else_can_be_extended(name):
    """What has learned parameters cannot become another; what has none was not trained with angles."""
    why = "been extended already" if name in ("rope_pi", "yarn") else "only RoPE's angles can be stretched"
    with pytest.raises(ValueError, match=f"a checkpoint with '{name}' cannot become 'yarn': .*{why}"):
        extend(small_model(name), "yarn", 4096)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fire", 512), "the encoding to extend to cannot be 'fire'.*Known: rope_pi, yarn"),
        (("rope", 512), "cannot be 'rope'"),
        (("yarn", 128), "must be above the trained length.*128 is not above 128"),
        (("rope_pi", 256, 300), "256 is not above 300"),
        (("yarn", 512, 0), "the trained length must be at least 1"),
    ],
)
def test_bad_extensions(arguments, message, rope):
    with pytest.raises(ValueError, match=message):
        extend(rope, *arguments)


@pytest.mark.parametrize("name", NAMES)
def test_how_far_positions_go(name):
    model = small_model(name, position_encoding=options_of(name))
    assert max_positions(model) == (128 if name == "learned" else None)
    check_length(model, 128)
    if name == "learned":
        with pytest.raises(ValueError, match=r"has 128 positions, and sequences of 129 .*'learned'.* at most 128"):
            check_length(model, 129)
    else:
        check_length(model, 10**6)
