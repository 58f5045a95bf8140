"""Tables with tasks: what their records are known by."""

from pathlib import Path

import pytest

from benchmarks.score_operators import seed_rows
from longfire.lab.scales import SCALES
from longfire.lab.tables import ENTRIES
from longfire.model import SIZES


def test_claims_find_what_fire_is_without_in_the_ablation_on_glue():
    """With three seeds of each."""
    entry = ENTRIES["glue-ablation"]
    comparison = entry.comparison(SCALES["small"], ())
    checkpoints = entry.checkpoints(comparison, Path("small"), 512)
    recipes = {str(comparison.folder(Path("small"), label, seed)): of for label, seed, of in comparison.recipes()}
    rows = [
        {**known_by(recipes[one]), "label": "FIRE", "seed": i % 3, "checkpoint": one, "scores": [score(i)]}
        for i, one in enumerate(checkpoints)
    ]
    assert [one.rpartition("-")[2] for one in checkpoints] == ["0", "1", "2"] * 3
    for i, label in enumerate(entry.encodings):
        assert seed_rows({"rows": rows}, label) == [rows[3 * i : 3 * i + 3]]


def known_by(recipe):
    """As a record has it of a model by this recipe."""
    options = recipe.position_encoding()
    return {"encoding": options.pop("name"), "options": options}


def score(number):
    return {"task": "rte", "length": 512, "score": 50.0 + number}


def test_seeds_of_rope_are_stretched_each():
    comparison = ENTRIES["narrative-qa"].comparison(SCALES["small"], (), encodings=("rope",), seeds=(0, 3))
    found = ENTRIES["narrative-qa"].checkpoints(comparison, Path("small"), 2048)
    folders = [str(comparison.folder(Path("small"), "rope", seed)) for seed in (0, 3)]
    assert found == [
        *folders,
        *(f"{folder}:rope_pi={target}" for target in (2048, 8192) for folder in folders),
    ]


def test_large_models_are_large():
    for name in ("scrolls-large", "glue-large"):
        assert ENTRIES[name].comparison(SCALES["paper"], ()).recipe.size == "large"


@pytest.mark.parametrize("scale", ["small", "smoke"])
def test_what_stands_for_large_models_and_other_lengths_is_larger_and_shorter(scale):
    base, large, short = (
        ENTRIES[f"perplexity-{name}"].comparison(SCALES[scale], ()).recipe for name in ("base", "large", "512")
    )
    assert len({base.name, large.name, short.name}) == 3  # each in a folder of its own
    assert (large.length, large.batch) == (base.length, base.batch)
    assert SIZES[large.size]["hidden_size"] > SIZES[base.size]["hidden_size"]
    assert 4 * short.length == base.length
