"""Bad requests are refused before anything is trained or written."""

import re

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from longfire.cli import main


@pytest.mark.parametrize(
    ("task", "names", "more", "message"),
    [
        ("narrative_qa", ["fire", "learned"], [], "/learned: the model has 32 learned positions"),
        ("narrativ_qa", ["fire"], [], "no task 'narrativ_qa'. Did you mean 'narrative_qa'"),
        ("narrative_qa+glue", ["fire"], [], "no task 'glue' to combine"),
        ("qasper", ["fire"], [], "has no train split of qasper"),
        ("narrative_qa", ["nowhere"], [], "there is no folder"),
        ("narrative_qa", ["fire", "fire"], [], "listed twice"),
        ("narrative_qa", ["fire:rope_pi=128"], [], "a checkpoint with 'fire' cannot become 'rope_pi'"),
        ("narrative_qa", ["rope:ropepi=128"], [], "'ropepi'. Did you mean 'rope_pi'"),
        ("narrative_qa", ["rope:yarn=far"], [], "must be a whole number, not 'far'"),
        ("narrative_qa", ["rope:yarn=16"], [], "above the trained length of 32, not 16"),
        ("narrative_qa", ["fire"], ["--length", "64"], "need up to 91 tokens even without their document (64 of them"),
        ("narrative_qa", ["fire"], ["--length", "80"], "a length of 80 is too short for 7 of 7 questions"),
        ("narrative_qa", ["fire"], ["--recipe", "huge"], "no fine-tuning recipe named 'huge'"),
        ("narrative_qa", ["fire"], ["--select", "best"], "select cannot be 'best'"),
        ("narrative_qa", ["fire"], ["--limit", "0"], "limit must be at least 1"),
        ("narrative_qa", ["fire"], ["--data", "nowhere"], "there is no file or folder nowhere"),
        ("narrative_qa", ["fire"], ["--set", "stpes=3"], "a recipe has no field 'stpes'"),
    ],
)
def test_refused_before_training(task, names, more, message, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert place.finetune(task, names, tmp_path / "out", *more) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_all_tasks_that_do_not_fit_are_named(place, tmp_path, capsys):
    assert place.finetune("cola+rte+narrative_qa+multirc", ["fire"], tmp_path / "out", "--length", "40") == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert "4 tasks" in first
    assert [re.search("cola|rte|narrative_qa|multirc", line)[0] for line in others] == [
        *("cola", "rte", "narrative_qa", "multirc")
    ]


def test_other_models_are_not_finetuned(place, tmp_path, capsys):
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=128, n_embd=16, n_layer=1, n_head=2))
    gpt2.save_pretrained(tmp_path / "gpt2")
    assert place.finetune("narrative_qa", [tmp_path / "gpt2"], tmp_path / "out") == 2
    assert "is a 'gpt2' model" in capsys.readouterr().err
    command = place.command("evaluate", "narrative_qa", [tmp_path / "gpt2"], tmp_path / "out", "--length", "128")
    assert main(command) == 2
    assert "has no tokenizer" in capsys.readouterr().err


def test_a_run_judged_by_other_questions_is_refused(place, tmp_path, capsys):
    options = ["narrative_qa", ["rope"], tmp_path, "--select", "validation", "--limit"]
    assert place.finetune(*options, "2") == 0
    assert place.finetune(*options, "3") == 2
    assert "different: judged_by" in capsys.readouterr().err


def test_a_different_kind_of_results_is_refused(place, tested, tmp_path, capsys):
    assert place.finetune("narrative_qa", ["fire"], tested) == 2
    assert "contains results of longfire evaluate" in capsys.readouterr().err
    locked = tmp_path / "file"
    locked.touch()
    assert place.finetune("narrative_qa", ["fire"], locked / "out") == 2
    assert "--out" in capsys.readouterr().err


def test_a_dry_run(place, tmp_path, capsys):
    assert place.finetune("cola+multirc", ["fire"], tmp_path / "out", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "steps              6" in shown
    assert "checkpoint         FIRE: " in shown
    assert any(line.split() == ["cola+multirc", "multirc", "21", "4", "8"] for line in shown.splitlines())
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_both_suites(place, tmp_path, capsys):
    """Each suite has its own folder, and the recipe SUITE-SIZE."""
    command = place.command("finetune", "all", ["fire"], tmp_path / "out", "--recipe", "small", "--dry-run")
    assert main(command) == 0
    shown = capsys.readouterr().out
    for expected in ("scrolls-small", "glue-small", str(tmp_path / "out" / "glue")):
        assert expected in shown
    assert re.search("qasper.*no train split", shown)
