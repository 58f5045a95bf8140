import json
import os
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_BZIP2, ZipFile

import pytest
from longfire.tasks.rows import example_of, rows_from_hub

from longfire.tasks import SUITES, TASKS, Example, load_examples
from tests.tasks.rows import EXPECTED, GLUE, SCROLLS, STORY, TALE, local_row, write, write_hub, write_zip


def meaning(example):
    return example.question, example.document, example.references[0]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """All of GLUE and SuperGLUE as on the hub, SCROLLS as zips, SQuALITY in its own form."""
    root = tmp_path_factory.mktemp("hub")
    tables = {}
    for name, (columns, *_) in GLUE.items():
        rows = [{"idx": 4, **columns}]
        tables |= {(TASKS[name].hub[1], split): rows for split in ("train", TASKS[name].hub_validation)}
    hidden = [{**GLUE["cola"][0], "idx": 0, "label": -1}]
    write_hub(root / "glue", {**tables, ("cola", "test"): hidden})
    for name in SUITES["scrolls"]:
        write_zip(
            root / f"{name}.zip", {f"{name}/{split}.jsonl": [local_row(name)] for split in ("train", "validation")}
        )
    responses = [{"worker_id": str(n), "uid": str(n), "response_text": text} for n, text in enumerate(("One.", "Two."))]
    questions = [{"question_text": "What happens?", "question_number": 1, "responses": responses}]
    story = {"metadata": {"passage_id": "88", "uid": "u"}, "document": STORY, "questions": questions}
    for split in ("train", "validation"):
        write(root / "squality" / f"{split}.jsonl", [story])
    return root


@pytest.fixture
def on_hub(hub, tmp_path, monkeypatch):
    """A task that finds its dataset in that folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)

    def find(name):
        folder = hub / "glue" if name in GLUE else hub / "squality" if name == "squality" else hub
        return replace(TASKS[name], hub=(str(folder), TASKS[name].hub[1]))

    return find


@pytest.mark.parametrize("name", TASKS)
def test_every_task_in_local_form(name, tmp_path):
    path = write(tmp_path / name / "train.jsonl.zst", [local_row(name)])
    (example,) = load_examples(TASKS[name], tmp_path, "train")
    assert meaning(example) == EXPECTED[name]
    assert example.id == local_row(name)["id"]
    assert bool(example.group) == bool(example.document)
    for source in (tmp_path / name, str(path)):
        assert load_examples(TASKS[name], source, "train") == [example]
    suites = write(tmp_path / "all" / TASKS[name].suite / name / "train.jsonl.gz", [local_row(name)])
    assert load_examples(TASKS[name], suites.parents[2], "train") == [example]


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("name", [name for name in TASKS if name != "squality"])
def test_every_task_in_the_hub_s_form(name, split, on_hub):
    (example,) = load_examples(on_hub(name), "hub", split)
    assert meaning(example) == EXPECTED[name]
    assert example.references == (("Ann", "Ann Lee") if name == "record" else EXPECTED[name][2:])
    assert (name in SCROLLS) == (example.id == local_row(name)["id"])
    assert name in SCROLLS or example.id.startswith(f"{name}-{split}-")


def test_squality_s_own_form(on_hub):
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
    assert same.document is too.document  # in memory once


def test_options_of_a_question():
    """QuALITY's from the question, ReCoRD's from the fields, as the hub and files with all columns have them."""
    quality = example_of(TASKS["quality"], local_row("quality"), "here")
    assert quality.options == ("moss", "a kettle", "the hill", "nothing")
    (row,) = rows_from_hub(TASKS["record"], GLUE["record"][0], "here", "validation")
    assert example_of(TASKS["record"], row, "here").options == ("Ann", "Ann Lee")
    assert example_of(TASKS["record"], local_row("record"), "here").options == ()
    assert example_of(TASKS["qasper"], local_row("qasper"), "here").options == ()


def test_rows_of_one_id_are_references_of_one_example(tmp_path):
    rows = [{**local_row("qasper", n), "output": text} for n, text in [(0, "a"), (1, "b"), (0, " c\n"), (0, "a")]]
    path = write(tmp_path / "train.jsonl", rows)
    first, second = load_examples(TASKS["qasper"], path, "train")
    assert (first.references, second.references) == (("a", "c", "a"), ("b",))
    different = {**local_row("qasper"), "input": "Why?\n\nBecause."}
    write(path, [*rows, different])
    with pytest.raises(ValueError, match=r"line 5 has the id 'qasper_0' of .*line 1, but another input"):
        load_examples(TASKS["qasper"], path, "train")


def test_rows_without_an_id_are_the_same_wherever_they_are(tmp_path):
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


@pytest.mark.parametrize("between", ["\n\n", "\n\n\n", "\n\n\n\n"])
@pytest.mark.parametrize("options", ["\n\n (A) a\n (B) b\n\n (C) c\n (D) d (A) e", "\n(A) a\n(B) b\n(C) c\n(D) d"])
def test_quality_s_options_belong_to_the_question(between, options, tmp_path):
    text = f"Which?{options}{between} {TALE}\n\n(D) is no option here.\n\nEnd"
    path = write(tmp_path / "train.jsonl", [{"id": 1, "input": text, "output": "d"}])
    (example,) = load_examples(TASKS["quality"], path, "train")
    assert example.question == f"Which?{options}"
    assert example.document == f"{TALE}\n\n(D) is no option here.\n\nEnd"


def test_a_line_that_memory_may_not_suffice_for(tmp_path, monkeypatch):
    monkeypatch.setattr("longfire.data.files.LONGEST", 1000)
    path = write_zip(tmp_path / "qmsum.zip", {"qmsum/train.jsonl": [{"input": "x" * 9000}]})
    with pytest.raises(ValueError, match=r"qmsum/train.jsonl, line 1 has more than 1,000 bytes"):
        load_examples(TASKS["qmsum"], path, "train")


def test_zips(tmp_path):
    rows = {"__MACOSX/qmsum/train.jsonl": [], "qmsum/train.jsonl": [local_row("qmsum")], "qmsum/test.jsonl": []}
    path = write_zip(tmp_path / "qmsum.zip", rows)
    for source in (tmp_path, path):
        assert meaning(load_examples(TASKS["qmsum"], source, "train")[0]) == EXPECTED["qmsum"]
    with pytest.raises(
        FileNotFoundError, match=r"qmsum.zip has no qmsum/validation.jsonl in it. .*there are: test, train"
    ):
        load_examples(TASKS["qmsum"], tmp_path, "validation")
    write_zip(path, {"qmsum/train.jsonl": [local_row("qmsum"), {"id": "x"}]})
    with pytest.raises(ValueError, match=r"qmsum.zip/qmsum/train.jsonl, line 2 has no field 'input'.* are: 'id'"):
        load_examples(TASKS["qmsum"], path, "train")
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 0xFF
    path.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match=r"damaged|not JSON|not UTF-8"):
        load_examples(TASKS["qmsum"], path, "train")
    with ZipFile(path, "w", ZIP_BZIP2) as zipped:
        zipped.writestr("qmsum/train.jsonl", json.dumps(local_row("qmsum")))
    with pytest.raises(ValueError, match=r"qmsum/train.jsonl is compressed by another method than deflate"):
        load_examples(TASKS["qmsum"], path, "train")
    path.write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"qmsum.zip is damaged or no zip"):
        load_examples(TASKS["qmsum"], path, "train")


BAD_ROWS = {
    "no output": ("qasper", {"input": "a\n\nb"}, r"line 2 has no field 'output'; the fields there are: 'id', 'input'"),
    "no input": ("cola", {"output": "acceptable"}, r"line 2 has no field 'input'; .*: 'id', 'output'. A row has"),
    "null": ("cola", {"input": "a", "output": None}, r"line 2: the field 'output' holds no text but NoneType"),
    "half a character": (
        "cola",
        {"input": "\ud800", "output": "acceptable"},
        r"line 2: half a character .* in 'input'",
    ),
    "empty reference": ("qasper", {"input": "a\n\nb", "output": " \n"}, r"line 2: the reference is empty"),
    "one of several": ("record", {"fields": {"answers": ["Ann", ""]}}, r"line 2: the reference is empty"),
    "wrong label": (
        "cb",
        {"output": "maybe"},
        r"line 2: the answer 'maybe' .*cb's: entailment, contradiction, neutral",
    ),
    "wrong letter": (
        "contract_nli",
        {"output": "entailment"},
        r"'entailment' is not one of contract_nli's: Entailment",
    ),
    "empty input": ("gov_report", {"input": " ", "output": "a"}, r"line 2: the input is empty"),
    "no document": ("qmsum", {"input": "only one part"}, r"line 2: no blank line in the input.*qmsum's input is"),
    "no options": (
        "quality",
        {"input": "Why?\n\n (A) a\n (B) b\n\nText"},
        r"line 2: no option \(D\) with a blank line",
    ),
    "no passage": (
        "boolq",
        {"input": "boolq question: a"},
        r"line 2: no ' passage: ' in the input. It is made as 'boolq",
    ),
    "another task's": ("wnli", {"task": "rte"}, r"line 2 is a row of rte, not of wnli"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_cannot_be_used(case, tmp_path):
    name, row, message = BAD_ROWS[case]
    whole = {} if {"input", "output"} & row.keys() and case in ("no output", "no input") else local_row(name, 1)
    path = write(tmp_path / "train.jsonl", [local_row(name), {**whole, "id": "second", **row}])
    with pytest.raises(ValueError, match=message) as error:
        load_examples(TASKS[name], path, "train")
    assert str(path) in str(error.value)


@pytest.mark.parametrize("line", [b"[1]", b'{"id": ', b'{"input": "caf\xe9"}'])
def test_lines_that_are_no_rows(line, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(line)
    with pytest.raises(ValueError, match=r"train.jsonl, line 1") as error:
        load_examples(TASKS["cola"], path, "train")
    assert "skip_bad" not in str(error.value)  # which is no option here


def test_what_cannot_be_found(tmp_path):
    task = TASKS["quality"]
    path = write(tmp_path / "quality" / "validation.jsonl.gz", [local_row("quality")])
    with pytest.raises(
        FileNotFoundError, match=r"no train split of quality: looked for .*quality.*there are: validation"
    ):
        load_examples(task, tmp_path, "train")
    with pytest.raises(FileNotFoundError, match=r"Splits there are: none"):
        load_examples(TASKS["qasper"], tmp_path, "train")
    with pytest.raises(FileNotFoundError, match=r"no file or folder nowhere. Check the path, or give 'hub'"):
        load_examples(task, "nowhere", "train")
    with pytest.raises(ValueError, match=r"is the validation split by its name, and train is asked for"):
        load_examples(task, path, "train")
    other = tmp_path / "a.csv"
    other.touch()
    with pytest.raises(ValueError, match=r"a.csv is of no kind that can be read. Known: .jsonl"):
        load_examples(task, other, "train")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ValueError, match=r"pipe.jsonl is a pipe or a device"):
        load_examples(task, tmp_path / "pipe.jsonl", "train")
    with pytest.raises(ValueError, match=r"empty.jsonl has no rows of quality in the train split"):
        load_examples(task, write(tmp_path / "empty.jsonl", []), "train")


def test_what_the_hub_does_not_have(on_hub, tmp_path):
    with pytest.raises(ValueError, match=r"qasper.zip of tau/scrolls cannot be had .*or give a folder"):
        load_examples(TASKS["qasper"], "hub", "train")
    with pytest.raises(ValueError, match=r"hub:.*glue:rte@test cannot be had .*test"):
        load_examples(on_hub("rte"), "hub", "test")
    with pytest.raises(ValueError, match=r"cola@test, row 1: the reference is empty.*use the validation split"):
        load_examples(on_hub("cola"), "hub", "test")
    wrong = replace(on_hub("cola"), hub=(on_hub("cola").hub[0], "rte"))
    with pytest.raises(ValueError, match=r"row 1 has no column 'sentence'; the columns there are: 'idx', 'sentence1'"):
        load_examples(wrong, "hub", "train")
    columns = {**GLUE["wsc"][0], "idx": 0, "span2_index": 14}
    astray = replace(
        TASKS["wsc"], hub=(str(write_hub(tmp_path / "wsc", {("wsc.fixed", "train"): [columns]})), "wsc.fixed")
    )
    with pytest.raises(ValueError, match=r"row 1: the pronoun 'it' is neither word 14 of"):
        load_examples(astray, "hub", "train")


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
