"""Fine-tuning and testing on tasks, from the command line to the record."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from longfire.cli import main
from longfire.evaluation.metrics import METRICS, Answered
from longfire.lab.downstream import run, task_score
from longfire.tasks import TASKS
from tests.lab.boxes import lines, record_in
from tests.lab.downstream.conftest import QUICK, THREE, TWO_LENGTHS
from tests.model.checkpoints import save_checkpoint

ROOT = Path(__file__).parents[3]


def test_a_task_from_the_command_line_to_the_record(tuned):
    record = record_in(tuned)
    assert "interrupted" not in record
    assert record["setting"]["select"] == "dev"
    assert [row["label"] for row in record["rows"]] == ["FIRE", "FIRE-S", "RoPE-PI"]
    assert [row["extended_to"] for row in record["rows"]] == [None, None, 128]
    assert all(row["trained_length"] == 32 for row in record["rows"])
    for row in record["rows"]:
        (part,) = row["parts"]
        assert part["train_examples"] == {"narrative_qa": 22}  # two documents of 24 are held out
        assert part["judged_by"] == {"narrative_qa": 2}
        assert part["step"] in (3, 6)
        assert [(one["length"], one["examples"]) for one in row["scores"]] == [(96, 7), (128, 7)]
        model = json.loads((tuned / part["run"] / "model" / "config.json").read_text())
        assert model["position_encoding"]["name"] == row["encoding"].removesuffix("-s")


def test_predictions_are_next_to_their_scores(tuned):
    for row in record_in(tuned)["rows"]:
        for one in row["scores"]:
            folder = tuned / row["parts"][0]["run"] / "test" / f"narrative_qa-{one['length']}"
            answered = [
                Answered(line["id"], line["prediction"], tuple(line["references"]))
                for line in lines(folder / "predictions.jsonl")
            ]
            assert [line.id for line in answered] == [f"validation-{i}" for i in range(7)]
            assert METRICS["f1"](answered) == one["score"]
            assert json.loads((folder / "scores.json").read_text())["found"] == one


def written(folder):
    names = ("model.safetensors", "scores.json")
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name in names}


def test_completed_work_is_skipped(tuned, place, monkeypatch, capsys):
    """A lost score is computed again; several lengths give a plot and a table."""
    before, scores = written(tuned), [row["scores"] for row in record_in(tuned)["rows"]]
    lost = next(path for path in before if "rope" in str(path) and path.name == "scores.json")
    lost.unlink()
    asked = []
    answer = task_score.answer
    monkeypatch.setattr(task_score, "answer", lambda *a, **o: asked.append(o["length"]) or answer(*a, **o))
    assert place.finetune("narrative_qa", THREE, tuned, *TWO_LENGTHS) == 0
    assert asked == [int(lost.parent.name.split("-")[1])]
    after = written(tuned)
    assert {path for path in after if after[path] != before[path]} == {lost}
    assert [row["scores"] for row in record_in(tuned)["rows"]] == scores
    assert (tuned / "contexts-narrative_qa.png").read_bytes().startswith(b"\x89PNG")
    header = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("NQA, F1 at"))
    assert header.split("at")[1].split() == ["96", "128", "(fine-tuned)"]


@pytest.mark.parametrize(
    ("change", "difference"),
    [(["--seed", "1"], "seed: 0 there, 1 here"), (["--select", "last"], "select: 'dev' there, 'last' here")],
)
def test_a_different_experiment_in_the_folder_is_refused(change, difference, place, tuned, capsys):
    assert place.finetune("narrative_qa", THREE, tuned, *TWO_LENGTHS, *change) == 2
    shown = capsys.readouterr().err
    assert difference in shown
    assert shown.count("\n") == 1


def test_a_mixture_of_glue(place, tmp_path, capsys):
    assert place.finetune("glue", ["alibi"], tmp_path, "--select", "validation") == 0
    shown = capsys.readouterr().out
    record = record_in(tmp_path)
    (row,) = record["rows"]
    (part,) = row["parts"]
    assert part["train_examples"] == {"cola": 25, "rte": 25, "multirc": 25}  # nothing is held out
    assert part["judged_by"] == {"cola": 8, "rte": 8, "multirc": 8}
    found = {one["task"]: one for one in row["scores"]}
    assert list(found) == ["cola", "rte", "multirc"]
    assert part["score"] == pytest.approx(sum(one["score"] for one in found.values()) / 3)
    assert (found["multirc"]["groups"], found["cola"]["chance"]) == (4, 50.0)
    assert found["rte"]["near_chance"] == (found["rte"]["interval"][0] <= found["rte"]["chance"])
    assert set(record["setting"]["missing"]) == {*record["setting"]["tasks"]} - {"cola", "rte", "multirc"}
    assert "no train split" in record["setting"]["missing"]["boolq"]
    assert "Average" in shown
    assert " of 3" in shown


@pytest.mark.parametrize(("select", "kept"), [("loss", 22), ("last", 24)])
def test_other_ways_to_select(select, kept, place, tmp_path):
    assert place.finetune("narrative_qa", ["rope"], tmp_path, "--select", select, "--limit", "2") == 0
    (row,) = record_in(tmp_path)["rows"]
    assert row["parts"][0]["train_examples"] == {"narrative_qa": kept}
    assert (row["parts"][0]["score"] is None) == (select == "last")
    assert row["scores"][0]["examples"] == 2


def test_a_failure_leaves_the_other_rows_alone(place, tuned, tmp_path, monkeypatch, capsys):
    """A row that fails loses its earlier scores; the next command tries again."""
    out = shutil.copytree(tuned, tmp_path / "out")
    rows = record_in(tuned)["rows"]
    finetune = run.finetune

    def failing(recipe, start, rows, folder, **options):
        if "fire-s" not in str(folder):
            raise RuntimeError("no memory\nand more")
        return finetune(recipe, start, rows, folder, **options)

    monkeypatch.setattr(run, "finetune", failing)
    options = ["narrative_qa", ["fire", "shared"], out, *TWO_LENGTHS]
    assert place.finetune(*options) == 1
    assert "FIRE on narrative_qa failed: RuntimeError: no memory" in capsys.readouterr().out
    first, second, third = record_in(out)["rows"]
    assert (first["scores"], first["parts"][0]["failed"]) == ([], "RuntimeError: no memory")
    assert (second["scores"], third) == (rows[1]["scores"], rows[2])
    monkeypatch.undo()
    assert place.finetune(*options) == 0
    assert "failed" not in record_in(out)["rows"][0]["parts"][0]
    assert [row["scores"] for row in record_in(out)["rows"]] == [row["scores"] for row in rows]


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(stop, status, place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "finetune", lambda *_, **__: os.kill(os.getpid(), stop))
    assert place.finetune("narrative_qa", ["rope"], tmp_path) == status
    assert record_in(tmp_path)["interrupted"] is True
    assert "interrupted" in capsys.readouterr().out


def test_testing_without_finetuning(place, tuned, tmp_path, capsys):
    """The default length is the fine-tuning length, and the answers are the same as in that run."""
    runs = [tuned / row["parts"][0]["run"] for row in record_in(tuned)["rows"]]
    options = ["--lengths", "96", "128", "--limit", "3"]
    assert main(place.command("evaluate", "narrative_qa", [runs[0], "rope:yarn=256"], tmp_path, *options)) == 0
    finetuned, extended = record_in(tmp_path)["rows"]
    assert (finetuned["finetuned_length"], finetuned["finetuned_on"]) == (128, ["narrative_qa"])
    how = {"name": "tiny", "steps": 6, "batch_size": 8, "seed": 0, "select": "dev"}
    assert (finetuned["finetuned"], extended["finetuned"]) == (how, None)
    assert (extended["label"], extended["extended_to"]) == ("YaRN", 256)
    assert (tmp_path / "contexts-narrative_qa.png").is_file()
    before = lines(runs[0] / "test" / "narrative_qa-96" / "predictions.jsonl")
    (after,) = tmp_path.glob("test/fire-*/narrative_qa-96-limit-3/predictions.jsonl")
    assert lines(after) == [before[0], before[2], before[4]]  # evenly spaced
    capsys.readouterr()
    assert main(place.command("evaluate", "scrolls", runs[:1], tmp_path / "all")) == 2
    assert "qasper: a length of 128 is too short" in capsys.readouterr().err  # the length of fine-tuning


def test_a_suite_with_a_gpt2_model(place, tmp_path, capsys):
    save_checkpoint(tmp_path / "gpt", "nope")
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=128, n_embd=16, n_layer=1, n_head=2))
    gpt2.save_pretrained(tmp_path / "gpt")
    command = place.command("evaluate", "glue", [tmp_path / "gpt"], tmp_path / "out", "--limit", "2", "--length")
    assert main([*command, "128"]) == 0
    (row,) = record_in(tmp_path / "out")["rows"]
    assert (row["label"], row["encoding"]) == ("gpt", "gpt2")
    assert len(row["scores"]) == 3
    capsys.readouterr()
    assert main([*command, "129"]) == 2
    assert "128 learned positions" in capsys.readouterr().err


def test_two_processes_answer_a_share_each(place, tuned, tmp_path):
    """The results are those of one process, with and without fine-tuning."""
    script = tmp_path / "both.py"
    commands = [
        place.command("evaluate", "narrative_qa", ["fire"], tmp_path / "evaluated", "--length", "128"),
        place.command("finetune", "narrative_qa", ["fire"], tmp_path / "tuned", *QUICK),
    ]
    script.write_text(f"from longfire.cli import main\nfor command in {commands}: assert main(command) == 0\n")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    shared |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, script],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (first, first_err), (second, second_err) = (process.communicate(timeout=240) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first_err[-3000:] + second_err[-3000:]
    assert (first.count("FIRE: a model with"), second.count("FIRE: a model with")) == (2, 0)
    place.evaluate(tmp_path / "alone", "fire", length="128")
    for two, one in (
        (tmp_path.glob("evaluated/test/*/*/pred*"), tmp_path.glob("alone/test/*/*/pred*")),
        (tmp_path.glob("tuned/runs/*/*/test/*/pred*"), tuned.glob("runs/fire-[0-9a-f]*/*/test/*-128/pred*")),
    ):
        assert lines(next(two)) == lines(next(one))


def test_help_names_the_tasks(capsys):
    for command in ("finetune", "evaluate"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert set(TASKS) <= set(shown.replace("(", " ").replace(",", " ").replace(":", " ").replace(")", " ").split())
