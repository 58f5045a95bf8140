"""Loading questions: splits, even samples, and questions that do not fit."""

import re
from dataclasses import replace

import pytest

from longfire.data.tokenizers import byte_tokenizer
from longfire.lab.downstream.plan import Experiment
from longfire.lab.downstream.questions import (
    LengthLimits,
    Questions,
    Trial,
    fingerprint,
    load_questions,
    mixtures_of,
    sample,
)
from longfire.lab.scales import SCALES
from longfire.tasks import SUITES, TASKS, Example
from longfire.training import FINETUNE_RECIPES
from tests.lab.boxes import write_boxes
from tests.tasks.rows import write

BYTES = [byte_tokenizer()]
TINY = FINETUNE_RECIPES["tiny"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_boxes(tmp_path_factory.mktemp("data"))


def load(name, data, recipe=TINY, tokenizers=BYTES, **options):
    experiment = Experiment(name, data, recipe, **options)
    return load_questions(experiment, tokenizers, experiment.test_lengths() or [1000])


def test_mixtures():
    assert [one.tasks for one in mixtures_of("scrolls")] == [(task,) for task in SUITES["scrolls"]]
    assert [one.tasks for one in mixtures_of("glue")] == [SUITES["glue"]]
    assert mixtures_of("all") == [*mixtures_of("scrolls"), *mixtures_of("glue")]
    assert [one.tasks for one in mixtures_of("cb+rte+cb")] == [("cb", "rte")]


def test_train_dev_and_test(data):
    """Neither documents nor groups are split."""
    found, missing = load("multirc", data, dev_examples=2)
    of = found["multirc"]
    assert (len(of.train) + len(of.dev), len(of.test), len(of.judge), missing) == (25, 8, 2, {})
    assert not {one.document for one in of.train} & {one.document for one in of.dev}
    last, validation = (load("multirc", data, select=select)[0]["multirc"] for select in ("last", "validation"))
    assert (len(last.train), last.dev, last.judge) == (25, [], [])
    assert (len(validation.train), validation.judge) == (25, validation.test)
    tested = load("multirc", data, None)[0]["multirc"]
    assert (tested.train, tested.dev, tested.judge) == ([], [], [])


def length_named_in(error):
    return int(re.search(r"at least (\d+)", str(error.value))[1])


def test_questions_that_do_not_fit_to_test_on(data):
    """The length in the message is enough, and one less is not."""
    of = load("narrative_qa", data, None)[0]["narrative_qa"]
    with pytest.raises(ValueError, match="too short for 7 of 7 questions of the test split") as error:
        LengthLimits(BYTES, [80, 1000], 0).refuse_too_long(of, "test")
    enough = length_named_in(error)
    LengthLimits(BYTES, [enough], 0).refuse_too_long(of, "test")
    with pytest.raises(ValueError, match=f"at least {enough}"):
        LengthLimits(BYTES, [enough - 1], 0).refuse_too_long(of, "test")
    long = replace(of.test[2], question="Why? " * 40)
    some = Questions(of.task, [*of.test, long], [], [replace(long, id=f"dev-{i}") for i in range(5)], [])
    with pytest.raises(ValueError, match=r"5 of 5 questions of the train split \(dev-0, dev-1, dev-2, …\)"):
        LengthLimits(BYTES, [128], 0).refuse_too_long(some, "test")


def test_questions_that_do_not_fit_to_train_on(data):
    of = load("narrative_qa", data)[0]["narrative_qa"]
    of.train[3] = replace(of.train[3], references=("tea", "moss and tea " * 20))
    with pytest.raises(ValueError, match=rf"training length.* 1 of 24 questions.*\({of.train[3].id}\)") as error:
        LengthLimits(BYTES, [1000], 128).refuse_too_long(of, "validation")
    enough = length_named_in(error)
    assert f"--length {enough}" in str(error.value)
    LengthLimits(BYTES, [1000], enough).refuse_too_long(of, "validation")
    with pytest.raises(ValueError, match=f"at least {enough}"):
        LengthLimits(BYTES, [1000], enough - 1).refuse_too_long(of, "validation")


def test_a_trial_reads_few_rows_and_skips_those_that_do_not_fit(tmp_path):
    short = [{"id": f"{i}", "input": f"Why {i}?\n\nBox {i}.", "output": "tea"} for i in range(6)]
    long_question = {**short[0], "id": "long question", "input": f"{'Why? ' * 40}\n\nBox 6."}
    long_answer = {**short[0], "id": "long answer", "input": "Why?\n\nBox 7.", "output": "moss " * 40}
    for split in ("train", "validation"):
        write(tmp_path / "narrative_qa" / f"{split}.jsonl", [long_question, long_answer, *short])
    trial = Trial(rows=7, max_answer=16)
    of = load("narrative_qa", tmp_path, TINY.but(length=100), trial=trial)[0]["narrative_qa"]
    assert of.task.max_answer == 16
    assert sorted(one.id for one in [*of.train, *of.dev]) == ["0", "1", "2", "3", "4"]
    assert of.dev
    assert [one.id for one in of.test] == ["long answer", "0", "1", "2", "3", "4"]  # tests do not need its reference
    LengthLimits(BYTES, [100], 100).refuse_too_long(of, "validation")
    with pytest.raises(ValueError, match="only 0 of 7 rows of narrative_qa to train on fit 20 tokens"):
        load("narrative_qa", tmp_path, TINY.but(length=20), trial=trial)
    with pytest.raises(FileNotFoundError, match="has no complete task"):
        load("scrolls", tmp_path, TINY.but(length=20), trial=trial)


@pytest.mark.parametrize("suite", SUITES)
def test_placeholder_rows_fit_a_trial(suite):
    scale = SCALES["smoke"]
    recipe = scale.finetuning[suite].but(length=4 * 64)
    found, missing = load(suite, scale.data, recipe, limit=scale.questions, trial=scale.trial)
    assert (list(found), missing) == (list(SUITES[suite]), {})
    for of in found.values():
        assert (len(of.train) + len(of.dev), len(of.test)) == (12, scale.questions)


def test_one_file_cannot_be_trained_and_tested_on(data, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_bytes((data / "scrolls" / "narrative_qa" / "train.jsonl").read_bytes())
    assert load("narrative_qa", file, None)[0]["narrative_qa"].test
    with pytest.raises(ValueError, match=r"mine.jsonl is a single file"):
        load("narrative_qa", file)


def test_missing_tasks_are_named_or_refused(data):
    found, missing = load("scrolls", data)
    assert list(found) == ["narrative_qa"]
    assert missing == dict.fromkeys(set(SUITES["scrolls"]) - {"narrative_qa"}, "the data has no train split")
    with pytest.raises(FileNotFoundError, match="has no train split of qasper"):
        load("narrative_qa+qasper", data)
    with pytest.raises(FileNotFoundError, match="has no complete task of: qasper, "):
        load("scrolls", data / "glue")


def test_one_document_cannot_be_split(tmp_path, data):
    row = (data / "scrolls" / "narrative_qa" / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "narrative_qa").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "narrative_qa" / f"{split}.jsonl").write_text(row)
    with pytest.raises(ValueError, match="1 on one document"):
        load("narrative_qa", tmp_path)


def questions(count, per_group=1):
    return [Example(str(i), "?", "", ("a",), str(i // per_group)) for i in range(count)]


def test_samples_are_even():
    assert [one.id for one in sample(TASKS["cola"], questions(10), 4)] == ["0", "2", "5", "7"]
    assert len(sample(TASKS["cola"], questions(10), 20)) == len(sample(TASKS["cola"], questions(10), None)) == 10


def test_samples_consist_of_whole_groups():
    some = sample(TASKS["multirc"], questions(12, per_group=3), 6)
    assert [one.id for one in some] == ["0", "1", "2", "6", "7", "8"]
    assert [one.id for one in sample(TASKS["multirc"], questions(12, per_group=3), 1)] == ["0", "1", "2"]


def test_fingerprints_cover_questions_documents_and_answers():
    one = Example("1", "who?", "a tale", ("me",))
    others = [
        replace(one, id="2"),
        replace(one, question="how?"),
        replace(one, document="a tail"),
        replace(one, references=("me", "you")),
    ]
    assert len({fingerprint([example]) for example in (one, *others)}) == 5
    assert fingerprint([one]) == fingerprint([replace(one, group="g")])
