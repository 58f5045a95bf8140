"""Measurements of whole models as a table and a picture."""

import json
from pathlib import Path

import pytest

from longfire.bench.model_speed import add_ratios
from longfire.report.model_speed import best_rows, model_table, plot_model

ROOT = Path(__file__).parents[2]
TIMES = {
    "forward": {("rope", "sdpa flash"): 20.0, ("rope", "sdpa cudnn"): 16.0, ("fire", "fused"): 24.0},
    "training": {("rope", "sdpa flash"): 80.0, ("rope", "sdpa cudnn"): 64.0, ("fire", "fused"): 100.0},
    "decoding": {("rope", "decode"): 4.0, ("fire", "decode"): 5.0, ("fire-s", "decode"): 4.5},
}


def model_record(**changes):
    """As if from a GPU; nobody made these measurements."""
    rows = []
    for kind, times in TIMES.items():
        for (encoding, engine), ms in times.items():
            batch, tokens = (8, 8) if kind == "decoding" else (16, 32768)
            row = {"kind": kind, "encoding": encoding, "n": 2048, "batch": batch, "engine": engine, "ms": ms}
            rows.append({**row, "tokens/s": round(1e3 * tokens / ms)})
    rows.append({"kind": "forward", "encoding": "t5", "n": 2048, "batch": 16, "failed": "out of memory"})
    add_ratios(rows)
    setting = {"device": "cuda", "dtype": "bfloat16", "size": "base", "compile": True}
    return {
        "provenance": {
            "hardware": {"cpu": "a CPU", "gpu": "NVIDIA H200"},
            "versions": {"torch": "2.11.0+cu130"},
        },
        "setting": {**setting, "forward": [2048], "training": [2048], "decoding": [2048], **changes},
        "rows": rows,
    }


@pytest.fixture(scope="module")
def h200():
    return json.loads((ROOT / "results" / "bench" / "h200-model.json").read_text(encoding="utf-8"))


def lines_of(record):
    return [" ".join(line.split()) for line in model_table(record).splitlines()]


def test_table():
    lines = lines_of(model_record())
    assert lines[0] == "base model, bfloat16, compiled; NVIDIA H200, torch 2.11.0+cu130"
    forward = lines.index("forward, 16 × 2,048 tokens")
    assert lines[forward + 1] == "encoding engine ms tokens/s ÷ rope (sdpa flash) ÷ rope (sdpa cudnn)"
    assert lines[forward + 3 : forward + 7] == [  # the fastest first, what failed last
        "rope sdpa cudnn 16.00 2,048,000 0.80 1.00",
        "rope sdpa flash 20.00 1,638,400 1.00 1.25",
        "fire fused 24.00 1,365,333 1.20 1.50",
        "t5 – – – – –",
    ]
    decoding = lines.index("decoding, 8 × 2,048 tokens in the cache")
    assert lines[decoding + 1] == "encoding engine ms tokens/s ÷ rope (decode)"
    assert lines[decoding + 4] == "fire-s decode 4.50 1,778 1.12"
    assert lines[-1] == "– t5 forward n=2048: out of memory"


def test_table_of_a_cpu_that_was_interrupted():
    record = model_record(device="cpu", dtype="float32", compile=False, size="tiny") | {"interrupted": True}
    assert lines_of(record)[0] == "tiny model, float32, not compiled; a CPU, torch 2.11.0+cu130; interrupted"


def test_table_of_nothing():
    assert lines_of(model_record() | {"rows": []}) == [
        "base model, bfloat16, compiled; NVIDIA H200, torch 2.11.0+cu130"
    ]


def test_the_fastest_engine_of_each_encoding():
    best = [(row["kind"], row["encoding"], row["ms"]) for row in best_rows(model_record())]
    assert ("forward", "rope", 16.0) in best
    assert ("forward", "rope", 20.0) not in best
    assert ("forward", "t5") not in [row[:2] for row in best]
    assert len(best) == 7


def test_table_of_the_results(h200):
    lines = lines_of(h200)
    assert lines[0].startswith("base model, bfloat16, compiled; NVIDIA H200, torch ")
    for kind, n in {(row["kind"], row["n"]) for row in h200["rows"]}:
        assert any(line.startswith(f"{kind}, ") and f" × {n:,} " in line for line in lines)
    for row in h200["rows"]:
        shown = f"{row['encoding']} {row['engine']} {row['ms']:,.2f} {row['tokens/s']:,} "
        assert any(line.startswith(shown) for line in lines), shown
    assert not any(line.startswith("–") for line in lines)  # nothing failed


def test_ratios_of_the_results_follow_from_their_times(h200):
    rows = [{key: value for key, value in row.items() if not key.startswith("÷")} for row in h200["rows"]]
    add_ratios(rows)
    assert rows == h200["rows"]
    assert all(any(key.startswith("÷ rope") for key in row) for row in rows)


@pytest.mark.parametrize("rows", [10, 3, 1])
def test_picture(rows, tmp_path):
    record = model_record()
    record["rows"] = record["rows"][:rows]
    plot_model(record, tmp_path / "model.png")
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rows", [[], [{"kind": "forward", "encoding": "t5", "n": 8, "batch": 1, "failed": "no"}]])
def test_picture_of_nothing(rows, tmp_path):
    """Where the first measurement was interrupted, or all failed."""
    plot_model(model_record() | {"rows": rows}, tmp_path / "model.png")
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


def test_picture_of_the_results(h200, tmp_path):
    from matplotlib.image import imread

    plot_model(h200, tmp_path / "model.png")
    pixels = imread(tmp_path / "model.png")[..., :3]
    height, width, _ = pixels.shape
    assert width > 2 * height  # three panels
    crimson = (abs(pixels - [220 / 255, 20 / 255, 60 / 255]).max(-1) < 0.02).nonzero()[1]
    for panel in range(3):  # FIRE's bars are in each
        assert ((crimson > panel * width / 3) & (crimson < (panel + 1) * width / 3)).sum() > 500
