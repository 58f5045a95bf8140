"""Tables and plots of speed records."""

import json
from pathlib import Path

import pytest

from longfire.bench import attention_speed, model_speed
from longfire.bench.layouts import EQUAL
from longfire.report.speed import best_rows, speed_table
from longfire.report.speed_plot import plot_layouts, plot_model, plot_speed
from longfire.report.summary import COLORS
from tests.report.records import attention_record, layout_record

ROOT = Path(__file__).parents[2]
MODEL_TIMES = {
    "forward": {("rope", "sdpa flash"): 20.0, ("rope", "sdpa cudnn"): 16.0, ("fire", "fused"): 24.0},
    "training": {("rope", "sdpa flash"): 80.0, ("rope", "sdpa cudnn"): 64.0, ("fire", "fused"): 100.0},
    "decoding": {("rope", "decode"): 4.0, ("fire", "decode"): 5.0, ("fire-s", "decode"): 4.5},
}


def model_record(**changes):
    """A GPU record with invented numbers."""
    rows = []
    for kind, times in MODEL_TIMES.items():
        for (encoding, engine), ms in times.items():
            batch, tokens = (8, 8) if kind == "decoding" else (16, 32768)
            row = {"kind": kind, "encoding": encoding, "n": 2048, "batch": batch, "engine": engine, "ms": ms}
            rows.append({**row, "tokens/s": round(1e3 * tokens / ms)})
    rows.append({"kind": "forward", "encoding": "t5", "n": 2048, "batch": 16, "failed": "out of memory"})
    model_speed.add_ratios(rows)
    setting = {"subject": "model", "device": "cuda", "dtype": "bfloat16", "size": "base", "compile": True}
    return {
        "provenance": attention_record()["provenance"],
        "setting": {**setting, "forward": [2048], "training": [2048], "decoding": [2048], **changes},
        "rows": rows,
    }


def lines_of(record):
    return [" ".join(line.split()) for line in speed_table(record).splitlines()]


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def h200():
    return json.loads((ROOT / "results" / "bench" / "h200-model.json").read_text(encoding="utf-8"))


def test_bias_table_says_what_was_not_run():
    record = {
        "setting": {"subject": "bias", "lengths": [8, 16], "heads": 2, "head_dim": 4},
        "provenance": {"hardware": {"cpu": "a CPU", "threads": 1}, "versions": {"torch": "2"}},
        "rows": [
            {"encoding": "fire", "engine": None, "n": 8, "ms": 1.25, "peak_mb": 3.0},
            {"encoding": "fire", "engine": None, "n": 16, "not run": "needs about 99 GB"},
        ],
    }
    shown = speed_table(record)
    assert "1.25" in shown
    assert "– fire n=16: needs about 99 GB" in shown


def test_attention_table():
    record = attention_record()
    shown, lines = speed_table(record), lines_of(record)
    assert lines[0] == "attention, 12 heads of 64, causal, bfloat16; NVIDIA H200, torch 2.11.0+cu130"
    assert lines[2] == "n = 2,048, 16 sequences"
    assert lines[4] == "encoding engine forward ms ÷ flash fwd+bwd ms ÷ flash ÷ cudnn MB added ÷ flash"
    assert lines[6:10] == [
        "no bias SDPA flash 1.00 1.00 4.00 1.00 1.25 100.0 1.00",
        "no bias SDPA cuDNN 0.80 0.80 3.20 0.80 1.00 80.0 0.80",
        "fire fused 1.50 1.50 5.00 1.25 1.56 150.0 1.50",
        "fire sdpa (the listing) 10.0 10.0 50.0 12.5 15.6 3,000.0 30.0",
    ]
    assert "n = 32,768, 1 sequence" in lines
    assert "fire sdpa (the listing) 160.0 10.0 – – – – –" in lines
    assert "t5 fused – – – – – – –" in lines
    assert "– fire sdpa n=32768, alibi sdpa n=32768: forward + backward: out of memory (151 GB)" in lines
    assert "– t5 fused n=32768: wrong: output: error 1.2e-01 where …" in lines
    assert "one bias for 12 layers" in shown
    assert "n=2048 fused 0.90" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert "interrupted" not in shown
    assert "interrupted" in speed_table(record | {"interrupted": True, "rows": record["rows"][:3]})


def test_a_refusal_is_shown_once():
    record = attention_record()
    refused = [
        {"encoding": name, "engine": "shy", "n": 8, "batch": 1, "not run": "it is shy"} for name in ("fire", "t5")
    ]
    record["rows"] += [*refused, {"encoding": "t5", "engine": "sdpa", "n": 8, "batch": 1, "not run": "it is shy"}]
    shown = speed_table(record)
    assert shown.count("shy") == 2
    assert shown.endswith("\n– shy, t5 sdpa n=8: it is shy")


def test_attention_table_of_a_cpu():
    record = attention_record()
    record["setting"] |= {"device": "cpu", "dtype": "float32", "lengths": [512]}
    rows = [
        {"encoding": name, "engine": "sdpa", "n": 512, "batch": 1, "forward": {"ms": ms}}
        for name, ms in (("no bias", 4.0), ("fire", 6.0))
    ]
    attention_speed.add_ratios(rows)
    lines = lines_of(record | {"rows": rows})
    assert lines[0].endswith("a CPU, 1 thread, torch 2.11.0+cu130")
    assert lines[4] == "encoding engine forward ms ÷ no bias fwd+bwd ms ÷ no bias MB added ÷ no bias"
    assert lines[-2:] == ["no bias SDPA 4.00 1.00 – – – –", "fire sdpa (the listing) 6.00 1.50 – – – –"]


def test_layout_table(tmp_path):
    """Times, then why numbers are missing, then the ratios."""
    record = layout_record()
    lines = lines_of(record)
    assert lines[0] == "attention by layout, 12 heads of 64, bfloat16; NVIDIA H200, torch 2.11.0+cu130"
    assert lines[2] == "n = 32,768, 32,768 tokens per batch"
    assert "not causal no bias SDPA flash 1.00 4.00 9.00" in lines
    assert "random positions fire sdpa 1.00 4.00 9.00" in lines
    head = lines.index("layout ÷ baseline encoding engine n forward ms ratio fwd+bwd ms ratio")
    assert lines[head - 2].endswith("it is out of order")
    assert lines[head + 2 : head + 5] == [
        "32 equal documents ÷ 32 rows fire fused 32,768 1.10 1.10 (≤ 1.15) 4.40 1.10 (≤ 1.15)",
        "32 unequal documents ÷ 32 calls fire fused 32,768 1.00 1.00 (≤ 1.25) 4.00 1.00 (≤ 1.25)",
        "32 equal documents ÷ causal fire fused 32,768 1.10 1.10 4.40 1.10",
    ]
    assert "not causal ÷ flash t5 fused 8,192 1.00 1.00 (≤ 1.30) 4.00 1.00 (≤ 1.70)" in lines
    assert lines[-1] == "random positions ÷ causal fire sdpa 8,192 1.00 1.00 4.00 1.00"
    missed = next(row for row in record["rows"] if row["arrangement"] == EQUAL)
    missed["÷ 32 rows"]["forward"] = 1.151
    wanted = "32 equal documents ÷ 32 rows fire fused 32,768 1.10 1.151 (> 1.15) 4.40 1.10 (≤ 1.15)"
    assert wanted in lines_of(record)
    assert max(map(len, speed_table(record).splitlines())) <= 120
    for rows in (record["rows"], record["rows"][:1], []):
        plot_layouts(record | {"rows": rows}, tmp_path / "layouts.png")
        assert is_png(tmp_path / "layouts.png")


def test_model_table():
    lines = lines_of(model_record())
    assert lines[0] == "base model, bfloat16, compiled; NVIDIA H200, torch 2.11.0+cu130"
    forward = lines.index("forward, 16 × 2,048 tokens")
    assert lines[forward + 2] == "encoding engine ms tokens/s ÷ rope (sdpa flash) ÷ rope (sdpa cudnn)"
    assert lines[forward + 4 : forward + 8] == [  # fastest first, failures last
        "rope sdpa cudnn 16.00 2,048,000 0.80 1.00",
        "rope sdpa flash 20.00 1,638,400 1.00 1.25",
        "fire fused 24.00 1,365,333 1.20 1.50",
        "t5 – – – – –",
    ]
    decoding = lines.index("decoding, 8 × 2,048 tokens in the cache")
    assert lines[decoding + 2] == "encoding engine ms tokens/s ÷ rope (decode)"
    assert lines[decoding + 5] == "fire-s decode 4.50 1,778 1.12"
    assert lines[-1] == "– forward t5 n=2048: failed: out of memory"


def test_an_interrupted_model_record():
    record = model_record(device="cpu", dtype="float32", compile=False, size="tiny") | {"interrupted": True, "rows": []}
    head = "tiny model, float32, not compiled; a CPU, 1 thread, torch 2.11.0+cu130; interrupted"
    assert lines_of(record) == [head]


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
    model_speed.add_ratios(rows)
    assert rows == h200["rows"]
    assert all(any(key.startswith("÷ rope") for key in row) for row in rows)


@pytest.mark.parametrize("rows", [22, 3, 0])
def test_plot_of_attention(rows, tmp_path):
    record = attention_record()
    plot_speed(record | {"rows": record["rows"][:rows]}, tmp_path / "speed.png")
    assert is_png(tmp_path / "speed.png")


@pytest.mark.parametrize("rows", [slice(10), slice(1), slice(0), slice(9, 10)])
def test_plot_of_models(rows, tmp_path):
    """Even without rows, and with failures only."""
    record = model_record()
    plot_model(record | {"rows": record["rows"][rows]}, tmp_path / "model.png")
    assert is_png(tmp_path / "model.png")


def test_plot_of_the_results(h200, tmp_path):
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    plot_model(h200, tmp_path / "model.png")
    pixels = imread(tmp_path / "model.png")[..., :3]
    height, width, _ = pixels.shape
    assert width > 2 * height  # three panels
    orange = (abs(pixels - to_rgb(COLORS["fire"][0])).max(-1) < 0.02).nonzero()[1]
    for panel in range(3):  # FIRE's bars are in each
        assert ((orange > panel * width / 3) & (orange < (panel + 1) * width / 3)).sum() > 500
