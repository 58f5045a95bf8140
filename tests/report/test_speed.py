"""Measurements as tables, figures and a picture; and the pages that show them."""

from pathlib import Path

import pytest

from longfire.bench.attention_speed import add_ratios
from longfire.report.speed import speed_table
from longfire.report.speed_plot import plot_speed
from tests.report.records import attention_record

ROOT = Path(__file__).parents[2]


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
    assert "1.2" in shown
    assert "– fire n=16: needs about 99 GB" in shown


def test_attention_table():
    record = attention_record()
    shown = speed_table(record)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "attention, 12 heads of 64, causal, bfloat16; NVIDIA H200, torch 2.11.0+cu130"
    assert lines[2] == "encoding engine forward ms ÷ flash fwd+bwd ms ÷ flash ÷ cudnn MB added ÷ flash"
    assert lines[4:9] == [
        "n = 2,048, 16 sequences",
        "no bias SDPA flash 1.0 1.00 4.0 1.00 1.25 100.0 1.00",
        "no bias SDPA cuDNN 0.8 0.80 3.2 0.80 1.00 80.0 0.80",
        "fire fused 1.5 1.50 5.0 1.25 1.56 150.0 1.50",
        "fire sdpa (the listing) 10.0 10.0 50.0 12.5 15.6 3,000.0 30.0",
    ]
    assert "n = 32,768, 1 sequence" in lines
    assert "fire sdpa (the listing) 160.0 10.0 – – – – –" in lines
    assert "t5 fused – – – – – – –" in lines
    assert "– fire sdpa n=32768, alibi sdpa n=32768: forward + backward: out of memory (151 GB)" in lines
    assert "– t5 fused n=32768: wrong: output: error 1.2e-01 where …" in lines
    assert "fire-s: per layer of 12" in shown
    assert "n=2048 fused 0.90" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert "interrupted" not in shown
    assert "interrupted" in speed_table(record | {"interrupted": True, "rows": record["rows"][:3]})


def test_what_was_refused_is_named_once():
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
    add_ratios(rows)
    lines = [" ".join(line.split()) for line in speed_table(record | {"rows": rows}).splitlines()]
    assert lines[0].endswith("a CPU, 1 threads, torch 2.11.0+cu130")
    assert lines[2] == "encoding engine forward ms ÷ no bias fwd+bwd ms ÷ no bias MB added ÷ no bias"
    assert lines[-2:] == ["no bias SDPA 4.0 1.00 – – – –", "fire sdpa (the listing) 6.0 1.50 – – – –"]


@pytest.mark.parametrize("rows", [22, 3, 0])
def test_picture(tmp_path, rows):
    record = attention_record()
    record["rows"] = record["rows"][:rows]
    plot_speed(record, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
