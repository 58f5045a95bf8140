"""`longfire pretrain` and `longfire compare` on the command line."""

import json

import pytest

from longfire.cli import main
from longfire.commands.training import settings


def test_a_dry_run_says_everything(capsys):
    assert main(["pretrain", "base", "--dry-run", "--encoding", "kerple_log", "--set", "clip=0.5"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "steps              600000",
        "clip               0.5",
        "kerple_log",
        "tokens             314,572,800,000",
    ):
        assert expected in shown
    assert "parameters         123," in shown
    assert "runs/base-kerple_log-0" in shown


def test_a_comparisons_dry_run(capsys):
    assert main(["compare", "--dry-run", "--seeds", "3", "--encodings", "fire", "fire-s"]) == 0
    shown = capsys.readouterr().out
    assert "fire, seed 3\nfire-s, seed 3" in shown
    assert "[64, 128, 256, 512, 1024]" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "bse", "--dry-run"], "no recipe named 'bse'. Did you mean 'base'"),
        (
            ["pretrain", "tiny", "--dry-run", "--set", "steps"],
            "--set takes FIELD=VALUE, such as steps=100, not 'steps'",
        ),
        (["pretrain", "tiny", "--dry-run", "--set", "stpes=3"], "a recipe has no 'stpes'. Did you mean 'steps'"),
        (["pretrain", "tiny", "--corpus", "nowhere", "--tracker", "none"], "nowhere"),
        (["compare", "--dry-run", "--encodings", "fier"], "Did you mean 'fire'"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_settings():
    assert settings(["steps=3", "betas=(0.9, 0.99)", "encoding-options={'c': 1}", "start=alibi"]) == {
        "steps": 3,
        "betas": (0.9, 0.99),
        "encoding_options": {"c": 1},
        "start": "alibi",
    }


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
        "--encodings",
        "fire",
        "rope",
        "--seeds",
        "0",
        "--jobs",
        "1",
        "--test-tokens",
        "500",
    ]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(expected in shown for expected in ("FIRE", "RoPE", "16 (trained)"))
    record = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert len(record["runs"]) == 2
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert list((tmp_path / "out").glob("*.png"))
