"""`longfire bench` on the command line."""

import json

import pytest

from longfire.bench import model_speed
from longfire.cli import main
from longfire.engines import ENGINES
from longfire.engines.reference import Reference

SMALL = ["--heads", "2", "--head-dim", "8", "--seconds", "0"]


def test_bias(tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    assert main(["bench", "bias", "--lengths", "16", "33", "--encodings", "fire", "t5", *SMALL, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["encoding"], row["n"]) for row in rows] == [(name, n) for n in (16, 33) for name in ("fire", "t5")]
    assert all(row["ms"] > 0 for row in rows)
    assert "ms, n=33" in capsys.readouterr().out
    assert not out.with_suffix(".png").exists()


class Right(Reference):
    name = "right"


class Wrong(Reference):
    name = "wrong"

    def run(self, request):
        return request.v


class Stopped(Reference):
    name = "stopped"

    def run(self, request):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("engine", "status"), [(Right(), 0), (Wrong(), 1), (Stopped(), 130)])
def test_attention(engine, status, tmp_path, capsys, monkeypatch):
    """A wrong engine does not affect the others; an interrupted benchmark keeps its measurements."""
    monkeypatch.setitem(ENGINES, engine.name, engine)
    out = tmp_path / "deep" / "bench.json"
    command = ["bench", "attention", "--device", "cpu", "--lengths", "16", "--encodings", "fire", *SMALL]
    assert main([*command, "--out", str(out), "--engines", "sdpa", engine.name, "reference"]) == status
    record = json.loads(out.read_text(encoding="utf-8"))
    rows, shown = record["rows"], capsys.readouterr().out
    assert [(row["encoding"], row["engine"]) for row in rows[:2]] == [("no bias", "sdpa"), ("fire", "sdpa")]
    assert all(row["forward + backward"]["ms"] > 0 for row in rows[:2])
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "n = 16, 1 sequence" in shown
    assert "sdpa (the listing)" in shown
    assert ("interrupted" in record) == ("; interrupted" in shown) == (status == 130)
    assert len(rows) == (2 if status == 130 else 4)
    assert ("– fire wrong n=16: wrong: output: error" in shown) == (status == 1)
    assert status == 130 or rows[3]["forward"]["ms"] > 0


def test_attention_by_layout(tmp_path, capsys):
    out = tmp_path / "layouts.json"
    command = ["bench", "attention", "--device", "cpu", "--layout", "window", "bidirectional", "--lengths", "32"]
    assert main([*command, "--encodings", "alibi", "--engines", "sdpa", *SMALL, "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert (record["setting"]["subject"], record["setting"]["layouts"]) == ("layouts", ["window", "bidirectional"])
    shown = capsys.readouterr().out
    assert "not causal ÷ sdpa without bias alibi sdpa 32" in " ".join(shown.split())
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("end", "status"), [(None, 0), (RuntimeError("broken"), 1), (KeyboardInterrupt(), 130)])
def test_model(end, status, tmp_path, capsys, monkeypatch):
    def prepare(benchmark, model, ids, n):
        if model.config.position_encoding["name"] == "fire" and end is not None:
            raise end

    monkeypatch.setitem(model_speed.CALLS, "forward", prepare)
    times = {"ms": 2.0, "fastest": 1.0, "slowest": 3.0, "calls": 3}
    monkeypatch.setattr(model_speed, "time_call", lambda *_, **__: times)
    out = tmp_path / "bench.json"
    command = ["bench", "model", "--device", "cpu", "--forward", "16", "--training", "--decoding"]
    assert main([*command, "--encodings", "rope", "fire", "--tokens", "16", "--out", str(out)]) == status
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [row["encoding"] for row in record["rows"]] == (["rope"] if status == 130 else ["rope", "fire"])
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "forward, 1 × 16 tokens" in shown
    assert ("broken" in shown) == (status == 1)
    assert ("; interrupted" in shown) == (status == 130)


@pytest.mark.parametrize(
    ("command", "first", "number"),
    [
        (["bias", "--lengths", "16"], "alibi n=16, batch 1\nfire n=16, batch 1", 6),
        (
            ["attention", "--device", "cpu", "--tokens", "1024", "--engines", "sdpa", "--shared-layers", "2"],
            "no bias sdpa n=512, batch 2\nfire sdpa n=512, batch 2\nfire-s sdpa n=512, batch 2",
            16,
        ),
        (
            ["attention", "--device", "cpu", "--layout", "packed", "positions", "--engines", "chunked"],
            "32 rows, fire chunked n=512, batch 1\n32 equal documents, fire chunked n=512, batch 1",
            14,
        ),
        (
            ["model", "--device", "cpu", "--forward", "16", "--training", "--decoding", "64", "--encodings", "fire"],
            "forward fire n=16, batch 128\ndecoding rope n=64, batch 8",
            4,
        ),
    ],
)
def test_dry_run(command, first, number, tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert main(["bench", *command, "--dry-run", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(first)
    last = f"{number} measurements of {command[0]} on cpu in float32, to be written to {out}"
    assert shown.splitlines()[-1] == last
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["bias", "--encodings", "rope"], "'rope' has no bias to measure"),
        (["attention", "--device", "cpu", "--engines", "refrence"], "Did you mean 'reference'"),
        (["attention", "--device", "cpu", "--layout", "pakced"], "the layout cannot be 'pakced'"),
        (["model", "--device", "cpu", "--encodings", "fier"], "Did you mean 'fire'"),
    ],
)
def test_the_plan_is_checked(command, message, capsys):
    assert main(["bench", *command, "--dry-run"]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


class Refusing(Right):
    name = "refusing"

    def refuses(self, request):
        return "it never serves"


def test_nothing_measured_keeps_the_earlier_record(tmp_path, capsys, monkeypatch):
    out = tmp_path / "attention.json"
    out.write_text("earlier")
    monkeypatch.setitem(ENGINES, "refusing", Refusing())
    command = ["bench", "attention", "--device", "cpu", "--lengths", "32", "--layout", "packed", "--out", str(out)]
    assert main([*command, "--engines", "refusing"]) == 1
    shown = capsys.readouterr().out
    assert "it never serves" in shown
    assert f"Nothing was measured: {out} is as it was." in shown
    assert out.read_text() == "earlier"
