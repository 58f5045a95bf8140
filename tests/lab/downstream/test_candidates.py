import json
import shutil

import pytest

from longfire.evaluation.seeds import are_seeds
from longfire.lab.downstream.candidates import load_candidates
from tests.training.toys import checkpoint


def test_labels_are_unique(place, tmp_path):
    checkpoint(tmp_path / "other", "fire", initializer_range=0.1)
    checkpoint(tmp_path / "near", {"name": "fire", "init_L": 8.0})
    given = [place / "fire", tmp_path / "other", f"{place / 'rope'}:rope_pi=64", f"{place / 'rope'}:rope_pi=128"]
    found = load_candidates([*given, place / "rope", tmp_path / "near"])
    assert [one.label for one in found] == [
        *(f"FIRE ({place / 'fire'})", f"FIRE ({tmp_path / 'other'})"),
        *("RoPE-PI 64", "RoPE-PI 128", "RoPE", "FIRE (init_L=8.0)"),
    ]
    assert len({one.key for one in found}) == 6


def test_labels_name_ablated_parts_of_fire(place, tmp_path):
    checkpoint(tmp_path / "log", {"name": "fire", "threshold": None})
    checkpoint(tmp_path / "neither", {"name": "fire", "log": False, "threshold": None})
    found = load_candidates([tmp_path / "neither", tmp_path / "log", place / "fire"])
    assert [one.label for one in found] == ["FIRE (log=False, threshold=None)", "FIRE (threshold=None)", "FIRE"]
    assert load_candidates([tmp_path / "log"])[0].label == "FIRE (threshold=None)"  # also on its own


def test_description_has_init_and_horizon(place, tmp_path):
    """From the run or the configuration; not for encodings without `init`, nor after further training."""
    checkpoint(tmp_path / "far", {"name": "fire", "init_L": 8.0, "horizon": 32})
    checkpoint(tmp_path / "own", {"name": "fire", "init_L": 8.0, "init": "kerple_log"})
    found = {"fire": {}, "rope": {}, "shared": {"init_from": "runs/one"}}
    for name, recipe in found.items():
        shutil.copytree(place / name, tmp_path / name / "model")
        (tmp_path / name / "done.json").write_text(json.dumps({"recipe": {"start": "kerple_log", **recipe}}))
    rows = [one.describe() for one in load_candidates([str(tmp_path / name) for name in (*found, "far", "own")])]
    assert [row["start"] for row in rows] == ["kerple_log", None, None, None, "kerple_log"]
    assert [row["horizon"] for row in rows] == [None, None, None, 32, None]
    assert rows[-1]["options"] == {"init_L": 8.0}  # like rows from before `init` was an option


def test_description_has_the_pretraining_corpus(place, tmp_path):
    folder = shutil.copytree(place / "fire", tmp_path / "fire")
    assert load_candidates([folder])[0].describe()["corpus"] is None
    (folder / "corpus.json").write_text('{"name": "books"}')
    assert load_candidates([folder])[0].describe()["corpus"] == "books"


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"seed": 1}, True),
        ({"seed": 0}, False),
        ({"seed": None}, False),
        ({"seed": 1, "options": {"init_L": 16.0, "horizon": 64}}, False),
        ({"seed": 1, "start": "alibi"}, False),
        ({"seed": 1, "trained_length": 128}, False),
        ({"seed": 1, "finetuned": {"seed": 1}}, True),
        ({"seed": 1, "finetuned": {"seed": 0, "steps": 10}}, False),
    ],
)
def test_seeds_differ_in_the_seed_only(place, changes, same):
    row = {**load_candidates([place / "fire"])[0].describe(), "options": {"init_L": 16.0}, "seed": 0}
    assert are_seeds([row, {**row, **changes}]) == same
