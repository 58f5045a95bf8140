"""What a comparison refuses before any text is read."""

from dataclasses import replace
from pathlib import Path

import pytest

from longfire.encodings.labels import label_title
from longfire.lab.comparison import Comparison
from longfire.lab.train_and_test import bias_queries
from longfire.training import RECIPES
from tests.lab.comparisons import RECIPE, comparison


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encodings": ("fier",)}, r"Did you mean 'fire'.*, fire-s\."),
        ({"encodings": ("fire:horizn=4",)}, "fire has no option 'horizn'.*horizon"),
        ({"encodings": ("fire:horizon",)}, "'horizon' has no value"),
        ({"encodings": ("fire", "fire")}, "fire: listed more than once"),
        ({"encodings": ("fire:init=kerple_log", "fire:start=kerple_log")}, "listed more than once"),
        ({"encodings": ()}, "at least one encoding and one seed"),
        ({"seeds": ()}, "at least one encoding and one seed"),
        ({"seeds": (1, 1)}, "seed 1: listed more than once"),
        ({"seeds": (-1,)}, "seed must be at least 0"),
        ({"lengths": (16, 0)}, "a test length must be at least 2, not 0"),
        ({"tokens": 0}, "tokens to test on must be at least 1, not 0"),
        ({"encodings": ("fire:horizon=far",)}, "fire:horizon=far: horizon must be a whole number, not 'far'"),
        ({"encodings": ("nope", "fire:horizon=-1")}, "fire:horizon=-1: horizon must be at least 1, not -1"),
        ({"encodings": ("yarn", "fire")}, "yarn extends the rope model: compare rope too"),
        ({"encodings": ("rope", "yarn:target_length=x")}, "target_length must be a whole number, not 'x'"),
        ({"encodings": ("rope", "yarn:target_length=8")}, "yarn:target_length=8: .*8"),
        (
            {"encodings": ("nope", "fire", "fire:horizon=16")},  # the recipe's own
            "fire and fire:horizon=16 are the same model in the recipe tiny: .* --set horizon=None init=None",
        ),
        ({"encodings": ("fire:hidden_layers=2", "fire")}, "fire:hidden_layers=2 and fire are the same model"),
        ({"encodings": ("fire:start=kerple_log", "fire")}, "fire:init=kerple_log and fire are the same model"),
        ({"recipe": RECIPE.but(random_positions=31)}, "positions below 31 are too few for 32 tokens"),
        (
            {"recipe": RECIPE.but(random_positions=32)},
            "learned: random_positions=32 exceeds the 16 positions of Learned",
        ),
    ],
)
def test_bad_comparisons(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        comparison({}, **changes)


def test_options_of_an_encoding_are_part_of_its_label():
    labels = ("fire", "fire:hidden_layers=1,threshold=None", "fire-s:activation=gelu,init_L=3.5")
    runs = comparison({}, recipe=RECIPE.but(init=None), encodings=labels).runs(Path("out"))
    assert [(run.recipe.share_position_encoding, run.recipe.encoding_options) for run in runs[1:]] == [
        (False, {"hidden_layers": 1, "threshold": None}),
        (True, {"activation": "gelu", "init_L": 3.5}),
    ]
    assert {run.recipe.encoding for run in runs} == {"fire"}
    assert label_title(labels[2]) == "FIRE-S (activation=gelu, init_L=3.5)"
    assert runs[2].folder == Path("out/runs/fire-s-activation-gelu-init_L-3.5-0")


def test_extensions_start_from_the_same_seeds_rope():
    runs = comparison({}, encodings=("yarn", "rope"), seeds=(3, 4)).runs(Path("out"))
    assert [(run.recipe.init_from, run.recipe.extend_to) for run in runs] == [
        ("out/runs/rope-3", 64),
        (None, None),
        ("out/runs/rope-4", 64),
        (None, None),
    ]
    (alone,) = comparison({}, encodings=("yarn:trained_length=16,target_length=32",)).runs()
    assert (alone.recipe.init_from, alone.is_extension) == (None, False)  # trained from scratch, as the label says


@pytest.mark.parametrize(
    ("recipe", "lengths", "queries"),
    [("base", (512, 2048, 8192), [128, 2048, 8192]), ("small", (), [128, 512, 8192]), ("tiny", (64, 96), [64, 96])],
)
def test_biases_of_the_papers_query_and_the_last_ones_are_recorded(recipe, lengths, queries):
    assert bias_queries(Comparison(RECIPES[recipe], lengths=lengths)) == queries


def test_other_texts_must_not_overlap_the_training_text(tmp_path):
    source = tmp_path / "books"
    source.mkdir()
    (source / "one.txt").touch()
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "books-2").mkdir()
    asked = comparison({"source": str(source)})
    for other, how in (
        (source, "is"),
        (tmp_path / "link", "is"),
        (source / "one.txt", "lies within"),
        (tmp_path, "contains"),
    ):
        with pytest.raises(ValueError, match=rf"--also own=.*: this {how} the training text"):
            replace(asked, also=(("own", str(other)),))
    with pytest.raises(ValueError, match="--also own=hub:c4: this is the training text"):
        comparison({"source": ["hub:c4"]}, also=(("own", "hub:c4"),))
    with pytest.raises(ValueError, match=r"--also gone=.*: there is no file or folder"):
        replace(asked, also=(("gone", str(tmp_path / "gone")),))
    replace(asked, also=(("other", str(tmp_path / "books-2")), ("c4", "hub:c4")))
