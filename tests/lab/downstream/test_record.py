"""Later commands add to the record of a folder, as long as scores are comparable."""

import json
import shutil

import pytest

from longfire.lab.downstream.record import read_record, start_record
from tests.lab.boxes import record_in
from tests.training.toys import checkpoint


@pytest.fixture
def out(tested, tmp_path):
    return shutil.copytree(tested, tmp_path / "out")


def scores_in(record):
    return {
        row["label"]: {(one["task"], one["length"]): one["examples"] for one in row["scores"]} for row in record["rows"]
    }


def test_later_commands_add_to_the_record(place, tested, out, capsys):
    """Other checkpoints and lengths are added; repeated ones are replaced in place."""
    assert place.evaluate(out, "fire")["rows"] == record_in(tested)["rows"]
    added = place.evaluate(out, "alibi", "rope", length="128")
    at_96, at_128 = {("narrative_qa", 96): 7}, {("narrative_qa", 128): 7}
    assert scores_in(added) == {"FIRE": at_96, "RoPE": {**at_96, **at_128}, "ALiBi": at_128}
    assert added["setting"]["lengths"] == [96, 128]
    assert "interrupted" not in added
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ALiBi  ")]
    assert line.split()[:2] == ["ALiBi", "–"]


def test_added_rows_have_unique_labels(place, out, tmp_path):
    checkpoint(tmp_path / "other", "rope", initializer_range=0.1)
    labels = [row["label"] for row in place.evaluate(out, tmp_path / "other")["rows"]]
    assert labels == ["FIRE", f"RoPE ({place / 'rope'})", f"RoPE ({tmp_path / 'other'})"]
    checkpoint(tmp_path / "other", "rope", initializer_range=0.3)  # other weights in the same folder start a new row
    again = place.evaluate(out, tmp_path / "other", length="128")["rows"]
    assert [[one["length"] for one in row["scores"]] for row in again] == [[96], [96], [128]]


def test_other_questions_start_a_new_record(place, tested, out, capsys):
    kept = {path: path.read_bytes() for path in out.glob("test/*/*/*")}
    assert len(kept) == 4
    few = place.evaluate(out, "rope", more=["--limit", "2"])
    assert scores_in(few) == {"RoPE": {("narrative_qa", 96): 2}}
    assert "(limit: None); keeping it as downstream-before.json" in capsys.readouterr().err
    assert json.loads((out / "downstream-before.json").read_text()) == record_in(tested)
    train = place.evaluate(out, "rope", more=["--split", "train"])
    assert scores_in(train) == {"RoPE": {("narrative_qa", 96): 24}}
    assert {path: path.read_bytes() for path in kept} == kept


def test_failures_of_earlier_commands_do_not_fail_this_one(place, out):
    record = record_in(out)
    record["rows"][0]["scores"] = [{"task": "narrative_qa", "length": 96, "failed": "RuntimeError: no memory"}]
    (out / "downstream.json").write_text(json.dumps(record))
    assert "failed" in place.evaluate(out, "rope")["rows"][0]["scores"][0]


def test_records_of_earlier_releases_are_continued(tmp_path):
    """With the old names of recipe fields and placeholder rows."""
    setting = {"kind": "finetune", "name": "cb", "tasks": ["cb"], "missing": {}, "lengths": [64], "data": "made-up"}
    setting |= {"split": "validation", "limit": None, "mixtures": [], "recipe": {"name": "tiny", "batch": 8, "clip": 1}}
    row = {"key": "rope-1", "checkpoint": "a", "label": "RoPE", "scores": [1], "finetuned": {"steps": 3, "batch": 8}}
    (tmp_path / "downstream.json").write_text(json.dumps({"setting": setting, "rows": [row]}))
    assert read_record(tmp_path)["setting"]["recipe"] == {"name": "tiny", "batch_size": 8, "max_grad_norm": 1}
    new = {"key": "fire-1", "checkpoint": "b", "label": "FIRE", "scores": []}
    record = start_record(tmp_path, {**setting, "data": "placeholder"}, [new])
    assert record["rows"] == [{**row, "finetuned": {"steps": 3, "batch_size": 8}}, new]
