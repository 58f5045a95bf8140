"""The command line, as a person types it."""

import json
import subprocess
import sys

import pytest

from longfire import ENCODINGS, __version__
from longfire.cli import main


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


def test_bench_writes_what_it_shows(tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    command = ["bench", "attention", "--lengths", "16", "33", "--encodings", "nope", "fire", "--heads", "2"]
    assert main([*command, "--seconds", "0.01", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert {(row["encoding"], row["engine"], row["n"]) for row in record["rows"]} == {
        (name, engine, n) for name in ("nope", "fire") for engine in ("sdpa", "reference") for n in (16, 33)
    }
    assert all(row["ms"] > 0 for row in record["rows"])
    assert record["provenance"]["versions"]["torch"]
    assert "ms, n=33" in capsys.readouterr().out


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
        (["bench", "attention", "--seconds", "-1"], "seconds must be at least 0"),
        (["explore", "--out", __file__], "File exists"),
    ],
)
def test_errors_are_for_people(command, message, capsys):
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_missing_library_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("longfire.report.explore.QUERIES", (128,))
    assert main(["explore", "--out", str(tmp_path)]) == 2
    assert "pip install 'longfire[lab]'" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"longfire {__version__}\n"


def test_a_reader_that_stops_early(tmp_path):
    command = f"{sys.executable} -m longfire explore --out {tmp_path} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "query 128" in done.stdout
    assert done.stderr == ""
