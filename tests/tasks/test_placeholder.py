import pytest

from longfire.tasks import TASKS, load_examples, split_train_dev
from longfire.tasks.placeholder import FORMER_NAME, PLACEHOLDER, PLACEHOLDER_ROWS, THINGS


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_rows_in_its_own_format(name):
    """All differ, and a dev split can be made."""
    task = TASKS[name]
    made = {split: load_examples(task, PLACEHOLDER, split) for split in PLACEHOLDER_ROWS}
    assert {split: len(found) for split, found in made.items()} == PLACEHOLDER_ROWS
    assert all(split_train_dev(made["train"]))
    if task.choices:
        assert {one.references[0] for one in made["train"]} == set(task.choices)
    assert len({(one.question, one.document) for found in made.values() for one in found}) == 16
    with pytest.raises(FileNotFoundError, match=f"no test split of {name}. Available splits: train, validation"):
        load_examples(task, PLACEHOLDER, "test")


def test_the_former_name_warns():
    with pytest.warns(FutureWarning, match="'made-up' is now 'placeholder'"):
        found = load_examples(TASKS["cb"], FORMER_NAME, "train")
    assert found == load_examples(TASKS["cb"], PLACEHOLDER, "train")
    assert found[0].id == "made-up-cb-train-0"  # part of the identity of runs


def test_answers_are_in_the_documents():
    for name in ("qasper", "narrative_qa", "quality"):
        for one in load_examples(TASKS[name], PLACEHOLDER, "train"):
            box = one.question.split("?")[0].removeprefix("What is in ")
            assert f"{box.capitalize()} holds {one.references[0]}." in one.document
    for one in load_examples(TASKS["quality"], PLACEHOLDER, "validation"):
        assert len(one.options) == 4
        assert one.references[0] in one.options
    for one in load_examples(TASKS["record"], PLACEHOLDER, "train"):
        assert set(one.references) < set(one.options) < set(THINGS)
    for one in load_examples(TASKS["contract_nli"], PLACEHOLDER, "train"):
        assert (one.question in one.document) == (one.references[0] == "Entailment")
