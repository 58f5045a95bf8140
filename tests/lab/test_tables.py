"""The paper's tables as data: entries match what the paper reports, and scales keep its proportions."""

from pathlib import Path

import pytest

from benchmarks.score_operators import seed_rows
from longfire.encodings import ENCODINGS
from longfire.encodings.labels import parse_label
from longfire.lab.reported import reported
from longfire.lab.scales import SCALES
from longfire.lab.tables import ENTRIES, LengthEntry, TaskEntry
from longfire.model import SIZES


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if isinstance(entry, LengthEntry)])
def test_an_entry_trains_what_the_paper_reports(name):
    entry = ENTRIES[name]
    if entry.reported:
        assert [row["encoding"] for row in reported(entry.reported)] == list(entry.encodings)
    if isinstance(entry, TaskEntry):
        theirs = [row["encoding"] for row in reported(entry.task) if row["size"] == entry.recipe]
        parts = [one for one in theirs if one == "fire" or one.startswith("fire:")]
        whole = [one for one in theirs if ":" not in one and one != "rope_pi"]  # which extends RoPE's model
        assert sorted(entry.encodings) == sorted(parts if name == "glue-ablation" else whole)
    assert {parse_label(label)[0] for label in entry.encodings} <= ENCODINGS.keys()


def test_the_papers_scale_is_the_papers():
    paper = SCALES["paper"]
    asked = ENTRIES["perplexity-base"].comparison(paper, {"source": "hub:c4"})
    recipe = asked.recipe
    assert asked.tested_lengths() == [512, 1024, 2048, 4096, 8192]
    assert (recipe.length, recipe.steps, recipe.batch_size, recipe.init) == (2048, 600_000, 256, None)
    assert [name for name, _ in asked.also] == ["arxiv", "github"]
    assert paper.validation == "hub:c4@validation"
    assert not ENTRIES["sharing"].comparison(paper, {}).also
    assert ENTRIES["perplexity-512"].comparison(paper, {}).recipe.length == 512
    for name in ("perplexity-large", "scrolls-large", "glue-large"):
        assert ENTRIES[name].comparison(paper, {}).recipe.size == "large"
    assert ENTRIES["glue"].experiment(paper, "hub").select == "validation"
    assert ENTRIES["glue"].experiment(SCALES["small"], "data").select == "dev"
    assert ENTRIES["narrative-qa"].lengths(8192) == (512, 2048, 4096, 8192, 16384, 24576, 32768)


@pytest.mark.parametrize("scale", ["small", "smoke"])
def test_other_scales_keep_the_papers_proportions(scale):
    base, large, short = (
        ENTRIES[f"perplexity-{name}"].comparison(SCALES[scale], {}).recipe for name in ("base", "large", "512")
    )
    assert len({base.name, large.name, short.name}) == 3  # each in its own folder
    assert (large.length, large.batch_size) == (base.length, base.batch_size)
    assert SIZES[large.size]["hidden_size"] > SIZES[base.size]["hidden_size"]
    assert 4 * short.length == base.length


def test_every_seed_of_rope_is_stretched():
    entry = ENTRIES["narrative-qa"]
    comparison = entry.comparison(SCALES["small"], {}, encodings=("rope",), seeds=(0, 3))
    folders = ["small/runs/rope-0", "small/runs/rope-3"]
    stretched = [f"{folder}:rope_pi={target}" for target in (2048, 8192) for folder in folders]
    assert entry.checkpoints(comparison, Path("small"), 2048) == [*folders, *stretched]


def test_claims_find_the_rows_of_the_ablation_on_glue():
    """Three seeds of each variant of FIRE."""
    entry = ENTRIES["glue-ablation"]
    comparison = entry.comparison(SCALES["small"], {})
    encodings = {str(run.folder): run.recipe.position_encoding() for run in comparison.runs(Path("small"))}
    rows = []
    for i, checkpoint in enumerate(entry.checkpoints(comparison, Path("small"), 512)):
        options = dict(encodings[checkpoint])
        known_by = {"encoding": options.pop("name"), "options": options, "label": "FIRE", "checkpoint": checkpoint}
        assert checkpoint.endswith(f"-{i % 3}")
        rows.append({**known_by, "seed": i % 3, "scores": [{"task": "rte", "length": 512, "score": 50.0 + i}]})
    for i, label in enumerate(entry.encodings):
        assert seed_rows({"rows": rows}, label) == [rows[3 * i : 3 * i + 3]]
