"""Planning a comparison: refusals before training, and notes on the text."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from longfire.lab.comparison_plan import load_other_text, plan_comparison
from tests.lab.comparisons import RECIPE, comparison


def test_a_plan_travels_without_its_tokens(corpus, tmp_path):
    """Workers map the same files and do not recompute identities."""
    (tmp_path / "other.txt").write_text("All work and no play. " * 400)
    plan = plan_comparison(comparison(corpus, also=(("play", str(tmp_path / "other.txt")),)), tmp_path / "out", jobs=2)
    pickled = pickle.dumps(plan)
    assert len(pickled) < 200_000 < plan.corpus.train.num_tokens
    there = pickle.loads(pickled)
    np.testing.assert_array_equal(there.corpus.train.tokens, plan.corpus.train.tokens)
    np.testing.assert_array_equal(there.texts[0].split().tokens, plan.texts[0].split().tokens)
    assert [run.identity for run in there.runs] == [run.identity for run in plan.runs]
    assert all(run.identity["corpus"] == plan.corpus.fingerprint for run in plan.runs)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": (16, 10**6)}, r"no document of the validation split \(\d+ documents?\) has 1000000 tokens"),
        ({"recipe": RECIPE.but(batch_size=10**6)}, "1000000.* Use more text"),
        ({"encodings": ("rope", "yarn:target_length=9999999")}, "fewer than one sequence of 9999999"),
    ],
)
def test_runs_that_cannot_succeed_are_refused(changes, message, corpus, tmp_path):
    with pytest.raises(ValueError, match=message):
        plan_comparison(comparison(corpus, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_torchrun_jobs_and_unwritable_folders_are_refused(corpus, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="Not a directory"):
        plan_comparison(comparison(corpus), tmp_path / "file" / "out")
    with pytest.raises(ValueError, match="jobs must be at least 1, not 0"):
        plan_comparison(comparison(corpus), tmp_path, jobs=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="compare starts its own processes"):
        plan_comparison(comparison(corpus), tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Short. " * 20, r"no document of the whole split \(3 documents\) has 999 tokens; the longest has 1"),
        (b"Short.", "too short"),
        (b" ", "contains no text"),
        (b"f\xfcr " * 900, "not UTF-8"),
    ],
)
def test_another_text_that_cannot_be_tested_on_is_refused(content, message, corpus, tmp_path):
    (tmp_path / "good.txt").write_text("All work and no play. " * 400)
    (tmp_path / "bad.txt").write_bytes(content)
    also = tuple((name, str(tmp_path / f"{name}.txt")) for name in ("good", "bad"))
    with pytest.raises(ValueError, match=f"--also bad: cannot test on this text: .*{message}"):
        plan_comparison(comparison(corpus, lengths=(16, 999), also=also), tmp_path / "out")


def test_a_copy_of_the_corpus_is_no_other_text(corpus, tmp_path):
    """Wherever it is, whatever newlines it ends with; its remaining documents are tested."""
    source, copy = Path(corpus["source"]), tmp_path / "copy"
    copy.mkdir()
    for file in source.iterdir():
        (copy / file.name).write_text(file.read_text() + "\n")
    os.link(source / "csv.txt", tmp_path / "linked.txt")
    for also in (copy, tmp_path / "linked.txt"):
        with pytest.raises(
            ValueError, match="--also own: cannot test on this text: all its documents are in the corpus"
        ):
            plan_comparison(comparison(corpus, also=(("own", str(also)),)), tmp_path)
    (copy / "new.txt").write_text("All work and no play. " * 40)
    plan = plan_comparison(comparison(corpus, also=(("own", str(copy)),)), tmp_path)
    assert (plan.texts[0].left_out, plan.texts[0].split().num_documents) == (6, 1)
    assert plan.notes[-1].startswith("6 of the 7 documents of own are skipped")


def test_other_texts_are_read_like_the_corpus(corpus, tmp_path, monkeypatch):
    """With the same field, document limit and skipping of bad lines; data sets with a known field keep it."""
    rows = [json.dumps({"body": f"{n}. All work and no play. " * 9}) for n in range(30)]
    (tmp_path / "other.jsonl").write_text("\n".join([*rows[:5], "{", *rows[5:]]))
    asked = comparison({**corpus, "field": "body", "skip_bad": True, "max_documents": 20})
    own = plan_comparison(comparison(corpus), tmp_path).corpus
    text = load_other_text(asked, str(tmp_path / "other.jsonl"), own).describe()
    assert (sum(split["documents"] for split in text["splits"].values()), text["skipped"]) == (20, 1)
    seen = []
    monkeypatch.setattr("longfire.lab.comparison_plan.load_corpus", lambda source, **options: seen.append(options))
    for source in ("hub:arxiv@validation", "hub:owner/name"):
        load_other_text(asked, source, own)
    assert [options.get("field") for options in seen] == [None, "body"]
