"""Comparisons on a synthetic task: plan, runs, record, resuming, and what is refused."""

import json

import pytest

from longfire.cli import main
from longfire.lab.compare import compare
from longfire.lab.comparison import Comparison
from longfire.lab.comparison_plan import plan_comparison
from longfire.training import RECIPES

RECIPE = RECIPES["task-tiny"].but(size="demo", length=4, steps=3, batch_size=4, log_every=1)


def comparison(**changes):
    return Comparison(**{"recipe": RECIPE, "encodings": ("fire", "alibi"), "seeds": (0,), "questions": 8, **changes})


def test_default_lengths():
    assert comparison().tested_lengths() == [4, 6, 8, 12, 16]
    assert comparison(recipe=RECIPE.but(task="modular-arithmetic", length=5)).tested_lengths() == [5, 7, 11, 15, 21]
    assert comparison(recipe=RECIPE.but(task="addition-hints", length=40)).tested_lengths() == [40, 60, 80, 101]


def test_a_comparison(tmp_path):
    record = compare(plan_comparison(comparison(lengths=(4, 8)), tmp_path, jobs=1, progress=False))
    assert record["setting"]["trained_length"] == 4
    assert record["setting"]["corpus"]["name"] == "copy"
    assert [run["encoding"] for run in record["runs"]] == ["fire", "alibi"]
    for run in record["runs"]:
        assert "failed" not in run
        assert [row["length"] for row in run["accuracy"]["rows"]] == [4, 8]
        assert all(0 <= row["exact_match"] <= row["token_accuracy"] <= 100 for row in run["accuracy"]["rows"])
        assert all(row["questions"] == 8 for row in run["accuracy"]["rows"])
    queries = {curve["query"] for curve in record["biases"]["fire"]}
    assert queries == {10, 18}  # the last tokens of rows of 4 and 8 symbols

    before = (tmp_path / "runs" / "fire-0" / "done.json").stat().st_mtime_ns
    again = compare(plan_comparison(comparison(lengths=(4, 8)), tmp_path, jobs=1, progress=False))
    assert (tmp_path / "runs" / "fire-0" / "done.json").stat().st_mtime_ns == before
    assert [run["accuracy"] for run in again["runs"]] == [run["accuracy"] for run in record["runs"]]
    with pytest.raises(ValueError, match=r"already contains different runs.*'copy' there, 'reverse' here"):
        plan_comparison(comparison(recipe=RECIPE.but(task="reverse")), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": (4, 0)}, "a test length must be at least 1"),
        ({"recipe": RECIPE.but(task="sort"), "lengths": (254,)}, "at most 253"),
        ({"also": (("latex", "papers"),)}, "omit also"),
        ({"tokens": 100}, "omit tokens"),
        ({"questions": 0}, "questions must be at least 1"),
        ({"encodings": ("rope", "yarn")}, "yarn: extensions of RoPE are compared on text only"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        comparison(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "copy", "--corpus", "x"], "the task copy generates its own data: omit --corpus"),
        (["--task", "copy", "--protocol", "paper", "--test-tokens", "8"], "omit --protocol, --test-tokens"),
        (["--recipe", "task-small", "--vocab", "300"], "omit --vocab"),
        (["--task", "mqr"], "Did you mean 'mqar'"),
        (["--questions", "8"], "--questions needs --task"),
    ],
)
def test_commands_refuse_options_of_the_other_kind(arguments, message, capsys):
    assert main(["compare", "--dry-run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_command(tmp_path, capsys):
    small = ["--set", "size=demo", "steps=2", "batch_size=4", "--length", "3", "--seeds", "0", "--jobs", "1"]
    command = ["compare", "--task", "reverse", "--encodings", "alibi", *small, "--questions", "4"]
    assert main([*command, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    assert "up to 3 symbols" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert record["setting"]["recipe"]["task"] == "reverse"
    assert main(["pretrain", "task-tiny", "--dry-run", "--task", "parity", "--length", "7"]) == 0
    assert "parity" in capsys.readouterr().out
