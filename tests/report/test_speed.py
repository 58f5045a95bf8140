"""Measurements as tables, figures and a picture; and the pages that show them."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from longfire.bench import attention_speed, model_speed
from longfire.provenance import kernel_hash
from longfire.report.speed import best_rows, speed_table
from longfire.report.speed_markdown import figures_table, forward_markdown
from longfire.report.speed_plot import plot_model, plot_speed
from tests.report.records import attention_record

ROOT = Path(__file__).parents[2]
MODEL_TIMES = {
    "forward": {("rope", "sdpa flash"): 20.0, ("rope", "sdpa cudnn"): 16.0, ("fire", "fused"): 24.0},
    "training": {("rope", "sdpa flash"): 80.0, ("rope", "sdpa cudnn"): 64.0, ("fire", "fused"): 100.0},
    "decoding": {("rope", "decode"): 4.0, ("fire", "decode"): 5.0, ("fire-s", "decode"): 4.5},
}


def model_record(**changes):
    """As if from a GPU; nobody made these measurements."""
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
    assert lines[2] == "n = 2,048, 16 sequences"
    assert lines[4] == "encoding engine forward ms ÷ flash fwd+bwd ms ÷ flash ÷ cudnn MB added ÷ flash"
    assert lines[6:10] == [
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
    assert "one bias computed for 12 layers" in shown
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
    attention_speed.add_ratios(rows)
    lines = [" ".join(line.split()) for line in speed_table(record | {"rows": rows}).splitlines()]
    assert lines[0].endswith("a CPU, 1 threads, torch 2.11.0+cu130")
    assert lines[4] == "encoding engine forward ms ÷ no bias fwd+bwd ms ÷ no bias MB added ÷ no bias"
    assert lines[-2:] == ["no bias SDPA 4.0 1.00 – – – –", "fire sdpa (the listing) 6.0 1.50 – – – –"]


def test_figures():
    lines = figures_table(attention_record()).splitlines()
    assert lines == [
        "|  | 16 × 2,048 tokens | 4 × 8,192 tokens | 1 × 32,768 tokens |",
        "| --- | --: | --: | --: |",
        "| forward, FIRE fused ÷ SDPA flash without bias | 1.50 | 1.50 | 1.50 |",
        "| forward + backward ÷ the same | 1.25 | 1.25 | 1.25 |",
        "| forward + backward, the listing ÷ FIRE fused | 10.0 | 10.0 | – |",
        "| memory added ÷ SDPA flash's | 1.50 | 1.50 | 1.50 |",
        "| forward + backward ÷ SDPA cuDNN | 1.56 | 1.56 | 1.56 |",
    ]


def test_figures_that_are_missing():
    record = attention_record()
    record["rows"] = [row for row in record["rows"] if row["engine"] != "fused" and row["n"] < 32768]
    shown = figures_table(record)
    assert "32,768" not in shown
    assert shown.count("| – | – |") == 5


@pytest.mark.parametrize("rows", [22, 3, 0])
def test_picture(tmp_path, rows):
    record = attention_record()
    record["rows"] = record["rows"][:rows]
    plot_speed(record, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_papers_figure_as_a_table():
    record = model_record()
    for row in record["rows"]:
        row |= {"fastest": 1.0, "slowest": 99.0}
    table = forward_markdown(record).splitlines()
    assert table[0].startswith("Logits of 16 × 2,048 tokens, bfloat16, compiled, with the base model on NVIDIA H200, ")
    assert table[4:] == [
        "| RoPE | sdpa cudnn | 16.00 | 1.00 to 99.00 |",
        "| FIRE | fused | 24.00 | 1.00 to 99.00 |",
        "| T5 | – | failed | – |",
    ]


def lines_of(record):
    return [" ".join(line.split()) for line in speed_table(record).splitlines()]


def test_model_table():
    lines = lines_of(model_record())
    assert lines[0] == "base model, bfloat16, compiled; NVIDIA H200, torch 2.11.0+cu130"
    forward = lines.index("forward, 16 × 2,048 tokens")
    assert lines[forward + 2] == "encoding engine ms tokens/s ÷ rope (sdpa flash) ÷ rope (sdpa cudnn)"
    assert lines[forward + 4 : forward + 8] == [  # the fastest first, what failed last
        "rope sdpa cudnn 16.00 2,048,000 0.80 1.00",
        "rope sdpa flash 20.00 1,638,400 1.00 1.25",
        "fire fused 24.00 1,365,333 1.20 1.50",
        "t5 – – – – –",
    ]
    decoding = lines.index("decoding, 8 × 2,048 tokens in the cache")
    assert lines[decoding + 2] == "encoding engine ms tokens/s ÷ rope (decode)"
    assert lines[decoding + 5] == "fire-s decode 4.50 1,778 1.12"
    assert lines[-1] == "– forward t5 n=2048: failed: out of memory"


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
    model_speed.add_ratios(rows)
    assert rows == h200["rows"]
    assert all(any(key.startswith("÷ rope") for key in row) for row in rows)


@pytest.mark.parametrize("rows", [10, 3, 1])
def test_model_picture(rows, tmp_path):
    record = model_record()
    record["rows"] = record["rows"][:rows]
    plot_model(record, tmp_path / "model.png")
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rows", [[], [{"kind": "forward", "encoding": "t5", "n": 8, "batch": 1, "failed": "no"}]])
def test_model_picture_of_nothing(rows, tmp_path):
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


def a_repository(root):
    """With two pages that show a record of attention, which is missing."""
    for folder in ("benchmarks", "results/bench", "docs/images"):
        (root / folder).mkdir(parents=True)
    for name in ("update.py", "release_check.py"):
        shutil.copy(ROOT / "benchmarks" / name, root / "benchmarks" / name)
    (root / "docs" / "results.md").write_text("nothing yet\n", encoding="utf-8")
    page, readme = root / "benchmarks" / "README.md", root / "README.md"
    page.write_text("<!-- h200-attention -->\n```\n```\nbetween\n```\nold\n```\n", encoding="utf-8")
    readme.write_text("# Speed\n<!-- h200-attention-figures -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    return str(root / "benchmarks" / "update.py"), page, readme


def measured_with(kernels):
    record = attention_record()
    record["provenance"] |= {"commit": "abc1234"} | ({"kernels": kernels} if kernels else {})
    return record


def test_pages_are_updated_from_the_results_there_are(tmp_path):
    script, page, readme = a_repository(tmp_path)
    with pytest.raises(ValueError, match=r"a page shows h200-attention, and .* has no h200-attention.json"):
        runpy.run_path(script, run_name="__main__")

    record = measured_with(kernel_hash())
    (tmp_path / "results" / "bench" / "h200-attention.json").write_text(json.dumps(record), encoding="utf-8")
    for _ in range(2):  # again: nothing changes
        runpy.run_path(script, run_name="__main__")
        assert page.read_text() == (
            f"<!-- h200-attention -->\n```\n{speed_table(record)}\n```\nbetween\n```\nold\n```\n"
        )
        expected = f"# Speed\n<!-- h200-attention-figures -->\n{figures_table(record)}\n<!-- end -->\nafter\n"
        assert readme.read_text() == expected
    assert (tmp_path / "docs" / "images" / "attention-h200.png").stat().st_size > 10_000
    (tmp_path / "results" / "other").mkdir()
    shutil.copy(tmp_path / "results" / "bench" / "h200-attention.json", tmp_path / "results" / "other")
    with pytest.raises(ValueError, match="two records have one name"):
        runpy.run_path(script, run_name="__main__")


@pytest.mark.parametrize("kernels", ["those of today", "others", None])
def test_outdated_speeds_are_captioned_and_hold_up_a_release(tmp_path, monkeypatch, kernels):
    script, page, readme = a_repository(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "benchmarks")
    record = measured_with(kernel_hash() if kernels == "those of today" else kernels)
    file = tmp_path / "results" / "bench" / "h200-attention.json"
    file.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def problems():
        monkeypatch.delitem(sys.modules, "update", raising=False)
        return runpy.run_path(str(tmp_path / "benchmarks" / "release_check.py"))["problems"]()

    before = "\n".join(problems())
    for name in ("results/bench/h200-attention.json", "README.md", "benchmarks/README.md", "attention-h200.png"):
        assert f"{name} is stale: run python benchmarks/update.py." in before
    runpy.run_path(script, run_name="__main__")
    caption = "Measured at commit abc1234; the kernels have changed since."
    outdated = kernels != "those of today"
    assert (f"\n\n{caption}\n<!-- end -->" in readme.read_text()) == outdated
    assert (f"torch 2.11.0+cu130\n{caption}\n" in page.read_text()) == outdated
    assert problems() == [f"results/bench/h200-attention.json: {caption} Measure it again."] * outdated
