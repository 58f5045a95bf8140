"""`longfire compare` on the command line."""

import json
import re

import pytest

from longfire.cli import main
from longfire.commands.compare import run_comparison
from longfire.lab.comparison import Comparison
from longfire.training import RECIPES
from tests.training.runs import raises


def test_a_dry_run(capsys):
    encodings = ["fire", "fire-s:horizon=32,start=None", "rope", "yarn", "fire:log=False,init=alibi"]
    assert main(["compare", "--dry-run", "--seeds", "3", "--encodings", *encodings, "--out", "out"]) == 0
    shown = capsys.readouterr().out
    assert "{'name': 'fire', 'init_L': 16.0, 'horizon': 64, 'init': 'kerple_log'}, in out/runs/fire-3\n" in shown
    assert "init=random, seed 3: {'name': 'fire', 'horizon': 32, 'init_L': 16.0}, in out/runs/fire-s-h" in shown
    assert "yarn, seed 3: {'name': 'yarn'}, extends out/runs/rope-3 to 256, in out/runs/yarn-3\n" in shown
    assert "64, 128, 256, 512, 1024" in shown


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--encodings", "fier"], ["Did you mean 'fire'"]),
        (
            ["--encodings", "fire-s:log=False"],
            ["fire-s:log=False: init='kerple_log' needs log=True", "add init=random", "fire-s:log=False,init=random."],
        ),
        (["--jobs", "0"], ["--jobs must be at least 1, not 0"]),
        (["--corpus", "nowhere"], ["there is no file or folder nowhere"]),
        (["--also", "play"], ["--also takes NAME=PATH, such as latex=papers/, not 'play'"]),
        (["--also", "play=.", "--also", "play=/"], ["play: listed more than once"]),
    ],
)
def test_mistakes_are_found_by_a_dry_run(arguments, messages, capsys):
    assert main(["compare", "--dry-run", *arguments]) == 2
    shown = capsys.readouterr().err
    assert all(message in shown for message in messages)
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "tokens"), [(["--test-tokens", "all"], None), (["--test-tokens", "99"], 99), ([], 32768)]
)
def test_test_tokens(asked, tokens, monkeypatch):
    """With `all`, the default on a GPU, a CPU reuses the tests of a GPU."""
    seen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("longfire.commands.compare.run_comparison", lambda comparison, *_: seen.append(comparison) or 0)
    main(["compare", *asked])
    assert [comparison.tokens for comparison in seen] == [tokens]


def test_an_unwritable_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["compare", "--out", str(tmp_path / "file" / "out")]) == 2
    said = capsys.readouterr().err
    assert "Not a directory" in said
    assert "--out FOLDER" in said
    assert said.count("\n") == 1


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """A comparison of nope and alibi that takes a second."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": " ".join(str(n * k % 97) for n in range(300))}) for k in range(1, 40)]
    text.write_text("\n".join(lines))
    small = "--steps 2 --batch 4 --length 16 --seeds 0 --jobs 1 --test-tokens 500 --encodings nope alibi"
    return ["compare", "--corpus", str(text), "--out", str(tmp_path / "out"), *small.split()]


def test_end_to_end(arguments, tmp_path, capsys):
    """Prints a table and writes record, plots and report, which a refused command does not touch."""
    assert main(arguments) == 0
    shown, said = capsys.readouterr()
    assert re.search(
        r"^2 of 2: alibi, seed 0: [\d.]+ s, log perplexity 5\.\d+ at 16, 5\.\d+ at 256$", said, re.MULTILINE
    )
    assert all(expected in shown for expected in ("NoPE", "ALiBi", "16 (trained)"))
    out = tmp_path / "out"
    assert len(json.loads((out / "compare.json").read_text())["runs"]) == 2
    assert "<html" in (out / "report.html").read_text()
    assert list(out.glob("*.png"))
    before = [(out / name).read_bytes() for name in ("compare.json", "report.html")]
    assert main([*arguments, "rope", "--steps", "4"]) == 2
    assert "nope-0, alibi-0: steps 2 there, 4 here" in capsys.readouterr().err
    assert [(out / name).read_bytes() for name in ("compare.json", "report.html")] == before


def test_a_closed_pipe_does_not_fail_a_run(arguments, tmp_path, monkeypatch, capsys):
    """`compare 2>&1 | head -n 1` ends with status 141 and keeps completed runs; the next command resumes."""

    def closed(monitor, text):
        if monitor.run.name == "alibi-0":
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("longfire.training.callbacks.TrainingMonitor.print_line", closed)
        assert main(arguments) == 141
    record = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert record["interrupted"]
    assert [(run["encoding"], "failed" in run) for run in record["runs"]] == [("nope", False)]
    assert main(arguments) == 0


def test_the_report_is_written_before_a_closed_pipe_ends_the_command(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr("longfire.report.compare.verdict", raises(BrokenPipeError))  # printing the table
    assert main(arguments) == 141
    assert (tmp_path / "out" / "report.html").exists()


def test_an_interrupted_comparison_lists_what_is_left(arguments, tmp_path, capsys, monkeypatch):
    record = {"interrupted": True, "runs": [{"encoding": "fire", "seed": 0}, {"encoding": "fire", "seed": 1}]}
    monkeypatch.setattr("longfire.lab.compare.compare", lambda *_: record)
    corpus = {"source": arguments[2], "tokenizer": "bytes"}
    asked, shown = Comparison(RECIPES["tiny"], ("fire", "nope"), lengths=(64,), corpus=corpus), []
    assert run_comparison(asked, tmp_path, tmp_path / "compare.json", None, shown.append) == 130
    assert shown == [record]
    assert "Not finished: nope-0, nope-1, fire-2, nope-2.\n" in capsys.readouterr().err
