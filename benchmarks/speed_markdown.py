"""Performance records as Markdown: FIRE's attention and models relative to their baselines."""

from benchmarks.names import display_name
from longfire.bench.attention_speed import MEMORY, RATIOS
from longfire.bench.benchmark import BOTH, FIRE_S, FORWARD
from longfire.bench.model_speed import BASELINE
from longfire.report.speed import LENGTHS_OF, batch_and_type, best_rows, machine, number
from longfire.report.summary import Record
from longfire.report.table import Table


def attention_figures(record: Record) -> str:
    """FIRE on the fused engine against FlashAttention, cuDNN and a dense bias."""
    rows = {(row["encoding"], row["engine"], row["n"]): row for row in record["rows"]}
    lengths = [n for n in record["setting"]["lengths"] if any(n == key[2] for key in rows)]

    def ratio(n: int, baseline: str, what: str) -> float | None:
        found: float | None = rows.get(("fire", "fused", n), {}).get(RATIOS[baseline], {}).get(what)
        return found

    def speedup(n: int) -> float | None:
        ours, dense = (rows.get(("fire", engine, n), {}).get(BOTH, {}).get("ms") for engine in ("fused", "sdpa"))
        return dense / ours if ours and dense else None

    figures = {
        "forward, ÷ FlashAttention without a bias": [ratio(n, "flash", FORWARD) for n in lengths],
        "forward + backward, ÷ FlashAttention without a bias": [ratio(n, "flash", BOTH) for n in lengths],
        "forward + backward, ÷ cuDNN without a bias": [ratio(n, "cudnn", BOTH) for n in lengths],
        "memory added, ÷ FlashAttention's": [ratio(n, "flash", MEMORY) for n in lengths],
        "forward + backward, dense bias ÷ fused": [speedup(n) for n in lengths],
    }
    batches = {row["n"]: row["batch"] for row in record["rows"]}
    columns = ["FIRE, fused engine", *(f"{batches[n]} × {n:,} tokens" for n in lengths)]
    cells = [[name, *(number(value) for value in values)] for name, values in figures.items()]
    return Table(columns, cells).markdown()


def model_figures(record: Record) -> str:
    """Throughput of FIRE, FIRE-S and T5 relative to RoPE on each of its kernels. Higher is faster."""
    cells, rows = [], record["rows"]
    for kind, n in dict.fromkeys((row["kind"], row["n"]) for row in rows):
        same = {row["encoding"]: row for row in rows if (row["kind"], row["n"]) == (kind, n) and "ms" in row}
        for ratio in (key for key in same.get("fire", {}) if key.startswith("÷")):
            speeds = [f"{1 / same[name][ratio]:.2f}" if name in same else "–" for name in ("fire", FIRE_S, "t5")]
            engine = ratio.removeprefix(f"÷ {BASELINE} (").removesuffix(")")
            cells.append([f"{kind}, {n:,} {LENGTHS_OF[kind]}", engine, *speeds])
    return Table(["tokens/s, RoPE = 1", "RoPE's kernel", "FIRE", "FIRE-S", "T5"], cells, left=2).markdown()


def forward_markdown(record: Record) -> str:
    """Figure 5 as a table: a forward pass with each encoding on its fastest engine, fastest first."""
    rows = sorted((row for row in best_rows(record) if row["kind"] == FORWARD), key=lambda row: row["ms"])
    cells = [
        [
            display_name(row["encoding"]),
            row["engine"],
            f"{row['ms']:.2f}",
            f"{row['fastest']:.2f} to {row['slowest']:.2f}",
        ]
        for row in rows
    ]
    cells += [
        [display_name(row["encoding"]), "–", status, "–"]
        for row in record["rows"]
        for status in ("failed", "not run")
        if row["kind"] == FORWARD and status in row
    ]
    note = (
        f"Logits of {batch_and_type(record)}, {record['setting']['size']} model, {machine(record)}: median and range "
        "over many passes."
    )
    columns = ["encoding", "engine", "milliseconds", "fastest to slowest"]
    return Table(columns, cells, left=2, highlights=[(0, 2)] if rows else [], notes=[note]).markdown()


def speed_line(record: Record) -> str:
    """The attention record in a sentence, with GPU, versions and commit."""
    rows = [row for row in record["rows"] if (row["encoding"], row["engine"]) == ("fire", "fused")]
    ratios = [row[RATIOS["flash"]][BOTH] for row in rows if BOTH in row.get(RATIOS["flash"], {})]
    if not ratios:
        return ""
    lengths, commit = [row["n"] for row in rows], record["provenance"].get("commit") or "unknown"
    times = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))
    return (
        f"Attention with FIRE, forward and backward, takes {times} times as long as FlashAttention "
        f"without a bias, from {min(lengths):,} to {max(lengths):,} tokens "
        f"({machine(record)}, {record['setting']['dtype']}, commit {commit[:7]})."
    )
