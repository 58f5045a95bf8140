"""Records with invented numbers."""

import math
from dataclasses import asdict
from itertools import pairwise, product

from longfire.bench.attention_speed import add_ratios
from longfire.bench.layout_speed import LayoutBenchmark
from longfire.bench.layouts import EQUAL, LAYOUTS, RANDOM

TIMES = {  # milliseconds and megabytes at 2048 tokens
    ("no bias", "flash"): (1.0, 4.0, 100.0),
    ("no bias", "cudnn"): (0.8, 3.2, 80.0),
    ("fire", "fused"): (1.5, 5.0, 150.0),
    ("fire", "sdpa"): (10.0, 50.0, 3000.0),
    ("fire-s", "fused"): (1.2, 4.5, 120.0),
    ("alibi", "fused"): (1.25, 4.5, 110.0),
    ("alibi", "sdpa"): (8.0, 20.0, 2000.0),
}


def attention_record():
    """A GPU record with 4× the time at 4× the length, where a dense bias runs out of memory at the longest."""
    rows = []
    for n, batch, factor in ((2048, 16, 1), (8192, 4, 4), (32768, 1, 16)):
        for (encoding, engine), (forward, both, memory) in TIMES.items():
            row = {"encoding": encoding, "engine": engine, "n": n, "batch": batch}
            row["errors"] = {"output": [2e-3, 3e-3]}
            row["forward"] = {"ms": forward * factor, "fastest": 1.0, "slowest": 2.0, "calls": 10}
            if engine == "sdpa" and n == 32768:
                row["not run"] = "forward + backward: out of memory (151 GB)"
            else:
                row["forward + backward"] = {"ms": both * factor, "calls": 10, "peak_mb": memory}
            rows.append(row)
    rows.append({"encoding": "t5", "engine": "fused", "n": 32768, "batch": 1, "wrong": "output: error 1.2e-01 where …"})
    add_ratios(rows)
    return {
        "provenance": {
            "hardware": {"cpu": "a CPU", "threads": 1, "gpu": "NVIDIA H200"},
            "versions": {"torch": "2.11.0+cu130"},
        },
        "setting": {
            "subject": "attention",
            "device": "cuda",
            "dtype": "bfloat16",
            "lengths": [2048, 8192, 32768],
            "tokens": 32768,
            "heads": 12,
            "head_dim": 64,
            "shared_layers": 12,
        },
        "rows": rows,
    }


def layout_record():
    """A GPU record of all layouts, where everything takes as long as its baseline, except packed documents."""
    benchmark = LayoutBenchmark(layouts=tuple(LAYOUTS), **{"device": "cpu", **LayoutBenchmark.defaults["cuda"]})
    object.__setattr__(benchmark, "device", "cuda")  # this machine may have none
    rows = [benchmark.labels(case) for case in benchmark.cases()]
    for row in rows:
        if (row["arrangement"], row["encoding"], row["engine"]) == (RANDOM, "fire", "fused"):
            row["not run"] = "it is out of order"
            continue
        ms = 1.1 if row["arrangement"] == EQUAL else 1.0
        row |= {"forward": {"ms": ms, "calls": 10}, "forward + backward": {"ms": 4 * ms, "calls": 10, "peak_mb": 9.0}}
    benchmark.add_ratios(rows)
    return {"provenance": attention_record()["provenance"], "setting": asdict(benchmark), "rows": rows}


LABELS = {"fire": "FIRE", "alibi": "ALiBi", "kerple_log": "Kerple-log", "rope": "RoPE", "nope": "NoPE"}
RISE = {"fire": 0.02, "alibi": -0.01, "kerple_log": 0.0, "rope": 0.35, "nope": 0.45}
"""Rise per doubling past the training length."""
LEVEL = {"fire": 2.10, "alibi": 2.16, "kerple_log": 2.13, "rope": 2.20, "nope": 2.45}


def perplexity(level, rise, lengths=(64, 128, 256, 512, 1024), trained=64):
    """A record in the form of `perplexity_by_length`."""
    rows = []
    for n in lengths:
        value = level + rise * max(0, math.log2(n / trained))
        edges = [0, *(2**k for k in range(3, int(math.log2(n)) + 1))]
        by_position = [
            {"from": a, "to": b, "loss": value + 1 / (1 + a) + (rise if a >= trained else 0)}
            for a, b in pairwise(edges)
        ]
        interval = [value - 0.02, value + 0.02]
        row = {"length": n, "log_perplexity": value, "interval": interval, "by_position": by_position}
        rows.append({**row, "sequences": 900, "documents": 30, "tokens": 900 * (n - 1)})
    return {"protocol": "paired", "rows": rows}


def compare_record(encodings=tuple(LABELS), seeds=(0, 1, 2), layers=2, heads=2):
    """A record in the form of `longfire compare`: FIRE leads near the training length, ALiBi far beyond it."""
    runs = []
    for encoding in encodings:
        for seed in seeds:
            wobble = 0.004 * math.sin(7 * seed + len(encoding))
            common = 0.03 * seed  # seeds differ more than encodings, but shift all encodings equally
            losses = [[step, LEVEL[encoding] + 3.5 * math.exp(-step / 60) + common] for step in range(10, 601, 10)]
            run = {
                "encoding": encoding,
                "label": LABELS[encoding],
                "seed": seed,
                "checkpoint": f"{encoding}-{seed}/model",
            }
            run |= {"parameters": 820_000 + len(encoding), "position_parameters": 1240, "losses": losses}
            run |= {
                "tokens_seen": 2_457_600,
                "unique_tokens": 1_900_000,
                "seconds": 9.5,
                "tokens_per_second": 250_000.0,
            }
            runs.append(run | {"perplexity": perplexity(LEVEL[encoding] + common + wobble, RISE[encoding])})
    biases = []
    for layer, head, query in product(range(layers), range(heads), (63, 1023)):
        keys = sorted({query - min(query, round(1.3**k) - 1) for k in range(30)})
        slope = (1 if head % 2 else -1) * (1 + layer)
        values = [slope * math.log1p(0.1 * (query - key)) for key in keys]
        biases.append({"layer": layer, "head": head, "query": query, "positions": keys, "values": values})
    splits = {
        "train": {"documents": 600, "tokens": 1_900_000, "bytes": 1_899_400},
        "validation": {"documents": 30, "tokens": 90_000, "bytes": 89_970},
    }
    return {
        "provenance": {
            "date": "2025-11-15",
            "commit": "0123456789ab+",
            "hardware": {"cpu": "a CPU", "cores": 2, "threads": 2, "gpu": None},
            "versions": {"longfire": "0.1", "python": "3.11.2", "torch": "2.13.0", "triton": None},
        },
        "setting": {
            "recipe": {
                "name": "tiny",
                "size": "tiny",
                "length": 64,
                "batch_size": 64,
                "betas": [0.9, 0.95],
                "init": None,
            },
            "encodings": list(encodings),
            "seeds": list(seeds),
            "lengths": [64, 128, 256, 512, 1024],
            "trained_length": 64,
            "corpus": {
                "name": "python-stdlib",
                "tokenizer": "bytes",
                "vocab_size": 257,
                "splits": splits,
                "skipped": 0,
            },
        },
        "runs": runs,
        "biases": {"fire": biases},
    }


def with_other_texts(record):
    """The record with two more evaluation texts, a harder and an easier one."""
    for run in record["runs"]:
        encoding, noise = run["encoding"], 0.01 * run["seed"]
        run["also"] = {
            "latex": perplexity(LEVEL[encoding] + 0.4 + noise, 0.7 * RISE[encoding]),
            "code": perplexity(LEVEL[encoding] - 0.5 + noise, 1.3 * RISE[encoding]),
        }
    return record


EXACT = {  # percent at 40, 60, 80, 120 and 160 symbols
    "fire": (100, 100, 99, 98, 97),
    "kerple_log": (100, 99, 98, 95, 91),
    "rope": (100, 92, 0, 0, 0),
    "nope": (99, 93, 30, 0, 0),
}


def task_record(exact=EXACT, seeds=(0, 1, 2), name="copy"):
    """A record in the form of `longfire compare --task`: seeds lie up to 2 points below and above the middle one."""
    runs = []
    for seed in seeds:
        for encoding, values in exact.items():
            rows = [
                {"length": n, "tokens_per_row": 2 * n + 3, "questions": 512, "exact_match": found}
                | {"token_accuracy": (found + 100) / 2}
                for n, value in zip((40, 60, 80, 120, 160), values, strict=False)
                for found in [float(min(100, max(0, value + 2 * (seed - 1 if 2 < value < 98 else 0))))]
            ]
            run = {"encoding": encoding, "label": LABELS[encoding], "seed": seed, "parameters": 850_000}
            run |= {"losses": [[1, 5.0], [400, 0.1]], "tokens_seen": 2_000_000, "unique_tokens": 2_000_000}
            runs.append(run | {"accuracy": {"task": name, "split": "validation", "rows": rows}})
    task = {"name": name, "title": name.capitalize(), "paper": "A paper (2024)", "unit": "symbols", "vocab_size": 257}
    recipe = {"name": "task-tiny", "length": 40, "batch_size": 64, "steps": 400, "init": "kerple_log", "task": name}
    setting = {"recipe": recipe, "encodings": list(exact), "seeds": list(seeds), "lengths": [40, 60, 80, 120, 160]}
    setting |= {"trained_length": 40, "questions": 512, "split": "validation", "corpus": task}
    positions = {"positions": [0, 41, 82], "values": [-1.0, -0.5, 0.0]}
    biases = {"fire": [{"layer": 0, "head": 0, "query": 82, **positions}]}
    return {"provenance": {}, "setting": setting, "notes": [], "runs": runs, "biases": biases}


def record_of(values, lengths=(64,)):
    """A record from {label: [log perplexity of seed 0, 1, …]}, equal at every length; None is a failed run."""
    seeds = list(range(max(map(len, values.values()))))
    record = compare_record(seeds=seeds)
    record["setting"]["lengths"] = list(lengths)
    record["runs"] = [
        {"encoding": label, "seed": seed, "failed": "no memory"}
        if value is None
        else {"encoding": label, "seed": seed, "perplexity": perplexity(value, 0.0, lengths)}
        for label, found in values.items()
        for seed, value in enumerate(found)
    ]
    return record
