"""Examples from files, folders, zips and the hub."""

import json
import os
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_BZIP2, ZipFile

import pytest

from longfire.tasks import SUITES, TASKS, Example, load_examples
from tests.tasks.rows import EXPECTED, GLUE, SCROLLS, STORY, local_row, write, write_hub, write_zip


def meaning(example):
    return example.question, example.document, example.references[0]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """All of GLUE and SuperGLUE as on the hub, SCROLLS as zips, SQuALITY in its own format."""
    root = tmp_path_factory.mktemp("hub")
    tables = {}
    for name, (columns, *_) in GLUE.items():
        rows = [{"idx": 4, **columns}]
        tables |= {(TASKS[name].hub[1], split): rows for split in ("train", TASKS[name].hub_validation)}
    hidden = [{**GLUE["cola"][0], "idx": 0, "label": -1}]
    write_hub(root / "glue", {**tables, ("cola", "test"): hidden})
    for name in SUITES["scrolls"]:
        members = {f"{name}/{split}.jsonl": [local_row(name)] for split in ("train", "validation")}
        write_zip(root / f"{name}.zip", members)
    responses = [{"worker_id": str(n), "uid": str(n), "response_text": text} for n, text in enumerate(("One.", "Two."))]
    questions = [{"question_text": "What happens?", "question_number": 1, "responses": responses}]
    story = {"metadata": {"passage_id": "88", "uid": "u"}, "document": STORY, "questions": questions}
    for split in ("train", "validation"):
        write(root / "squality" / f"{split}.jsonl", [story])
    return root


@pytest.fixture
def on_hub(hub, tmp_path, monkeypatch):
    """Returns a task that reads its dataset from that folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)

    def find(name):
        folder = hub / "glue" if name in GLUE else hub / "squality" if name == "squality" else hub
        return replace(TASKS[name], hub=(str(folder), TASKS[name].hub[1]))

    return find


@pytest.mark.parametrize("name", TASKS)
def test_local_files_of_every_task(name, tmp_path):
    path = write(tmp_path / name / "train.jsonl.zst", [local_row(name)])
    (example,) = load_examples(TASKS[name], tmp_path, "train")
    assert meaning(example) == EXPECTED[name]
    assert example.id == local_row(name)["id"]
    assert bool(example.group) == bool(example.document)
    for source in (tmp_path / name, str(path)):
        assert load_examples(TASKS[name], source, "train") == [example]
    suites = write(tmp_path / "all" / TASKS[name].suite / name / "train.jsonl.gz", [local_row(name)])
    assert load_examples(TASKS[name], suites.parents[2], "train") == [example]


@pytest.mark.parametrize("name", [name for name in TASKS if name != "squality"])
def test_hub_rows_of_every_task(name, on_hub):
    for split in ("train", "validation"):
        (example,) = load_examples(on_hub(name), "hub", split)
        assert meaning(example) == EXPECTED[name]
        assert example.references == (("Ann", "Ann Lee") if name == "record" else EXPECTED[name][2:])
        assert (name in SCROLLS) == (example.id == local_row(name)["id"])
        assert name in SCROLLS or example.id.startswith(f"{name}-{split}-")


def test_hub_rows_of_squality(on_hub):
    (example,) = load_examples(on_hub("squality"), None, "validation")
    assert (example.id, example.question, example.document) == ("88_1", "What happens?", STORY)
    assert example.references == ("One.", "Two.")


def test_groups(on_hub, tmp_path):
    multirc = load_examples(on_hub("multirc"), "hub", "train")[0]
    write(tmp_path / "train.jsonl", [local_row("multirc")])
    assert multirc.group == "train-3-5" == load_examples(TASKS["multirc"], tmp_path, "train")[0].group
    rows = [local_row("qasper", n) for n in range(2)] + [local_row("squality", 3)]
    write(tmp_path / "qasper" / "train.jsonl", rows)
    same, too, other = load_examples(TASKS["qasper"], tmp_path, "train")
    assert same.group == too.group != other.group
    assert same.document is too.document  # one copy in memory


def test_rows_that_share_an_id_are_references_of_one_example(tmp_path):
    rows = [{**local_row("qasper", n), "output": text} for n, text in [(0, "a"), (1, "b"), (0, " c\n"), (0, "a")]]
    path = write(tmp_path / "train.jsonl", rows)
    first, second = load_examples(TASKS["qasper"], path, "train")
    assert (first.references, second.references) == (("a", "c", "a"), ("b",))
    write(path, [*rows, {**local_row("qasper"), "input": "Why?\n\nBecause."}])
    with pytest.raises(ValueError, match=r"line 5 has the same id as .*line 1, 'qasper_0'"):
        load_examples(TASKS["qasper"], path, "train")


def test_default_ids_do_not_depend_on_the_folder(tmp_path):
    rows = [{"input": f"wnli sentence1: {i} sentence2: {i}", "output": "entailment"} for i in range(3)]
    for folder in ("here", "there/below"):
        write(tmp_path / folder / "wnli" / "train.jsonl", rows)
    here, there = (load_examples(TASKS["wnli"], tmp_path / folder, "train") for folder in ("here", "there/below"))
    assert here == there
    assert here[2].id == "train.jsonl, line 3"


def test_a_limit_counts_examples_and_ends_reading(tmp_path):
    rows = [{**local_row("qasper", n // 2), "output": str(n)} for n in range(10)]
    path = write(tmp_path / "train.jsonl", rows)
    path.write_bytes(path.read_bytes() + b"broken")
    examples = load_examples(TASKS["qasper"], path, "train", limit=2)
    assert [example.references for example in examples] == [("0", "1"), ("2", "3")]
    with pytest.raises(ValueError, match="line 11 is not JSON"):
        load_examples(TASKS["qasper"], path, "train")
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        load_examples(TASKS["qasper"], path, "train", limit=0)


def test_lines_that_would_exhaust_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("longfire.data.readers.MAX_LINE", 1000)
    path = write_zip(tmp_path / "qmsum.zip", {"qmsum/train.jsonl": [{"input": "x" * 9000}]})
    with pytest.raises(ValueError, match=r"qmsum/train.jsonl, line 1 has more than 1,000 bytes"):
        load_examples(TASKS["qmsum"], path, "train")


def test_zips(tmp_path):
    task = TASKS["qmsum"]
    rows = {"__MACOSX/qmsum/train.jsonl": [], "qmsum/train.jsonl": [local_row("qmsum")], "qmsum/test.jsonl": []}
    path = write_zip(tmp_path / "qmsum.zip", rows)
    for source in (tmp_path, path):
        assert meaning(load_examples(task, source, "train")[0]) == EXPECTED["qmsum"]
    with pytest.raises(FileNotFoundError, match=r"does not contain qmsum/validation.jsonl. .*: test, train"):
        load_examples(task, tmp_path, "validation")
    write_zip(path, {"qmsum/train.jsonl": [local_row("qmsum"), {"id": "x"}]})
    with pytest.raises(ValueError, match=r"qmsum.zip/qmsum/train.jsonl, line 2 has no field 'input'"):
        load_examples(task, path, "train")
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 0xFF
    path.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match=r"damaged|not JSON|not UTF-8"):
        load_examples(task, path, "train")
    with ZipFile(path, "w", ZIP_BZIP2) as zipped:
        zipped.writestr("qmsum/train.jsonl", json.dumps(local_row("qmsum")))
    with pytest.raises(ValueError, match="zip -Z deflate"):
        load_examples(task, path, "train")
    path.write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"qmsum.zip is damaged or not a zip"):
        load_examples(task, path, "train")


@pytest.mark.parametrize("line", [b"[1]", b'{"id": ', b'{"input": "caf\xe9"}'])
def test_lines_that_are_not_rows(line, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(line)
    with pytest.raises(ValueError, match=r"train.jsonl, line 1") as error:
        load_examples(TASKS["cola"], path, "train")
    assert "skip_bad" not in str(error.value)  # not an option here


def test_sources_that_cannot_be_used(tmp_path):
    task = TASKS["quality"]
    path = write(tmp_path / "quality" / "validation.jsonl.gz", [local_row("quality")])
    (tmp_path / "a.csv").touch()
    os.mkfifo(tmp_path / "pipe.jsonl")
    write(tmp_path / "empty.jsonl", [])
    for source, error, message in (
        (tmp_path, FileNotFoundError, "no train split of quality: .*Available splits: validation"),
        ("nowhere", FileNotFoundError, "no file or folder nowhere.*'hub'"),
        (path, ValueError, "is the validation split by its name"),
        (tmp_path / "a.csv", ValueError, r"a.csv has an unknown file type. Known: .jsonl"),
        (tmp_path / "pipe.jsonl", ValueError, "pipe.jsonl is a pipe or a device"),
        (tmp_path / "empty.jsonl", ValueError, "empty.jsonl has no rows of quality in the train split"),
    ):
        with pytest.raises(error, match=message):
            load_examples(task, source, "train")
    with pytest.raises(FileNotFoundError, match="Available splits: none"):
        load_examples(TASKS["qasper"], tmp_path, "train")


def test_data_missing_on_the_hub(on_hub):
    for task, split, message in (
        (TASKS["qasper"], "train", "cannot load qasper.zip of tau/scrolls .*pass a folder"),
        (on_hub("rte"), "test", "cannot load hub:.*glue:rte@test"),
        (on_hub("cola"), "test", "cola@test, row 1: the reference is empty.*use the validation split"),
    ):
        with pytest.raises(ValueError, match=message):
            load_examples(task, "hub", split)


@pytest.mark.skipif("LONGFIRE_DATA" not in os.environ, reason="LONGFIRE_DATA names no folder with scrolls/ and glue/")
@pytest.mark.parametrize("name", TASKS)
def test_real_files(name):
    root = Path(os.environ["LONGFIRE_DATA"])
    task = TASKS[name]
    splits = [path.name.split(".")[0] for path in (root / task.suite / name).glob("*.jsonl*")]
    for split in splits:
        examples = load_examples(task, root, split)
        print(f"{name} {split}: {len(examples)} examples, {sum(len(one.references) for one in examples)} references")
        assert len(examples) > 0
        assert all(isinstance(example, Example) and example.references for example in examples)
        assert all(bool(example.document) == bool(task.suite == "scrolls" or task.document) for example in examples)
    if not splits:
        pytest.skip(f"no files of {name}")
