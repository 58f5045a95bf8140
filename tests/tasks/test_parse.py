"""Rows → examples: every task's format, and rows that cannot be used."""

import pytest

from longfire.tasks import TASKS
from longfire.tasks.parse import hub_rows, parse_example
from tests.tasks.rows import GLUE, TALE, local_row


def parse(name, row):
    return parse_example(TASKS[name], row, "train.jsonl, line 2")


def test_options_of_a_question():
    """QuALITY's are in the question, ReCoRD's in the fields, if a row has them."""
    assert parse("quality", local_row("quality")).options == ("moss", "a kettle", "the hill", "nothing")
    (row,) = hub_rows(TASKS["record"], GLUE["record"][0], "here", "validation")
    assert parse("record", row).options == ("Ann", "Ann Lee")
    assert parse("record", local_row("record")).options == ()
    assert parse("qasper", local_row("qasper")).options == ()


@pytest.mark.parametrize("between", ["\n\n", "\n\n\n", "\n\n\n\n"])
@pytest.mark.parametrize("options", ["\n\n (A) a\n (B) b\n\n (C) c\n (D) d (A) e", "\n(A) a\n(B) b\n(C) c\n(D) d"])
def test_quality_options_belong_to_the_question(between, options):
    text = f"Which?{options}{between} {TALE}\n\n(D) is no option here.\n\nEnd"
    example = parse("quality", {"id": 1, "input": text, "output": "d"})
    assert example.question == f"Which?{options}"
    assert example.document == f"{TALE}\n\n(D) is no option here.\n\nEnd"


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("qasper", {"output": ...}, "no field 'output', only 'id', 'pid', 'input'"),
        ("cola", {"input": ...}, "no field 'input', only 'id', 'task', 'output', 'fields'"),
        ("cola", {"output": None}, "the field 'output' must be text, not NoneType"),
        ("cola", {"input": "\ud800"}, r"a lone surrogate .* in 'input'"),
        ("qasper", {"output": " \n"}, "the reference is empty"),
        ("record", {"fields": {"answers": ["Ann", ""]}}, "the reference is empty"),
        ("cb", {"output": "maybe"}, "'maybe' is not one of cb's: entailment, contradiction, neutral"),
        ("contract_nli", {"output": "entailment"}, "'entailment' is not one of contract_nli's: Entailment"),
        ("gov_report", {"input": " "}, "the input is empty"),
        ("qmsum", {"input": "only one part"}, "no blank line in the input"),
        ("quality", {"input": "Why?\n\n (A) a\n (B) b\n\nText"}, r"no option \(D\)"),
        ("boolq", {"input": "boolq question: a"}, "no ' passage: ' in the input, which should read 'boolq"),
        ("wnli", {"task": "rte"}, "is a row of rte, not of wnli"),
    ],
)
def test_rows_that_cannot_be_used(name, row, message):
    with pytest.raises(ValueError, match=f"^train.jsonl, line 2.*{message}"):
        parse(name, {key: value for key, value in {**local_row(name), **row}.items() if value is not ...})


def test_hub_rows_that_cannot_be_used():
    with pytest.raises(ValueError, match="row 1 has no column 'sentence', only 'idx', 'sentence1'"):
        list(hub_rows(TASKS["cola"], {"idx": 0, "sentence1": "a"}, "row 1", "train"))
    with pytest.raises(ValueError, match="row 1: no pronoun 'it' at or after word 14"):
        list(hub_rows(TASKS["wsc"], {**GLUE["wsc"][0], "span2_index": 14}, "row 1", "train"))
