"""The command line, as a person types it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from longfire import ENCODINGS, __version__
from longfire.cli import OF_EXTRAS, main
from longfire.engines import ENGINES
from longfire.engines.reference import Reference

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


SMALL = ["--device", "cpu", "--heads", "2", "--head-dim", "8", "--seconds", "0"]


def test_bench_bias_writes_what_it_shows(tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    command = ["bench", "bias", "--lengths", "16", "33", "--encodings", "fire", "t5", "--heads", "2", "--seconds", "0"]
    assert main([*command, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert [(row["encoding"], row["n"]) for row in record["rows"]] == [
        ("fire", 16),
        ("t5", 16),
        ("fire", 33),
        ("t5", 33),
    ]
    assert all(row["ms"] > 0 for row in record["rows"])
    assert "ms, n=33" in capsys.readouterr().out


def test_bench_attention_writes_what_it_shows(tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    command = ["bench", "attention", "--lengths", "16", "33", "--encodings", "fire", "--engines", "sdpa", *SMALL]
    assert main([*command, "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [(row["encoding"], row["engine"], row["n"]) for row in record["rows"]] == [
        (name, "sdpa", n) for n in (16, 33) for name in ("no bias", "fire")
    ]
    assert all(row["forward + backward"]["ms"] > 0 for row in record["rows"])
    assert record["provenance"]["versions"]["torch"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "n = 33, 1 sequence" in shown
    assert "sdpa (the listing)" in shown


class Wrong(Reference):
    name = "wrong"

    def run(self, request):
        return request.v


class Stopped(Reference):
    name = "stopped"

    def run(self, request):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("engine", "status"), [(Wrong(), 1), (Stopped(), 130)])
def test_bench_of_an_engine_that_is_wrong_or_stopped(engine, status, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(ENGINES, engine.name, engine)
    out = tmp_path / "bench.json"
    command = ["bench", "attention", "--lengths", "16", "--encodings", "alibi", *SMALL, "--out", str(out)]
    assert main([*command, "--engines", "sdpa", engine.name, "reference"]) == status
    record = json.loads(out.read_text(encoding="utf-8"))
    shown = capsys.readouterr().out
    assert record["rows"][1]["forward"]["ms"] > 0
    if status == 1:
        assert "where eager's is" in record["rows"][2]["wrong"]
        assert "– alibi wrong n=16: wrong: output: error" in shown
        assert record["rows"][3]["forward"]["ms"] > 0
        assert "interrupted" not in record
    else:
        assert record["interrupted"] is True
        assert len(record["rows"]) == 2
        assert "; interrupted" in shown


def test_bench_attention_dry_run(tmp_path, capsys):
    out = tmp_path / "bench.json"
    command = ["bench", "attention", "--dry-run", "--device", "cpu", "--tokens", "1024", "--engines", "sdpa"]
    assert main([*command, "--shared-layers", "2", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["no bias sdpa n=512, batch 2", "fire sdpa n=512, batch 2", "fire-s sdpa n=512, batch 2"]
    assert lines[-1] == f"16 measurements of attention on cpu in float32, to be written to {out}"
    assert not out.exists()


def test_bench_dry_run(tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert main(["bench", "bias", "--lengths", "16", "--dry-run", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "fire n=16" in shown
    assert f"6 measurements of bias, to be written to {out}" in shown
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["bench", "bias", "--encodings", "fier"], "Did you mean 'fire'"),
        (["bench", "bias", "--encodings", "rope"], "'rope' has no bias to measure"),
        (["bench", "bias", "--lengths", "0"], "a length must be at least 1, not 0"),
        (["bench", "attention", "--heads", "0"], "heads must be at least 1"),
        (["bench", "attention", "--encodings", "learned"], "'learned' has no bias to measure"),
        (["bench", "attention", "--engines", "refrence"], "Did you mean 'reference'"),
        (["bench", "attention", "--tokens", "0"], "tokens must be at least 1"),
        (["bench", "attention", "--seconds", "-1"], "seconds must be at least 0"),
        (["explore", "--out", __file__], "Not a directory"),
        (["pretrain", "tiny", "--vocab", "300", "--dry-run"], "--vocab 300 is for --tokenizer bpe"),
    ],
)
def test_errors_are_for_people(command, message, capsys):
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_checkpoint_with_an_encoding_that_is_not_known(tmp_path, capsys):
    """transformers wraps what a configuration refuses in an error of its own."""
    config = {"model_type": "longfire", "position_encoding": {"name": "recency"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["explore", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("longfire: there is no encoding named 'recency'.")
    assert "Traceback" not in shown


def test_options_are_not_abbreviated(capsys):
    with pytest.raises(SystemExit):
        main(["pretrain", "tiny", "--step", "3", "--dry-run"])
    assert "unrecognized arguments: --step 3" in capsys.readouterr().err


def test_a_missing_library_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("longfire.report.explore.QUERIES", (128,))
    assert main(["explore", "--out", str(tmp_path)]) == 2
    assert "pip install 'longfire[lab]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "library", "install"),
    [
        (["compare", "--dry-run"], "transformers", "'longfire[lab]'"),  # at once, not model, then data, then lab
        (["generate", "x", "--prompt", "a"], "transformers", "'longfire[model]'"),
        (["evaluate", "--harness", "run"], "lm_eval", "'longfire[harness]'"),
        (["pretrain", "tiny", "--dry-run"], "filelock", "'longfire[lab]'"),
        (["generate", "x", "--prompt", "a"], "torch", "torch"),
    ],
)
def test_what_to_install(command, library, install):
    """In a process that cannot import it."""
    code = f"import sys; sys.modules[{library!r}] = None; from longfire.cli import main; sys.exit(main({command}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert (done.returncode, said) == (2, f"longfire: this command needs {library}: pip install {install}")


def test_all_libraries_of_the_extras_are_known():
    """Of those that a command imports."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        re.split(r"[>\[]", one)[0].replace("-", "_")
        for key in ("model", "data", "lab", "harness")
        for one in extras[key]
    }
    assert named - {"longfire"} <= OF_EXTRAS


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
def test_a_word_that_was_meant(command, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(command)
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert shown.count("\n") == 1


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"longfire {__version__}\n"


def test_a_reader_that_is_gone_is_no_success(tmp_path):
    """As `| head -n 1` leaves it: silence, and the status that a shell has for it."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "longfire", "explore", "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
