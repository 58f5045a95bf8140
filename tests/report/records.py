"""Records of measurements that nobody made."""

from longfire.evaluation.speed import add_ratios

TIMES = {  # milliseconds and megabytes at 2048 tokens
    ("no bias", "flash"): (1.0, 4.0, 100.0),
    ("no bias", "cudnn"): (0.8, 3.2, 80.0),
    ("fire", "fused"): (1.5, 5.0, 150.0),
    ("fire", "sdpa"): (10.0, 50.0, 3000.0),
    ("fire (shared)", "fused"): (1.2, 4.5, 120.0),
    ("alibi", "fused"): (1.25, 4.5, 110.0),
    ("alibi", "sdpa"): (8.0, 20.0, 2000.0),
}


def attention_record():
    """As if from a GPU: 4× the time at 4× the length, and where a dense bias is built no memory for the longest."""
    rows = []
    for n, batch, factor in ((2048, 16, 1), (8192, 4, 4), (32768, 1, 16)):
        for (encoding, engine), (forward, both, memory) in TIMES.items():
            row = {"encoding": encoding, "engine": engine, "n": n, "batch": batch}
            row["errors"] = {"output": [2e-3, 3e-3]}
            if "shared" in encoding:
                row["layers"] = 12
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
