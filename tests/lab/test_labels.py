"""Labels as they are typed, and what files are called after them."""

import re

import pytest

from longfire.lab.comparison import Comparison
from longfire.lab.labels import check_label, file_name, read_label, recorded, with_encoding, written
from longfire.training import RECIPES


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("fire", "fire"),
        ("fire-s", "fire-s"),
        ("kerple_log", "kerple_log"),
        ("fire:horizon=64,hidden_layers=1", "fire-horizon-64-hidden_layers-1"),
        ("fire-s:init_L=3.5", "fire-s-init_L-3.5"),
        ('fire:activation="a/b\\c? é*|<>', "fire-activation-a-b-c-"),
    ],
)
def test_names_of_files_are_portable(label, name):
    assert file_name(label) == name
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name)


def test_smooth_beyond_can_be_typed_and_makes_another_run():
    """Training on a GPU interpolates by it. Unless it is typed, a run is the one it was before the option existed."""
    tiny = RECIPES["tiny"]
    finer = with_encoding(tiny, "fire:smooth_beyond=256")
    assert finer.config(100).build_encoding().smooth_beyond == 256
    assert finer.identity() != tiny.identity()
    assert "smooth_beyond" not in tiny.identity()["encoding_options"]
    with pytest.raises(ValueError, match="smooth_beyond must be at least 64, not 8"):
        with_encoding(tiny, "fire:smooth_beyond=8").check()


def test_a_start_is_of_the_training_and_not_of_the_encoding():
    """So FIRE as published and as we train it can stand side by side, and are the runs that recipes make."""
    small = RECIPES["small"]
    published = small.but(start=None, horizon=None)
    labels = ("fire", "fire:start=kerple_log,horizon=512")
    recipes = [recipe for _, _, recipe in Comparison(published, encodings=labels, seeds=(0,)).recipes()]
    assert [recipe.start for recipe in recipes] == [None, "kerple_log"]
    assert [recipe.identity() for recipe in recipes] == [published.identity(), small.identity()]
    for option in ("start", "init"):
        with pytest.raises(ValueError, match=f"alibi has no option '{option}'"):
            check_label(f"alibi:{option}=kerple_log")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("fire:init=kerple_log,horizon=512", "fire:start=kerple_log,horizon=512"),
        ("fire-s:horizon=512, init = random", "fire-s:horizon=512,start=None"),
        ("fire:start=random", "fire:start=None"),
        ("fire:init_L=3,init_c=0.5", "fire:init_L=3,init_c=0.5"),
        ("alibi", "alibi"),
    ],
)
def test_init_and_start_are_one_label(typed, kept):
    """In records and folders the older name, so that runs are found again by both."""
    (found,) = Comparison(RECIPES["small"].but(start=None, horizon=None), encodings=(typed,), seeds=(0,)).encodings
    assert recorded(typed) == recorded(kept) == found == kept
    assert file_name(typed) == file_name(kept)
    recipe = RECIPES["small"].but(start=None)
    assert with_encoding(recipe, typed) == with_encoding(recipe, kept)


def test_spaces_mean_nothing():
    spaced, plain = "fire:horizon=64, activation = gelu", "fire:horizon=64,activation=gelu"
    check_label(spaced)
    for of_label in (read_label, file_name, written):
        assert of_label(spaced) == of_label(plain)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("fire:", "'fire:' ends where an option should follow, such as fire:option=value"),
        ("fire:horizon=64, ", "ends where an option should follow"),
        ("fire:horizon=64,horizon=32", "gives 'horizon' twice"),
        ("fire:init=alibi,start=kerple_log", "gives both start and init"),
        ("fire:horizon", "options have values"),
        ("fire,alibi", "no encoding named 'fire,alibi'. Give each encoding by itself: fire or alibi"),
    ],
)
def test_what_is_half_typed(label, message):
    with pytest.raises(ValueError, match=message):
        check_label(label)
