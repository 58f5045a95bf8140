"""Which questions are taken, and that what is drawn is drawn evenly; the paper's numbers."""

import re
from dataclasses import replace

import pytest

from longfire.data.tokenizers import byte_tokenizer
from longfire.evaluation.metrics import Answered, average
from longfire.lab.downstream.brief import Brief, Room
from longfire.lab.downstream.exam import scored
from longfire.lab.downstream.questions import fingerprint, load_questions, mixtures_of, refuse_no_room, sample
from longfire.lab.reported import reported
from longfire.lab.scales import SCALES
from longfire.tasks import SUITES, TASKS, Example
from tests.lab.boxes import write_boxes
from tests.tasks.rows import write


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_boxes(tmp_path_factory.mktemp("data"))


def test_mixtures():
    assert [one.tasks for one in mixtures_of("scrolls")] == [(task,) for task in SUITES["scrolls"]]
    assert [one.tasks for one in mixtures_of("glue")] == [SUITES["glue"]]
    assert [one.tasks for one in mixtures_of("cb+rte+cb")] == [("cb", "rte")]


def test_train_dev_and_test(data):
    """A document is on one side, and a group with it."""
    found, missing = load_questions(["multirc"], data, to_train=True, with_dev=True)
    of = found["multirc"]
    assert (len(of.train) + len(of.dev), len(of.test), missing) == (25, 8, {})
    assert not {one.document for one in of.train} & {one.document for one in of.dev}
    kept, _ = load_questions(["multirc"], data, to_train=True)
    assert (len(kept["multirc"].train), kept["multirc"].dev) == (25, [])


def test_a_length_without_room_is_refused_and_the_one_that_is_named_suffices(data):
    of = load_questions(["narrative_qa"], data)[0]["narrative_qa"]
    with pytest.raises(ValueError, match="never cut, take up to") as error:
        refuse_no_room(of, byte_tokenizer(), [80, 1000], None)
    enough = int(re.search(r"at least (\d+)", str(error.value))[1])
    refuse_no_room(of, byte_tokenizer(), [enough], None)
    with pytest.raises(ValueError, match=f"at least {enough}"):
        refuse_no_room(of, byte_tokenizer(), [enough - 1], None)
    of.test[2] = replace(of.test[2], question="Why? " * 40)
    both = replace(of, dev=[replace(of.test[2], id=f"dev-{i}") for i in range(5)], split="test")
    with pytest.raises(ValueError, match="to test on: 128 tokens, of which 64 are") as error:
        refuse_no_room(both, byte_tokenizer(), [128], None)
    split = "1 of the 7 rows of the test split (validation-2) and 5 of the 5 rows of the train split"
    assert f"have no room for {split} (dev-0, dev-1, dev-2, …). Question and cue" in str(error.value)
    assert str(error.value).endswith(", or take those rows out of the file.")


def test_what_is_too_long_to_train_on(data):
    of = load_questions(["narrative_qa"], data, to_train=True)[0]["narrative_qa"]
    of.train[3] = replace(of.train[3], references=("tea", "moss and tea " * 20))
    with pytest.raises(ValueError, match="narrative_qa, to train on: 128 tokens have no room for 1 of") as error:
        refuse_no_room(of, byte_tokenizer(), [1000], 128)
    assert f" of the {len(of.train) + 1} rows of the train split ({of.train[3].id}). Question" in str(error.value)
    enough, given = re.search(
        r"at least (\d+) \(--length (\d+)\), or take those rows out of", str(error.value)
    ).groups()
    assert enough == given
    enough = int(enough)
    refuse_no_room(of, byte_tokenizer(), [1000], enough)
    with pytest.raises(ValueError, match=f"at least {enough}"):
        refuse_no_room(of, byte_tokenizer(), [1000], enough - 1)


def test_a_trial_reads_few_rows_ends_answers_early_and_leaves_out_what_has_no_room(tmp_path):
    short = [{"id": f"{i}", "input": f"Why {i}?\n\nBox {i}.", "output": "tea"} for i in range(6)]
    asked = {**short[0], "id": "asked", "input": f"{'Why? ' * 40}\n\nBox 6."}
    told = {**short[0], "id": "told", "input": "Why?\n\nBox 7.", "output": "moss " * 40}
    for split in ("train", "validation"):
        write(tmp_path / "narrative_qa" / f"{split}.jsonl", [asked, told, *short])
    how = {"to_train": True, "with_dev": True, "brief": Brief(rows=7, max_answer=16)}
    found, _ = load_questions(["narrative_qa"], tmp_path, **how, room=Room([byte_tokenizer()], 100))
    of = found["narrative_qa"]
    assert of.task.max_answer == 16
    assert sorted(one.id for one in [*of.train, *of.dev]) == ["0", "1", "2", "3", "4"]
    assert of.dev
    assert [one.id for one in of.test] == ["told", "0", "1", "2", "3", "4"]  # its answer is not to be learned
    refuse_no_room(of, byte_tokenizer(), [100], 100)
    with pytest.raises(ValueError, match="0 of the 7 rows of narrative_qa to train on have room in 20 tokens"):
        load_questions(["narrative_qa"], tmp_path, **how, room=Room([byte_tokenizer()], 20))
    with pytest.raises(FileNotFoundError, match="has none of these tasks whole"):
        load_questions(["narrative_qa"], tmp_path, **how, room=Room([byte_tokenizer()], 20), must=False)


@pytest.mark.parametrize("suite", SUITES)
def test_made_up_rows_have_room_at_the_scale_that_has_them(suite):
    scale = SCALES["smoke"]
    room = Room([byte_tokenizer()], 4 * 64)
    found, missing = load_questions(
        SUITES[suite], scale.data, to_train=True, with_dev=True, limit=scale.questions, brief=scale.brief, room=room
    )
    assert (list(found), missing) == (list(SUITES[suite]), {})
    for of in found.values():
        assert (len(of.train) + len(of.dev), len(of.test)) == (12, scale.questions)


def test_one_file_is_not_trained_on_and_tested_on_alike(data, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_bytes((data / "scrolls" / "narrative_qa" / "train.jsonl").read_bytes())
    assert load_questions(["narrative_qa"], file)[0]["narrative_qa"].test
    with pytest.raises(ValueError, match=r"mine.jsonl is one file, which would be trained on and tested on alike"):
        load_questions(["narrative_qa"], file, to_train=True)


def test_what_is_missing_is_said_or_refused(data):
    found, missing = load_questions(["narrative_qa", "qasper", "quality"], data, to_train=True, must=False)
    assert list(found) == ["narrative_qa"]
    assert missing == {
        "qasper": "the data has no train split of it",
        "quality": "the data has no train split of it",
    }
    with pytest.raises(FileNotFoundError, match="has no train split of qasper"):
        load_questions(["narrative_qa", "qasper"], data, to_train=True)
    with pytest.raises(FileNotFoundError, match="has none of these tasks whole: qasper, quality"):
        load_questions(["qasper", "quality"], data, to_train=True, must=False)


def test_one_document_cannot_be_divided(tmp_path, data):
    folder = tmp_path / "narrative_qa"
    folder.mkdir()
    text = (data / "scrolls" / "narrative_qa" / "train.jsonl").read_text().splitlines()[0]
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text(text)
    with pytest.raises(ValueError, match="too little to train on for a part of it to judge by: 1 questions"):
        load_questions(["narrative_qa"], tmp_path, to_train=True, with_dev=True)


def questions(count, per_group=1):
    return [Example(str(i), "?", "", ("a",), str(i // per_group)) for i in range(count)]


def test_samples_are_even():
    assert [one.id for one in sample(TASKS["cola"], questions(10), 4)] == ["0", "2", "5", "7"]
    assert len(sample(TASKS["cola"], questions(10), 20)) == len(sample(TASKS["cola"], questions(10), None)) == 10


def test_samples_of_groups_are_whole_groups():
    some = sample(TASKS["multirc"], questions(12, per_group=3), 6)
    assert [one.id for one in some] == ["0", "1", "2", "6", "7", "8"]
    assert [one.id for one in sample(TASKS["multirc"], questions(12, per_group=3), 1)] == ["0", "1", "2"]


def test_a_fingerprint_is_of_questions_documents_and_answers():
    one = Example("1", "who?", "a tale", ("me",))
    others = [
        Example("2", "who?", "a tale", ("me",)),
        Example("1", "how?", "a tale", ("me",)),
        Example("1", "who?", "a tail", ("me",)),
        Example("1", "who?", "a tale", ("me", "you")),
    ]
    assert len({fingerprint([example]) for example in (one, *others)}) == 5
    assert fingerprint([one]) == fingerprint([Example("1", "who?", "a tale", ("me",), "g")])


@pytest.mark.parametrize(("right", "near"), [(40, True), (58, True), (65, True), (90, False), (10, True)])
def test_chance_stands_beside_the_score(right, near):
    """60 of 100 labels are True, so who always says True has 60."""
    answered = []
    for i in range(100):
        label = "True" if i < 60 else "False"
        other = "False" if label == "True" else "True"
        answered.append(Answered(str(i), label if i % 100 < right else other, (label,), prompt_tokens=i))
    found = scored(TASKS["boolq"], answered)
    assert (found["score"], found["chance"], found["near_chance"]) == (right, 60.0, near)
    assert found["prompt_tokens"] == 49.5


@pytest.mark.parametrize(("right", "near"), [(12, True), (40, False)])
def test_guesses_among_options_are_near_chance(right, near):
    """Four options a question, each as often the right one; all are on one of twelve stories."""
    answered = []
    for i in range(48):
        options = tuple(f"hill {i}, {letter}" for letter in "ABCD")
        said = options[i % 4] if i * 7 % 48 < right else options[(i + 1) % 4]
        answered.append(Answered(str(i), said, (options[i % 4],), str(i // 4), options=options))
    found = scored(TASKS["quality"], answered)
    assert (found["chance"], found["near_chance"], "swapped" in found) == (25.0, near, False)


@pytest.mark.parametrize(("answers", "near"), [("own", False), ("another's", True), ("one for all", True)])
def test_answers_in_free_words_are_held_against_the_same_ones_elsewhere(answers, near):
    """Twelve stories with three questions each: who answers by the story is above who says what fits any."""
    answered = []
    for i in range(36):
        said = {"own": f"hill{i // 3} and river", "another's": f"dale{i} and river", "one for all": "the river"}
        answered.append(Answered(str(i), said[answers], (f"hill{i // 3}",), str(i // 3)))
    found = scored(TASKS["narrative_qa"], answered)
    assert found["chance"] is None
    assert found["swapped"] == 0
    assert found["near_chance"] == near
    alone = [one for one in answered if one.group == "0"]
    assert not {"swapped", "near_chance"} & set(scored(TASKS["narrative_qa"], alone))


@pytest.mark.parametrize("table", ["scrolls", "narrative_qa", "glue"])
def test_the_papers_averages_are_those_of_its_numbers(table):
    """To the last digit that is printed."""
    rows = reported(table)
    keys = [key for key in rows[0] if key not in ("size", "encoding", "label", "extended_to", "average")]
    assert len(keys) == {"scrolls": 7, "narrative_qa": 7, "glue": 15}[table]
    differing = []
    for row in rows:
        own = average(row, keys)
        if own is not None and row["average"] is not None and abs(own - row["average"]) > 0.006:
            differing.append((row["size"], row["label"], round(own, 3), row["average"]))
    assert differing == []


def test_the_papers_numbers():
    scrolls = {(row["size"], row["encoding"]): row for row in reported("scrolls")}
    assert scrolls["base", "fire"]["contract_nli"] == 82.93
    assert scrolls["large", "alibi"]["average"] == 16.58
    assert len(scrolls) == 15
    glue = {(row["size"], row["encoding"]): row for row in reported("glue")}
    assert glue["large", "fire"]["wsc"] == 72.12
    assert (glue["base", "fire-s"]["average"], glue["base", "fire-s"]["cb"]) == (71.04, None)
    stretched = [row for row in reported("narrative_qa") if row["encoding"] == "rope_pi"]
    assert [(row["extended_to"], row["32768"]) for row in stretched] == [(8192.0, 0.623), (32768.0, 6.767)]
    with pytest.raises(ValueError, match="Did you mean 'glue'"):
        reported("gleu")
