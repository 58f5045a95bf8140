"""Fine-tuning and testing on tasks, from the command line to the tables: whole, resumed, failing, refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longfire.cli import main
from longfire.evaluation.answers import as_line
from longfire.evaluation.metrics import METRICS, Answered
from longfire.evaluation.seeds import are_seeds
from longfire.lab.downstream import exam as exam_module
from longfire.lab.downstream import part as part_module
from longfire.lab.downstream.entrants import entrants
from longfire.lab.downstream.resume import with_draft
from longfire.tasks import TASKS, Example
from tests.lab.boxes import lines, record_in, write_boxes
from tests.model.checkpoints import save_checkpoint
from tests.training.toys import checkpoint

ROOT = Path(__file__).parents[2]
QUICK = ["--recipe", "tiny", "--tracker", "none", "--steps", "6", "--set", "evaluate_every=3", "warmup=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data and checkpoints."""
    root = tmp_path_factory.mktemp("place")
    write_boxes(root / "data")
    for name in ("fire", "rope", "learned", "alibi"):
        checkpoint(root / name, name)
    checkpoint(root / "shared", "fire", share_position_encoding=True)
    return root


@pytest.fixture(scope="module")
def whole(place):
    """A task of SCROLLS with three checkpoints, one of them extended, tested at two lengths: the folder."""
    assert main(boxes(place, place / "whole")) == 0
    return place / "whole"


def boxes(place, out, *more):
    given = [str(place / "fire"), str(place / "shared"), f"{place / 'rope'}:rope_pi=128"]
    options = ["--data", str(place / "data"), "--out", str(out), "--test-lengths", "96", "128"]
    return ["finetune", "narrative_qa", *given, *options, *QUICK, *more]


def test_a_task_from_the_command_line_to_the_record(whole):
    record = record_in(whole)
    assert "interrupted" not in record
    assert record["setting"]["select"] == "dev"
    assert [row["label"] for row in record["rows"]] == ["FIRE", "FIRE-S", "RoPE-PI"]
    assert [row["extended_to"] for row in record["rows"]] == [None, None, 128]
    assert all(row["trained_length"] == 32 for row in record["rows"])
    for row in record["rows"]:
        (part,) = row["parts"]
        assert part["train_examples"] == {"narrative_qa": 22}  # two documents of 24 are kept to judge by
        assert part["judged_by"] == {"narrative_qa": 2}
        assert part["step"] in (3, 6)
        assert [(one["task"], one["length"], one["examples"]) for one in row["scores"]] == [
            ("narrative_qa", 96, 7),
            ("narrative_qa", 128, 7),
        ]
        model = json.loads((whole / part["run"] / "model" / "config.json").read_text())
        assert model["position_encoding"]["name"] == row["encoding"].removesuffix("-s")


def test_predictions_lie_beside_their_scores(whole):
    for row in record_in(whole)["rows"]:
        for one in row["scores"]:
            folder = whole / row["parts"][0]["run"] / "test" / f"narrative_qa-{one['length']}"
            answered = [
                Answered(line["id"], line["prediction"], tuple(line["references"]))
                for line in lines(folder / "predictions.jsonl")
            ]
            assert [line.id for line in answered] == [f"validation-{i}" for i in range(7)]
            assert METRICS["f1"](answered) == one["score"]
            assert json.loads((folder / "scores.json").read_text())["found"] == one


def test_scores_by_length_are_a_picture_and_a_table(whole, place, capsys):
    assert (whole / "contexts-narrative_qa.png").read_bytes().startswith(b"\x89PNG")
    assert main(boxes(place, whole)) == 0
    shown = capsys.readouterr().out
    header = next(line for line in shown.splitlines() if line.startswith("NQA, F1 at"))
    assert header.split("at")[1].split() == ["96", "128", "(fine-tuned)"]
    assert "models of 3" in shown
    assert "recipe tiny: 6 steps of 8 × at most 128 tokens" in shown


def written(folder):
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name in ("model.safetensors", "scores.json")
    }


def test_what_is_done_is_not_done_again(whole, place, monkeypatch):
    """But what was not, is: a score that was lost, a checkpoint that is new."""
    before, scores = written(whole), [row["scores"] for row in record_in(whole)["rows"]]
    lost = next(path for path in before if "rope" in str(path) and path.name == "scores.json")
    lost.unlink()
    asked = []
    answer = exam_module.answer
    monkeypatch.setattr(exam_module, "answer", lambda *a, **o: asked.append(o["length"]) or answer(*a, **o))
    assert main(boxes(place, whole)) == 0
    assert asked == [int(lost.parent.name.split("-")[1])]
    after = written(whole)
    assert {path: when for path, when in after.items() if path != lost} == {
        path: when for path, when in before.items() if path != lost
    }
    assert [row["scores"] for row in record_in(whole)["rows"]] == scores


def test_another_experiment_in_the_same_folder_is_refused(whole, place, capsys):
    for change, said in (
        (["--seed", "1"], "seed: 0 there, 1 here"),
        (["--select", "last"], "select: 'dev' there, 'last' here"),
    ):
        assert main(boxes(place, whole, *change)) == 2
        shown = capsys.readouterr().err
        assert f"holds another experiment ({said})" in shown
        assert shown.count("\n") == 1


def test_a_checkpoint_done_again_leaves_the_others_rows(place, whole, tmp_path, monkeypatch):
    """And if it fails now, it has no scores of before."""
    out = shutil.copytree(whole, tmp_path / "out")
    rows = record_in(whole)["rows"]
    command = [one for one in boxes(place, out) if "rope" not in one and "shared" not in one]

    def failing(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr(part_module, "finetune", failing)
    assert main(command) == 1
    first, *others = record_in(out)["rows"]
    assert (first["scores"], first["parts"][0]["failed"]) == ([], "RuntimeError: no memory")
    assert others == rows[1:]
    monkeypatch.undo()
    assert main(command) == 0
    assert [row["scores"] for row in record_in(out)["rows"]] == [row["scores"] for row in rows]


def test_a_mixture_of_glue(place, capsys):
    out = place / "glue"
    options = ["--data", str(place / "data"), "--out", str(out), "--select", "validation", *QUICK]
    assert main(["finetune", "glue", str(place / "alibi"), *options]) == 0
    shown = capsys.readouterr().out
    record = record_in(out)
    (row,) = record["rows"]
    (part,) = row["parts"]
    assert part["train_examples"] == {"cola": 25, "rte": 25, "multirc": 25}  # nothing is kept back
    assert part["judged_by"] == {"cola": 8, "rte": 8, "multirc": 8}
    found = {one["task"]: one for one in row["scores"]}
    assert list(found) == ["cola", "rte", "multirc"]
    assert part["score"] == pytest.approx(sum(one["score"] for one in found.values()) / 3)
    assert (found["multirc"]["groups"], found["cola"]["chance"]) == (4, 50.0)
    assert found["rte"]["near_chance"] == (found["rte"]["interval"][0] <= found["rte"]["chance"])
    assert set(record["setting"]["missing"]) == {*record["setting"]["tasks"]} - {"cola", "rte", "multirc"}
    assert "boolq is left out: the data has no train split of it." in " ".join(shown.split())
    assert "on this very validation split, as in the paper" in " ".join(shown.split())
    assert "Average" in shown
    assert " of 3" in shown


@pytest.mark.parametrize(("select", "kept"), [("loss", 22), ("last", 24)])
def test_other_ways_to_choose(select, kept, place, tmp_path):
    options = ["--data", str(place / "data"), "--out", str(tmp_path), "--select", select, *QUICK, "--limit", "2"]
    assert main(["finetune", "narrative_qa", str(place / "rope"), *options]) == 0
    (part,) = record_in(tmp_path)["rows"][0]["parts"]
    assert part["train_examples"] == {"narrative_qa": kept}
    assert (part["score"] is None) == (select == "last")
    assert record_in(tmp_path)["rows"][0]["scores"][0]["examples"] == 2


def test_a_run_that_was_judged_by_other_questions_is_another(place, tmp_path, capsys):
    options = ["--data", str(place / "data"), "--out", str(tmp_path), "--select", "validation", *QUICK, "--limit"]
    assert main(["finetune", "narrative_qa", str(place / "rope"), *options, "2"]) == 0
    assert main(["finetune", "narrative_qa", str(place / "rope"), *options, "3"]) == 1
    assert "holds another run" in " ".join(capsys.readouterr().out.split())


def test_a_failure_costs_the_others_nothing(place, tmp_path, monkeypatch, capsys):
    finetune = part_module.finetune

    def failing(recipe, start, rows, run, **options):
        if "alibi" in str(run):
            raise RuntimeError("no memory\nand more")
        return finetune(recipe, start, rows, run, **options)

    monkeypatch.setattr(part_module, "finetune", failing)
    given = [str(place / "alibi"), str(place / "rope")]
    command = ["finetune", "narrative_qa", *given, "--data", str(place / "data"), "--out", str(tmp_path), *QUICK]
    assert main(command) == 1
    first, second = record_in(tmp_path)["rows"]
    assert first["parts"][0]["failed"] == "RuntimeError: no memory"
    assert first["scores"] == []
    assert second["scores"][0]["examples"] == 7
    assert "ALiBi on narrative_qa failed: RuntimeError: no memory" in capsys.readouterr().out
    monkeypatch.setattr(part_module, "finetune", finetune)
    assert main(command) == 0
    assert "failed" not in record_in(tmp_path)["rows"][0]["parts"][0]


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(stop, status, place, tmp_path, monkeypatch, capsys):
    def stopped(*_, **__):
        os.kill(os.getpid(), stop)

    monkeypatch.setattr(part_module, "finetune", stopped)
    options = ["--data", str(place / "data"), "--out", str(tmp_path), *QUICK]
    assert main(["finetune", "narrative_qa", str(place / "rope"), *options]) == status
    assert record_in(tmp_path)["interrupted"] is True
    assert "It was interrupted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["narrative_qa", "{}/fire", "{}/learned"], "/learned: the model has 32 positions, too few"),
        (["narrativ_qa", "{}/fire"], "there is no task 'narrativ_qa'. Did you mean 'narrative_qa'"),
        (["narrative_qa+glue", "{}/fire"], "there is no task 'glue' to join. "),
        (["qasper", "{}/fire"], "has no train split of qasper"),
        (["narrative_qa", "{}/nowhere"], "there is no folder"),
        (["narrative_qa", "{}/fire", "{}/fire"], "is there twice"),
        (["narrative_qa", "{}/fire:rope_pi=128"], "a checkpoint with 'fire' cannot become 'rope_pi'"),
        (["narrative_qa", "{}/rope:ropepi=128"], "is extended to cannot be 'ropepi'. Did you mean 'rope_pi'"),
        (["narrative_qa", "{}/rope:yarn=far"], "must be a whole number, not 'far'"),
        (["narrative_qa", "{}/rope:yarn=16"], "16 is not above 32"),
        (["narrative_qa", "{}/fire", "--length", "64"], "answers may take 64 of them. Give a greater length"),
        (
            ["narrative_qa", "{}/fire", "--length", "80"],
            "80 tokens, of which 64 are for the answer, have no room for 7 of the 7",
        ),
        (["narrative_qa", "{}/fire", "--recipe", "huge"], "no fine-tuning recipe named 'huge'"),
        (["narrative_qa", "{}/fire", "--select", "best"], "select cannot be 'best'"),
        (["narrative_qa", "{}/fire", "--data", "nowhere"], "there is no file or folder nowhere"),
        (["narrative_qa", "{}/fire", "--set", "stpes=3"], "a recipe has no 'stpes'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(arguments, message, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--recipe", "tiny", "--data", str(place / "data"), "--out", str(tmp_path / "out")]
    command = [argument.replace("{}", str(place)) for argument in arguments]
    assert main(["finetune", command[0], *options, *command[1:]]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_all_tasks_without_room_are_named(place, tmp_path, capsys):
    options = ["--data", str(place / "data"), "--out", str(tmp_path / "out"), "--recipe", "tiny", "--length", "40"]
    assert main(["finetune", "cola+rte+narrative_qa+multirc", str(place / "fire"), *options]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "longfire: 4 tasks have no room:"
    assert [re.search("cola|rte|narrative_qa|multirc", line)[0] for line in others] == [
        "cola", "rte", "narrative_qa", "multirc",
    ]  # fmt: skip


def test_others_models_are_not_fine_tuned(place, tmp_path, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=128, n_embd=16, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    assert main(["finetune", "narrative_qa", str(tmp_path), "--data", str(place / "data"), "--recipe", "tiny"]) == 2
    assert "is a 'gpt2' model, and fine-tuning takes longfire's own" in capsys.readouterr().err
    assert main(["evaluate", "narrative_qa", str(tmp_path), "--data", str(place / "data"), "--length", "128"]) == 2
    assert "has no tokenizer. Save the model's there" in capsys.readouterr().err


def test_what_fire_began_as_is_recorded(place, tmp_path):
    """Where a run says so; what has no start did not begin as anything, nor did what went on from a checkpoint."""
    checkpoint(tmp_path / "far", {"name": "fire", "init_L": 8.0, "horizon": 32})
    checkpoint(tmp_path / "own", {"name": "fire", "init_L": 8.0, "init": "kerple_log"})
    found = {"fire": {}, "rope": {}, "shared": {"init_from": "runs/one"}}
    for name, recipe in found.items():
        shutil.copytree(place / name, tmp_path / name / "model")
        (tmp_path / name / "done.json").write_text(json.dumps({"recipe": {"start": "kerple_log", **recipe}}))
    abouts = [one.about() for one in entrants([str(tmp_path / name) for name in (*found, "far", "own")])]
    assert [about["start"] for about in abouts] == ["kerple_log", None, None, None, "kerple_log"]
    assert [about["horizon"] for about in abouts] == [None, None, None, 32, None]
    assert abouts[-1]["options"] == {"init_L": 8.0}  # so that rows from before `init` are like it


def test_a_dry_run(place, tmp_path, capsys):
    options = ["--data", str(place / "data"), "--out", str(tmp_path / "out"), "--recipe", "tiny", "--dry-run"]
    assert main(["finetune", "cola+multirc", str(place / "fire"), *options]) == 0
    shown = capsys.readouterr().out
    assert "steps              30" in shown
    assert "checkpoint         FIRE: " in shown
    assert any(line.split() == ["cola+multirc", "multirc", "21", "4", "8"] for line in shown.splitlines())
    assert not (tmp_path / "out").exists()


def test_both_suites(place, tmp_path, capsys):
    """What is there of each, in a folder of its own; the recipe's name is that of the suite and of the size."""
    options = ["--data", str(place / "data"), "--out", str(tmp_path / "out"), "--recipe", "small", "--dry-run"]
    assert main(["finetune", "all", str(place / "fire"), *options]) == 0
    shown = capsys.readouterr().out
    assert "scrolls-small" in shown
    assert "glue-small" in shown
    assert "qasper is left out: the data has no train split of it." in shown
    assert f"to be written to {tmp_path / 'out' / 'glue'}" in shown


def test_checkpoints_are_tested_as_they_are(place, whole, tmp_path, capsys):
    """At several lengths; a run's folder knows where it was fine-tuned, and its answers are those of before."""
    runs = [whole / row["parts"][0]["run"] for row in record_in(whole)["rows"]]
    options = ["--data", str(place / "data"), "--out", str(tmp_path), "--lengths", "96", "128", "--limit", "3"]
    assert main(["evaluate", "narrative_qa", str(runs[0]), f"{place / 'rope'}:yarn=256", *options]) == 0
    record = record_in(tmp_path)
    tuned, stretched = record["rows"]
    assert (tuned["finetuned_length"], tuned["finetuned_on"]) == (128, ["narrative_qa"])
    how = {"name": "tiny", "steps": 6, "batch": 8, "seed": 0, "select": "dev"}
    assert (tuned["finetuned"], stretched["finetuned"]) == (how, None)
    assert (stretched["label"], stretched["extended_to"]) == ("YaRN", 256)
    assert (tmp_path / "contexts-narrative_qa.png").is_file()
    before = lines(runs[0] / "test" / "narrative_qa-96" / "predictions.jsonl")
    (after,) = tmp_path.glob("test/fire-*/narrative_qa-96-limit-3/predictions.jsonl")
    assert lines(after) == [before[0], before[2], before[4]]  # drawn evenly
    capsys.readouterr()
    assert (
        main(["evaluate", "scrolls", str(runs[0]), "--data", str(place / "data"), "--out", str(tmp_path / "all")]) == 2
    )
    assert "qasper's answers may take 128 of them" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tested(place):
    """Two checkpoints as they are, on all questions: the folder, to be copied."""
    evaluated(place, place / "tested", "fire", "rope")
    return place / "tested"


def evaluated(place, out, *given, length="96", more=()):
    folders = [str(place / one) for one in given]
    command = ["evaluate", "narrative_qa", *folders, "--data", str(place / "data"), "--out", str(out)]
    assert main([*command, "--length", length, *more]) == 0
    return record_in(out)


def scores_in(record):
    return {
        row["label"]: {(one["task"], one["length"]): one["examples"] for one in row["scores"]} for row in record["rows"]
    }


def test_later_commands_add_to_the_record(place, tested, tmp_path, capsys):
    """Other checkpoints and lengths; what is asked again is renewed in its place."""
    out = shutil.copytree(tested, tmp_path / "out")
    assert evaluated(place, out, "fire")["rows"] == record_in(tested)["rows"]
    added = evaluated(place, out, "alibi", "rope", length="128")
    at_96, at_128 = {("narrative_qa", 96): 7}, {("narrative_qa", 128): 7}
    assert scores_in(added) == {"FIRE": at_96, "RoPE": {**at_96, **at_128}, "ALiBi": at_128}
    assert added["setting"]["lengths"] == [96, 128]
    assert "interrupted" not in added
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ALiBi  ")]
    assert line.split()[:2] == ["ALiBi", "–"]


def test_rows_that_later_commands_add_are_told_apart(place, tested, tmp_path):
    shutil.copytree(tested, tmp_path / "out")
    checkpoint(tmp_path / "other", "rope", initializer_range=0.1)
    labels = [row["label"] for row in evaluated(place, tmp_path / "out", tmp_path / "other")["rows"]]
    assert labels == ["FIRE", f"RoPE ({place / 'rope'})", f"RoPE ({tmp_path / 'other'})"]
    checkpoint(tmp_path / "other", "rope", initializer_range=0.3)  # other weights in its place are not added to it
    again = evaluated(place, tmp_path / "out", tmp_path / "other", length="128")["rows"]
    assert [[one["length"] for one in row["scores"]] for row in again] == [[96], [96], [128]]


def test_a_part_of_the_questions_leaves_the_test_on_all_alone(place, tested, tmp_path, capsys):
    out = shutil.copytree(tested, tmp_path / "out")
    kept = {path: path.read_bytes() for path in out.glob("test/*/*/*")}
    assert len(kept) == 4
    few = evaluated(place, out, "rope", more=["--limit", "2"])
    assert scores_in(few) == {"RoPE": {("narrative_qa", 96): 2}}
    assert "was of other questions (limit: None). It is kept as downstream-before.json" in capsys.readouterr().err
    assert json.loads((out / "downstream-before.json").read_text()) == record_in(tested)
    train = evaluated(place, out, "rope", more=["--split", "train"])
    assert scores_in(train) == {"RoPE": {("narrative_qa", 96): 24}}
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_failure_of_before_is_not_this_command_s(place, tested, tmp_path):
    out, record = shutil.copytree(tested, tmp_path / "out"), record_in(tested)
    record["rows"][0]["scores"] = [{"task": "narrative_qa", "length": 96, "failed": "RuntimeError: no memory"}]
    (out / "downstream.json").write_text(json.dumps(record))
    assert "failed" in evaluated(place, out, "rope")["rows"][0]["scores"][0]


def test_a_test_that_is_killed_goes_on(place, tested, tmp_path, monkeypatch):
    """With what was answered; a line that was half written is answered again."""
    (at_once,) = tested.glob("test/rope-*/narrative_qa-96/predictions.jsonl")
    answer, asked = exam_module.answer, []

    def killed(model, tokenizer, task, examples, *, save, **options):
        asked.append([example.id for example in examples])
        answer(model, tokenizer, task, examples[:3], save=save, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(exam_module, "answer", killed)
    command = ["evaluate", "narrative_qa", str(place / "rope"), "--data", str(place / "data"), "--out", str(tmp_path)]
    command += ["--length", "96"]
    assert main(command) == 130
    (draft,) = tmp_path.glob("test/*/narrative_qa-96/*")
    assert len(lines(draft)) == 4
    draft.write_bytes(draft.read_bytes()[:-9])
    assert main(command) == 130
    monkeypatch.undo()
    assert main(command) == 0
    assert asked == [[f"validation-{i}" for i in range(first, 7)] for first in (0, 2)]
    assert sorted(path.name for path in draft.parent.iterdir()) == ["predictions.jsonl", "scores.json"]
    assert lines(draft.parent / "predictions.jsonl") == lines(at_once)


def test_a_draft_of_other_questions_does_not_count(tmp_path):
    examples = [Example(str(i), "who?", "", ("me",)) for i in range(3)]
    file, asked = tmp_path / "draft.jsonl", []

    def answer_rest(rest, save):
        asked.append(len(rest))
        found = [Answered(one.id, "you", one.references, prompt_tokens=4) for one in rest]
        for one in found[:2]:
            save(as_line(one))
        return found

    for what in ({"length": 96}, {"length": 96}, {"length": 128}):
        found = with_draft(file, what, examples, answer_rest)
        assert [(one.id, one.prediction, one.prompt_tokens) for one in found] == [(str(i), "you", 4) for i in range(3)]
    assert asked == [3, 1, 3]
    file.write_bytes(b'{"length": 128}\n\0\0\0\n')
    with_draft(file, {"length": 128}, examples, answer_rest)
    assert asked[-1] == 3


def test_the_record_knows_the_text_of_pretraining(place, tmp_path):
    folder = shutil.copytree(place / "fire", tmp_path / "fire")
    assert entrants([folder])[0].about()["corpus"] is None
    (folder / "corpus.json").write_text('{"name": "books"}')
    assert entrants([folder])[0].about()["corpus"] == "books"


def test_a_suite_as_it_is_with_anothers_model(place, tmp_path, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    save_checkpoint(tmp_path / "gpt", "nope")
    GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=128, n_embd=16, n_layer=1, n_head=2)).save_pretrained(
        tmp_path / "gpt"
    )
    options = ["--data", str(place / "data"), "--out", str(tmp_path / "out"), "--length", "128", "--limit", "2"]
    assert main(["evaluate", "glue", str(tmp_path / "gpt"), *options]) == 0
    (row,) = record_in(tmp_path / "out")["rows"]
    assert (row["label"], row["encoding"]) == ("gpt", "gpt2")
    assert len(row["scores"]) == 3
    capsys.readouterr()
    assert main(["evaluate", "glue", str(tmp_path / "gpt"), *options, "--length", "129"]) == 2
    assert "128 learned positions" in capsys.readouterr().err


def test_labels_are_told_apart(place, tmp_path):
    checkpoint(tmp_path / "other", "fire", initializer_range=0.1)
    checkpoint(tmp_path / "near", {"name": "fire", "init_L": 8.0})
    given = [place / "fire", tmp_path / "other", f"{place / 'rope'}:rope_pi=64", f"{place / 'rope'}:rope_pi=128"]
    found = entrants([*given, place / "rope", tmp_path / "near"])
    assert [one.label for one in found] == [
        f"FIRE ({place / 'fire'})", f"FIRE ({tmp_path / 'other'})", "RoPE-PI 64", "RoPE-PI 128", "RoPE",
        "FIRE (init_L=8.0)",
    ]  # fmt: skip
    assert len({one.key for one in found}) == 6


def test_labels_name_what_fire_is_without(place, tmp_path):
    checkpoint(tmp_path / "log", {"name": "fire", "threshold": None})
    checkpoint(tmp_path / "neither", {"name": "fire", "log": False, "threshold": None})
    found = entrants([tmp_path / "neither", tmp_path / "log", place / "fire"])
    assert [one.label for one in found] == ["FIRE (log=False, threshold=None)", "FIRE (threshold=None)", "FIRE"]
    assert entrants([tmp_path / "log"])[0].label == "FIRE (threshold=None)"  # beside no other, too


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"seed": 1}, True),
        ({"seed": 0}, False),
        ({"seed": None}, False),
        ({"seed": 1, "options": {"init_L": 16.0, "horizon": 64}}, False),
        ({"seed": 1, "start": "alibi"}, False),
        ({"seed": 1, "trained_length": 128}, False),
        ({"seed": 1, "finetuned": {"seed": 1}}, True),
        ({"seed": 1, "finetuned": {"seed": 0, "steps": 10}}, False),
    ],
)
def test_seeds_are_alike_in_all_but_the_seed(place, changes, same):
    about = {**entrants([place / "fire"])[0].about(), "options": {"init_L": 16.0}, "seed": 0}
    assert are_seeds([about, {**about, **changes}]) == same


def test_two_processes_answer_a_share_each(place, whole, tmp_path):
    """And reach what one does: testing alone; training, judging and testing."""
    script = tmp_path / "both.py"
    given = [str(place / "fire"), "--data", str(place / "data")]
    commands = [
        ["evaluate", "narrative_qa", *given, "--length", "128", "--out", str(tmp_path / "evaluated")],
        ["finetune", "narrative_qa", *given, "--out", str(tmp_path / "tuned"), *QUICK],
    ]
    script.write_text(f"from longfire.cli import main\nfor command in {commands}: assert main(command) == 0\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(torchrun, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("FIRE: a model of") == 2  # from the first process alone
    assert main([*commands[0][:-1], str(tmp_path / "alone")]) == 0
    for two, one in (
        (tmp_path.glob("evaluated/test/*/*/predictions.jsonl"), tmp_path.glob("alone/test/*/*/predictions.jsonl")),
        (
            tmp_path.glob("tuned/runs/*/*/test/*/predictions.jsonl"),
            whole.glob("runs/fire-[0-9a-f]*/*/test/*-128/pred*"),
        ),
    ):
        assert lines(next(two)) == lines(next(one))


def test_help_names_the_tasks(capsys):
    for command in ("finetune", "evaluate"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert set(TASKS) <= set(shown.replace("(", " ").replace(",", " ").replace(":", " ").replace(")", " ").split())


def test_a_test_that_fails_is_said_and_the_others_are_done(place, tmp_path, monkeypatch, capsys):
    answer = exam_module.answer

    def failing(*arguments, length, **options):
        if length == 96:
            raise RuntimeError("no memory")
        return answer(*arguments, length=length, **options)

    monkeypatch.setattr(exam_module, "answer", failing)
    options = ["--data", str(place / "data"), "--out", str(tmp_path), "--lengths", "96", "128", "--limit", "2"]
    assert main(["evaluate", "narrative_qa", str(place / "fire"), *options]) == 1
    first, second = record_in(tmp_path)["rows"][0]["scores"]
    assert first == {"task": "narrative_qa", "length": 96, "failed": "RuntimeError: no memory"}
    assert second["examples"] == 2
    assert "FIRE on narrative_qa at 96 failed: RuntimeError: no memory" in capsys.readouterr().out
