"""The command line as a user types it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from longfire import ENCODINGS, __version__
from longfire.atomic_io import write_json
from longfire.cli import IN_EXTRAS, main
from tests.report.records import compare_record
from tests.training.runs import raises

ROOT = Path(__file__).parents[1]


def test_explore(tmp_path, capsys):
    assert main(["explore", "--out", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    for name in ENCODINGS:
        assert name in shown
    assert "query 128" in shown
    assert "query 8192" in shown
    numbers = json.loads((tmp_path / "new" / "encodings.json").read_text())
    assert numbers["query 128"]["alibi"]["first head, by distance"]["64"] == -32.0
    assert (tmp_path / "new" / "encodings.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["bench", "bias", "--lengths", "0"], "a length must be at least 1, not 0"),
        (["explore", "--out", __file__], "Not a directory"),
        (["pretrain", "tiny", "--vocab", "300", "--dry-run"], "--vocab 300 is for --tokenizer bpe"),
        (["pretrain", "tiny", "--fsdp"], "--fsdp needs torchrun, even for one GPU: torchrun --nproc-per-node 8 -m"),
    ],
)
def test_user_errors_have_no_traceback(command, message, capsys):
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_checkpoint_with_an_unknown_encoding(tmp_path, capsys):
    """transformers wraps the configuration's error in its own."""
    config = {"model_type": "longfire", "position_encoding": {"name": "recency"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["explore", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("longfire: there is no encoding named 'recency'.")
    assert "Traceback" not in shown


def test_a_misspelt_option_without_a_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--versoin"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --versoin. Did you mean --version?\n")


@pytest.mark.parametrize("command", [["explore"], ["evaluate", "perplexity"]])
def test_a_comparison_instead_of_a_checkpoint(command, tmp_path, capsys):
    write_json(tmp_path / "runs" / "fire-0" / "model" / "config.json", {})
    assert main([*command, str(tmp_path)]) == 2
    assert f"or a training run: {tmp_path / 'runs' / 'fire-0'}.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "meant"), [("--step=3", "--steps"), ("--lenght", "--length"), ("--bogus", None), ("--step", "--steps")]
)
def test_a_misspelt_option_gets_a_suggestion(flag, meant, capsys):
    with pytest.raises(SystemExit):
        main(["pretrain", "tiny", flag, "3", "--dry-run"])
    shown = capsys.readouterr().err
    assert f"unrecognized arguments: {flag} 3" in shown
    assert shown.endswith(f". Did you mean {meant}?\n") == (meant is not None)


def test_help_shows_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "bias", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for default in ("lengths (default: 512 2048 8192)", "heads (default: 12)", "(default: bench/bias.json)"):
        assert default in shown
    for nothing in ("None", "False", "==SUPPRESS=="):
        assert nothing not in shown


def test_a_missing_library_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("longfire.report.explore.QUERIES", (128,))
    assert main(["explore", "--out", str(tmp_path)]) == 2
    assert "pip install 'longfire[lab]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "library", "install"),
    [
        (
            ["compare", "--dry-run"],
            "transformers",
            "'longfire[lab]'",
        ),  # one extra with everything, not one after another
        (["generate", "x", "--prompt", "a"], "transformers", "'longfire[model]'"),
        (["evaluate", "--harness", "run"], "lm_eval", "'longfire[harness]'"),
        (["pretrain", "tiny", "--dry-run"], "filelock", "'longfire[lab]'"),
        (["generate", "x", "--prompt", "a"], "torch", "torch"),
    ],
)
def test_what_to_install(command, library, install):
    """Run in a process that cannot import the library."""
    code = f"import sys; sys.modules[{library!r}] = None; from longfire.cli import main; sys.exit(main({command}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert (done.returncode, said) == (2, f"longfire: this command needs {library}: pip install {install}")


def test_all_libraries_of_the_extras_are_known():
    """Those of the extras that commands need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        re.split(r"[>\[]", one)[0].replace("-", "_")
        for key in ("model", "data", "lab", "harness")
        for one in extras[key]
    }
    assert named - {"longfire"} <= IN_EXTRAS


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["compare", "--seeds", "1", "--bogus"], "usage: longfire compare "),
        (["bench", "bias", "--bogus"], "usage: longfire bench bias "),
        (["--bogus", "compare"], "usage: longfire "),
    ],
)
def test_an_unknown_option_shows_the_usage_of_its_command(command, usage, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(command)
    shown = capsys.readouterr().err
    assert shown.startswith(usage)
    assert "unrecognized arguments: --bogus" in shown


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["evaluate", "qmsumm"], "longfire evaluate: SUBJECT cannot be 'qmsumm'. Did you mean 'qmsum'? Known: perpl"),
        (["evalute"], "longfire: COMMAND cannot be 'evalute'. Did you mean 'evaluate'? Known: compare, pretrain, "),
        (["generate", "x", "--dtype", "float31"], "longfire generate: --dtype cannot be 'float31'. Did you mean 'fl"),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(command, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(command)
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert shown.count("\n") == 1


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"longfire {__version__}\n"


def test_a_broken_pipe_is_not_a_success():
    """As with `| head -n 1`: no message, and the status of SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "longfire", "reproduce", "--list"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["report", "text"], ["out"]),
        (["explore"], ["out/encodings.json", "out/encodings.png"]),
        (
            ["bench", "attention", "--device", "cpu", "--lengths", "8", "--engines", "sdpa", "--seconds", "0.01"],
            ["out", "out.png"],
        ),
    ],
)
def test_files_are_written_before_a_closed_pipe_ends_the_command(command, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "text" / "compare.json", compare_record())
    monkeypatch.setattr("builtins.print", raises(BrokenPipeError))
    assert main([*command, "--out", "out"]) == 141
    assert all((tmp_path / name).exists() for name in files)


def test_without_a_command_the_help_is_printed(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err
