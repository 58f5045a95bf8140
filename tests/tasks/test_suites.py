import subprocess
import sys

import pytest

from longfire import tasks
from longfire.tasks import SUITES, TASKS, task_named
from longfire.tasks.parse import SPLITTERS
from tests.tasks.rows import EXPECTED

TITLES = {
    "scrolls": "QAS CNLI QMS NQA SumS GovR QuAL",
    "glue": "BoolQ CB CoLA COPA MNLI MRPC QNLI QQP RTE SST-2 WiC WNLI MultiRC ReCoRD WSC",
}


def test_suites_match_the_papers_tables():
    for suite, titles in TITLES.items():
        assert [TASKS[name].title for name in SUITES[suite]] == titles.split()
        assert {TASKS[name].suite for name in SUITES[suite]} == {suite}
    assert TASKS.keys() - {name for names in SUITES.values() for name in names} == {"squality"}
    assert TASKS["squality"].suite == "scrolls"
    assert TASKS.keys() == EXPECTED.keys()
    metrics = {name: task.metric for name, task in TASKS.items()}
    assert [metrics[name] for name in SUITES["scrolls"]] == [
        *("f1", "exact_match", "rouge_gm", "f1", "rouge_gm", "rouge_gm", "exact_match")
    ]
    others = {name: metrics[name] for name in SUITES["glue"] if metrics[name] != "accuracy"}
    assert others == {"multirc": "group_exact_match", "record": "exact_match"}


@pytest.mark.parametrize("name", TASKS)
def test_definitions_are_complete(name):
    task = TASKS[name]
    assert task.name == name
    assert task.form in SPLITTERS
    assert (task.form == "template") == bool(task.template) == (task.suite == "glue")
    assert not task.document or task.template.endswith(f"{task.marker}{{{task.document}}}")
    assert len(set(task.choices)) == len(task.choices)
    assert all(len(choice) + 2 <= task.max_answer for choice in task.choices)  # in bytes: a space, and the end


def test_unknown_and_former_names():
    assert task_named("qasper") is TASKS["qasper"]
    with pytest.raises(ValueError, match=r"no task 'narrativeqa'. Did you mean 'narrative_qa'\? Known: qasper, "):
        task_named("narrativeqa")
    with pytest.raises(AttributeError, match=r"longfire.tasks has no 'load_example'. Did you mean 'load_examples'"):
        _ = tasks.load_example
    with pytest.warns(FutureWarning, match="is now split_train_dev"):
        assert tasks.divide is tasks.split_train_dev


def test_definitions_are_light():
    code = "import sys, longfire.tasks; longfire.tasks.TASKS, longfire.tasks.split_train_dev; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "datasets", "numpy"} & set(loaded)
    assert all(getattr(tasks, name) is not None for name in tasks.__all__)
