"""Tables with tasks: what their records are known by."""

from pathlib import Path

from longfire.lab.scales import SCALES
from longfire.lab.tables import ENTRIES
from longfire.report.claims.rows import rows_of


def test_claims_find_what_fire_is_without_in_the_ablation_on_glue():
    entry = ENTRIES["glue-ablation"]
    checkpoints = entry.checkpoints(entry.comparison(SCALES["small"], ()), Path("small"), 512)
    rows = [{"encoding": "fire", "label": "FIRE", "checkpoint": one, "scores": []} for one in checkpoints]
    for label, row in zip(entry.encodings, rows, strict=True):
        assert rows_of({"rows": rows}, label) == [[row]]


def test_large_models_are_large():
    for name in ("scrolls-large", "glue-large"):
        assert ENTRIES[name].comparison(SCALES["paper"], ()).recipe.size == "large"
        base = ENTRIES[name.removesuffix("-large")]
        assert ENTRIES[name].comparison(SCALES["small"], ()).recipe == base.comparison(SCALES["small"], ()).recipe
