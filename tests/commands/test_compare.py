"""`longfire compare` on the command line."""

import json
import re

import pytest

from longfire.cli import main
from longfire.commands.compare import carried_out
from longfire.lab.comparison import Comparison
from longfire.training import RECIPES


def test_a_dry_run(capsys):
    encodings = ["fire", "fire-s:horizon=32,init=random", "rope", "yarn"]
    assert main(["compare", "--dry-run", "--seeds", "3", "--encodings", *encodings]) == 0
    shown = capsys.readouterr().out
    assert "{'name': 'fire', 'init_L': 16.0, 'horizon': 64, 'init': 'kerple_log'}, in runs/fire-3\n" in shown
    assert "init=random, seed 3: {'name': 'fire', 'horizon': 32, 'init_L': 16.0}, in runs/fire-s-h" in shown
    assert "yarn, seed 3: {'name': 'yarn'}, of runs/rope-3, extended to 256, in runs/yarn-3\n" in shown
    assert "[64, 128, 256, 512, 1024]" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "fier"], "Did you mean 'fire'"),
        (["--encodings", "fire:horizon=-1"], "fire:horizon=-1: horizon must be at least 1, not -1"),
        (
            ["--encodings", "fire-s:log=False"],
            "fire-s:log=False: init='kerple_log' needs log=True; this is a FIRE with num_heads=4, log=False",
        ),
        (
            ["--encodings", "fire-s:log=False"],
            "The recipe's init is kerple_log; for a random one add init=random to the encoding's options: "
            "fire-s:log=False,init=random.",
        ),
        (["--encodings", "fire:init=alibi"], "init='alibi' needs log=False; this is a FIRE with"),
        (["--encodings", "fire:init=alibi"], "The requested init is alibi"),
        (["--encodings", "fire:init=alibi,start=alibi"], "gives 'init' twice"),
        (["--encodings", "fire:init=kerple"], "init cannot be 'kerple'. Did you mean 'kerple_log'?"),
        (
            ["--recipe", "small", "--encodings", "fire:init_L=8192"],
            "init_L is 8192, above the horizon of 512 tokens: FIRE's normaliser would be the same for every query, and "
            "L would neither matter nor learn. Take an init_L of at most 512, or no horizon: "
            "fire:init_L=8192,horizon=None.",
        ),
        (["--lengths", "0"], "a length to test at must be at least 2, not 0"),
        (["--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--test-tokens", "0"], "tokens to test on must be at least 1, not 0"),
        (["--corpus", "nowhere"], "there is no file or folder nowhere"),
    ],
)
def test_values_are_looked_at_before_anything_is_done(arguments, message, capsys):
    """By a dry run, too."""
    assert main(["compare", "--dry-run", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_starts_that_fit(capsys):
    fit = ["fire:log=False,init=alibi", "fire:log=False,init=None", "fire:hidden_layers=0"]
    assert main(["compare", "--dry-run", "--encodings", *fit]) == 0


@pytest.mark.parametrize(
    ("asked", "tokens"), [(["--test-tokens", "all"], None), (["--test-tokens", "99"], 99), ([], 32768)]
)
def test_tokens_to_test_on(asked, tokens, monkeypatch):
    """All, which a GPU takes by itself, so that what one has tested is known on a CPU as well."""
    seen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("longfire.commands.compare.carried_out", lambda comparison, *_: seen.append(comparison) or 0)
    main(["compare", *asked])
    assert [comparison.tokens for comparison in seen] == [tokens]


def test_a_folder_that_cannot_be_written_to(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["compare", "--out", str(tmp_path / "file" / "out")]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"longfire: nothing can be written to the folder {tmp_path / 'file' / 'out'} (Not a directory). Give another: "
        f"--out FOLDER\n"
    )


def test_what_is_missing_when_it_is_stopped(tmp_path, capsys, monkeypatch):
    record = {"interrupted": True, "runs": [{"encoding": "fire", "seed": 0}, {"encoding": "fire", "seed": 1}]}
    monkeypatch.setattr("longfire.lab.compare.compare", lambda *_, **__: record)
    asked, shown = Comparison(RECIPES["tiny"], ("fire", "nope")), []
    assert carried_out(asked, tmp_path, tmp_path / "compare.json", None, shown.append) == 130
    assert shown == [record]
    assert "stopped. Missing: fire (seed 2), nope (seeds 0, 1, 2).\n" in capsys.readouterr().err


def test_compare_end_to_end(tmp_path, capsys, monkeypatch):
    """A table, the numbers, pictures and a page, from text files to the end."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": " ".join(str(n * k % 97) for n in range(300))}) for k in range(1, 40)]
    text.write_text("\n".join(lines))
    arguments = ["compare", "--corpus", str(text), "--out", str(tmp_path / "out"), "--steps", "3", "--batch", "4"]
    arguments += [
        "--length",
        "16",
        "--seeds",
        "0",
        "--jobs",
        "1",
        "--test-tokens",
        "500",
        "--encodings",
        "fire",
        "rope",
    ]
    assert main(arguments) == 0
    shown, said = capsys.readouterr()
    assert re.search(
        r"^2 of 2: rope, seed 0: [\d.]+ s, log perplexity 5\.\d+ at 16, 5\.\d+ at 256$", said, re.MULTILINE
    )
    assert all(expected in shown for expected in ("FIRE", "RoPE", "16 (trained)"))
    record = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert len(record["runs"]) == 2
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert list((tmp_path / "out").glob("*.png"))
    page = (tmp_path / "out" / "report.html").read_bytes()
    assert main([*arguments, "nope", "--steps", "4"]) == 2
    assert "fire-0, rope-0: steps 3 there, 4 here" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.html").read_bytes() == page
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == record


def test_a_reader_that_is_gone_is_no_failure_of_a_run(tmp_path, monkeypatch):
    """`compare 2>&1 | head -n 1`: a status that is no success, and what was done is kept."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(" ".join(str(n * k % 97) for n in range(300)) for k in range(1, 40)))
    arguments = ["compare", "--corpus", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--steps", "2"]
    arguments += ["--batch", "4", "--length", "16", "--seeds", "0", "--jobs", "1", "--encodings", "nope", "alibi"]

    def gone(watch, what):
        if watch.run.name == "alibi-0":
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("longfire.training.callbacks.Watch.say", gone)
        assert main(arguments) == 141
    record = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert record["interrupted"]
    assert [(run["encoding"], "failed" in run) for run in record["runs"]] == [("nope", False)]
    assert main(arguments) == 0
