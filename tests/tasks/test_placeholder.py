"""Rows that are made up."""

import pytest

from longfire.tasks import TASKS, divide, load_examples
from longfire.tasks.placeholder import MADE_UP, ROWS, THINGS


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_some_in_its_own_form(name):
    """No two are alike, and a part to judge by can be cut off."""
    task = TASKS[name]
    made = {split: load_examples(task, MADE_UP, split) for split in ROWS}
    assert {split: len(found) for split, found in made.items()} == ROWS
    assert made == {split: load_examples(task, MADE_UP, split) for split in ROWS}
    assert all(divide(made["train"]))
    if task.choices:
        assert {one.references[0] for one in made["train"]} == set(task.choices)
    assert len({(one.question, one.document) for found in made.values() for one in found}) == sum(ROWS.values())
    with pytest.raises(FileNotFoundError, match=f"made-up has no test split of {name}. Splits there are: train, val"):
        load_examples(task, MADE_UP, "test")


def test_answers_are_in_the_documents():
    for name in ("qasper", "narrative_qa", "quality"):
        for one in load_examples(TASKS[name], MADE_UP, "train"):
            box = one.question.split("?")[0].removeprefix("What is in ")
            assert f"{box.capitalize()} holds {one.references[0]}." in one.document
    for one in load_examples(TASKS["quality"], MADE_UP, "validation"):
        assert len(one.options) == 4
        assert one.references[0] in one.options
    for one in load_examples(TASKS["record"], MADE_UP, "train"):
        assert set(one.references) < set(one.options) < set(THINGS)
    told = {"Entailment": True, "Contradiction": False, "Not mentioned": False}
    for one in load_examples(TASKS["contract_nli"], MADE_UP, "train"):
        assert (one.question in one.document) == told[one.references[0]]
