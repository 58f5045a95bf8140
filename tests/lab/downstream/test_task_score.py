"""Scores of a task: resumed tests, failures and baselines."""

import pytest

from longfire.cli import main
from longfire.evaluation.answers import prediction_line
from longfire.evaluation.metrics import Answered
from longfire.lab.downstream import task_score
from longfire.lab.downstream.task_score import answer_remaining, summarize
from longfire.tasks import TASKS, Example
from tests.lab.boxes import lines, record_in


def test_a_killed_test_resumes(place, tested, tmp_path, monkeypatch):
    """Answers so far are reused; a half-written line is answered again."""
    (at_once,) = tested.glob("test/rope-*/narrative_qa-96/predictions.jsonl")
    answer, asked = task_score.answer, []

    def killed(model, tokenizer, task, examples, *, save, **options):
        asked.append([example.id for example in examples])
        answer(model, tokenizer, task, examples[:3], save=save, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(task_score, "answer", killed)
    command = place.command("evaluate", "narrative_qa", ["rope"], tmp_path, "--length", "96")
    assert main(command) == 130
    (partial,) = tmp_path.glob("test/*/narrative_qa-96/*")
    assert len(lines(partial)) == 4
    partial.write_bytes(partial.read_bytes()[:-9])
    assert main(command) == 130
    monkeypatch.undo()
    assert main(command) == 0
    assert asked == [[f"validation-{i}" for i in range(first, 7)] for first in (0, 2)]
    assert sorted(path.name for path in partial.parent.iterdir()) == ["predictions.jsonl", "scores.json"]
    assert lines(partial.parent / "predictions.jsonl") == lines(at_once)


def test_partial_answers_to_other_questions_do_not_count(tmp_path):
    examples = [Example(str(i), "who?", "", ("me",)) for i in range(3)]
    file, asked = tmp_path / "partial.jsonl", []

    def answer_rest(rest, save):
        asked.append(len(rest))
        found = [Answered(one.id, "you", one.references, prompt_tokens=4) for one in rest]
        for one in found[:2]:
            save(prediction_line(one))
        return found

    for what in ({"length": 96}, {"length": 96}, {"length": 128}):
        found = answer_remaining(file, what, examples, answer_rest)
        assert [(one.id, one.prediction, one.prompt_tokens) for one in found] == [(str(i), "you", 4) for i in range(3)]
    assert asked == [3, 1, 3]
    file.write_bytes(b'{"length": 128}\n\0\0\0\n')
    answer_remaining(file, {"length": 128}, examples, answer_rest)
    assert asked[-1] == 3


def test_a_failed_test_is_recorded_and_the_others_continue(place, tmp_path, monkeypatch, capsys):
    answer = task_score.answer

    def failing(*arguments, length, **options):
        if length == 96:
            raise RuntimeError("no memory")
        return answer(*arguments, length=length, **options)

    monkeypatch.setattr(task_score, "answer", failing)
    options = ["--lengths", "96", "128", "--limit", "2"]
    assert main(place.command("evaluate", "narrative_qa", ["fire"], tmp_path, *options)) == 1
    first, second = record_in(tmp_path)["rows"][0]["scores"]
    assert first == {"task": "narrative_qa", "length": 96, "failed": "RuntimeError: no memory"}
    assert second["examples"] == 2
    assert "FIRE on narrative_qa at 96 failed: RuntimeError: no memory" in capsys.readouterr().out


@pytest.mark.parametrize(("correct", "near"), [(40, True), (58, True), (65, True), (90, False), (10, True)])
def test_chance_of_labels(correct, near):
    """60 of 100 labels are True, so always answering True scores 60."""
    answered = []
    for i in range(100):
        label = "True" if i < 60 else "False"
        other = "False" if label == "True" else "True"
        answered.append(Answered(str(i), label if i < correct else other, (label,), prompt_tokens=i))
    found = summarize(TASKS["boolq"], answered)
    assert (found["score"], found["chance"], found["near_chance"]) == (correct, 60.0, near)
    assert found["prompt_tokens"] == 49.5


@pytest.mark.parametrize(("correct", "near"), [(12, True), (40, False)])
def test_chance_among_options(correct, near):
    """Twelve stories, four options per question, each correct equally often."""
    answered = []
    for i in range(48):
        options = tuple(f"hill {i}, {letter}" for letter in "ABCD")
        said = options[i % 4] if i * 7 % 48 < correct else options[(i + 1) % 4]
        answered.append(Answered(str(i), said, (options[i % 4],), str(i // 4), options=options))
    found = summarize(TASKS["quality"], answered)
    assert (found["chance"], found["near_chance"], "swapped" in found) == (25.0, near, False)


@pytest.mark.parametrize(("answers", "near"), [("own", False), ("another's", True), ("constant", True)])
def test_free_form_answers_are_compared_with_swapped_ones(answers, near):
    """Twelve stories with three questions each: answers from the story beat generic ones."""
    answered = []
    for i in range(36):
        said = {"own": f"hill{i // 3} and river", "another's": f"dale{i} and river", "constant": "the river"}
        answered.append(Answered(str(i), said[answers], (f"hill{i // 3}",), str(i // 3)))
    found = summarize(TASKS["narrative_qa"], answered)
    assert found["chance"] is None
    assert found["swapped"] == 0
    assert found["near_chance"] == near
    alone = [one for one in answered if one.group == "0"]
    assert not {"swapped", "near_chance"} & set(summarize(TASKS["narrative_qa"], alone))
