"""`longfire pretrain` on the command line."""

import pytest

from longfire.cli import main
from longfire.commands.training import settings


def test_a_dry_run_prints_the_full_recipe(capsys):
    assert main(["pretrain", "base", "--dry-run", "--encoding", "kerple_log", "--set", "max_grad_norm=0.5"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "steps                    600000",
        "max_grad_norm            0.5",
        "kerple_log",
        "tokens                   314,572,800,000",
    ):
        assert expected in shown
    assert "parameters               123," in shown
    assert "runs/base-kerple_log-0" in shown


def test_an_encoding_is_named_as_in_a_comparison(capsys):
    """With options, an init, -s for sharing, and its own folder."""
    assert main(["pretrain", "small", "--dry-run", "--encoding", "fire-s:horizon=256,init=random"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "encoding_options         {'horizon': 256}",
        "init                     None",
        "share_position_encoding  True",
    ):
        assert expected in shown
    assert "runs/small-fire-s-horizon-256-init-random-0" in shown
    with pytest.warns(FutureWarning, match="--share is now --encoding fire-s"):
        assert main(["pretrain", "small", "--dry-run", "--share"]) == 0
    assert "runs/small-fire-s-0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "bse", "--dry-run"], "no recipe named 'bse'. Did you mean 'base'"),
        (
            ["pretrain", "tiny", "--dry-run", "--set", "steps"],
            "--set takes FIELD=VALUE, such as steps=100, not 'steps'",
        ),
        (["pretrain", "tiny", "--dry-run", "--set", "stpes=3"], "a recipe has no field 'stpes'. Did you mean 'steps'"),
        (["pretrain", "tiny", "--corpus", "nowhere", "--tracker", "none"], "there is no file or folder nowhere"),
        (["pretrain", "tiny", "--dry-run", "--corpus", "nowhere"], "there is no file or folder nowhere"),
        (["pretrain", "tiny", "--dry-run", "--validation", "no*"], "no file matches no*"),
        (
            ["pretrain", "tiny", "--corpus", "nowhere", "--encoding", "fire:log=False"],
            "init='kerple_log' needs log=True",
        ),
        (
            ["pretrain", "tiny", "--dry-run", "--tokenizer", "my-tokens", "--encoding", "fire:log=False"],
            "add init=random to the encoding's options: fire:log=False,init=random.",
        ),
        (
            ["pretrain", "tiny", "--dry-run", "--encoding", "fire:init=kerple_log", "--set", "init=alibi"],
            "init=alibi and the encoding's init=kerple_log contradict each other",
        ),
        (
            ["pretrain", "tiny", "--dry-run", "--encoding", "yarn"],
            "pass one and a target length (--from RUN --extend-to N)",
        ),
        (
            ["pretrain", "tiny", "--encoding", "rope", "--set", "encoding=alibi"],
            "encoding is given twice: --encoding rope and --set encoding=alibi. Pass one of them.",
        ),
        (["pretrain", "tiny", "--encoding", "fire:horizon=64", "--set", "horizon=32"], "horizon is given twice"),
        (["pretrain", "tiny", "--seed", "5", "--set", "seed=4"], "given twice: --seed 5 and --set seed=4"),
        (["pretrain", "tiny", "--batch", "8", "--set", "batch=4"], "given twice: --batch 8 and --set batch=4"),
        (["pretrain", "tiny", "--set", "steps=3", "--set", "steps=4"], "--set steps=3 and --set steps=4"),
        (["compare", "--length", "16", "--set", "length=32"], "given twice: --length 16 and --set length=32"),
        (
            ["compare", "--set", "encoding=alibi"],
            "--set encoding=alibi: a comparison has encodings of its own. Use --e",
        ),
        (["compare", "--set", "seed=3"], "--set seed=3: a comparison has seeds of its own. Use --seeds."),
        (
            ["finetune", "cola", "x", "--data", "placeholder", "--steps", "3", "--set", "steps=4"],
            "given twice: --steps 3 and --set steps=4",
        ),
    ],
)
def test_errors_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["pretrain", "tiny"], ["compare"]])
@pytest.mark.parametrize(
    ("text", "message"), [(" ", "contains no text"), ("Too short. " * 9, "training sequences of 64")]
)
def test_a_text_that_cannot_be_trained_on_leaves_no_folder(command, text, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(text)
    given = ["--corpus", str(tmp_path / "a.txt"), "--tokenizer", "bytes", "--out", str(tmp_path / "out")]
    assert main([*command, *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_does_not_access_the_hub():
    assert main(["pretrain", "tiny", "--dry-run", "--corpus", "hub:nobody/nothing"]) == 0


def test_settings():
    assert settings(["steps=3", "betas=(0.9, 0.99)", "encoding-options={'c': 1}", "init=alibi"]) == {
        "steps": 3,
        "betas": (0.9, 0.99),
        "encoding_options": {"c": 1},
        "init": "alibi",
    }
