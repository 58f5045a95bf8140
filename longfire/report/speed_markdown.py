"""Speed records as Markdown for pages."""

from typing import Any

from longfire.bench.attention_speed import BOTH, MEMORY, RATIOS
from longfire.bench.benchmark import FIRE_S, FORWARD
from longfire.bench.model_speed import BASELINE
from longfire.encodings.registry import title_of
from longfire.report.speed import LENGTHS_OF, LISTING, batch_and_type, best_rows, machine, number
from longfire.report.table import Table

FIGURES: dict[str, tuple[str | tuple[str, str], str]] = {
    "forward, FIRE fused ÷ SDPA flash without bias": ("flash", FORWARD),
    "forward + backward ÷ the same": ("flash", BOTH),
    "forward + backward, the listing ÷ FIRE fused": (LISTING, BOTH),
    "memory added ÷ SDPA flash's": ("flash", MEMORY),
    "forward + backward ÷ SDPA cuDNN": ("cudnn", BOTH),
}
"""What each is divided by, and which number."""

Record = dict[str, Any]


def figures_table(record: Record) -> str:
    """FIRE on the fused engine, relative to attention without a bias and to the paper's listing."""
    rows = {(row["encoding"], row["engine"], row["n"]): row for row in record["rows"]}
    lengths = [n for n in record["setting"]["lengths"] if any(n == key[2] for key in rows)]

    def figure(n: int, against: str | tuple[str, str], key: str) -> str:
        fused = rows.get(("fire", "fused", n), {})
        if isinstance(against, str):
            return number(fused.get(RATIOS[against], {}).get(key))
        ours, other = (row.get(key, {}).get("ms") for row in (fused, rows.get((*against, n), {})))
        return number(other / ours if ours and other else None)

    batches = {row["n"]: row["batch"] for row in record["rows"]}
    columns = ["", *(f"{batches[n]} × {n:,} tokens" for n in lengths)]
    cells = [[label, *(figure(n, against, key) for n in lengths)] for label, (against, key) in FIGURES.items()]
    return Table(columns, cells).markdown()


def model_figures(record: Record) -> str:
    """Throughput of FIRE, FIRE-S and T5 relative to RoPE on each of its kernels. More is faster."""
    cells = []
    rows = record["rows"]
    for kind, n in dict.fromkeys((row["kind"], row["n"]) for row in rows):
        same = {row["encoding"]: row for row in rows if (row["kind"], row["n"]) == (kind, n) and "ms" in row}
        for ratio in (key for key in same.get("fire", {}) if key.startswith("÷")):
            speeds = [f"{1 / same[name][ratio]:.2f}" if name in same else "–" for name in ("fire", FIRE_S, "t5")]
            engine = ratio.removeprefix(f"÷ {BASELINE} (").removesuffix(")")
            cells.append([f"{kind}, {n:,} {LENGTHS_OF[kind]}", engine, *speeds])
    return Table(["tokens a second, RoPE = 1", "RoPE by", "FIRE", "FIRE-S", "T5"], cells, left=2).markdown()


def forward_markdown(record: Record) -> str:
    """The paper's figure as a table: a forward pass with each encoding on its fastest engine, the fastest first."""
    rows = [row for row in best_rows(record) if row["kind"] == FORWARD]
    cells = [
        [_title(row), row["engine"], f"{row['ms']:.2f}", f"{row['fastest']:.2f} to {row['slowest']:.2f}"]
        for row in sorted(rows, key=lambda row: row["ms"])
    ]
    cells += [
        [_title(row), "–", "failed" if "failed" in row else "not run", "–"]
        for row in record["rows"]
        if row["kind"] == FORWARD and ("failed" in row or "not run" in row)
    ]
    about = (
        f"Logits of {batch_and_type(record)}, with the {record['setting']['size']} model on {machine(record)}: the "
        "median of many passes, and the fastest and slowest of them."
    )
    columns = ["encoding", "attention by", "milliseconds", "fastest to slowest"]
    return Table(columns, cells, left=2, title=about).markdown()


def _title(row: dict[str, Any]) -> str:
    return "FIRE-S" if row["encoding"] == FIRE_S else title_of(row["encoding"])
