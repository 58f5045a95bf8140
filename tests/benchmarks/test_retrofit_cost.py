"""The cost of a retrofit, at the smallest sizes."""

import pytest

from benchmarks.retrofit_cost import FRACTIONS, MULTIPLES, Cost, table

SMALL = {"size": "demo", "length": 16, "steps": 100, "batch_size": 2}


@pytest.fixture
def corpus(tmp_path):
    """Twenty documents of 3,000 bytes."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"Document {number}: " + "all work and no play. " * 140)
    return {"source": str(folder), "tokenizer": "bytes", "cache_dir": str(tmp_path / "cache")}


def small(tmp_path, corpus, **changes):
    return Cost(tmp_path / "runs", "tiny", corpus, (0,), changes={**SMALL, **changes}, tokens=256)


def test_after_each_fraction(tmp_path, corpus):
    cost = small(tmp_path, corpus)
    cost.pretrain(0)
    rows = cost.retrofit(0, "alibi", False)
    assert [row["encoding"] for row in rows] == ["original", *["alibi"] * len(FRACTIONS)]
    assert [row["fraction"] for row in rows] == [0.0, *FRACTIONS]
    assert [row["tokens"] for row in rows] == [0, *(fraction * 100 * 2 * 16 for fraction in FRACTIONS)]
    assert all(list(row["log_perplexity"]) == [16 * multiple for multiple in MULTIPLES] for row in rows)
    assert rows[1]["log_perplexity"] != rows[0]["log_perplexity"]
    losses = [row["log_perplexity"][16] for row in rows[1:]]
    assert losses[-1] < losses[0]
    shown = table({"rows": rows})
    assert [line[2] for line in shown.rows] == ["0%", "0%", "1%", "3%", "10%", "30%"]


def test_variants(tmp_path, corpus):
    found = list(small(tmp_path, corpus).variants())
    assert found[:2] == [(0, "fire:init=kerple_log,horizon=16", False), (0, "fire:init=kerple_log,horizon=16", True)]
    assert found[-1] == (0, "yarn:target_length=256", False)
    assert len(found) == 2 * 4 + 3


def test_too_few_steps(tmp_path, corpus):
    with pytest.raises(ValueError, match="1 % of 20 steps is not one step"):
        small(tmp_path, corpus, steps=20).retrofit(0, "alibi", False)
