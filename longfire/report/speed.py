"""Tables of speed records, for a terminal."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from longfire.bench.attention_speed import BASELINES, BOTH, MEMORY, RATIOS
from longfire.bench.benchmark import FIRE_S, FORWARD, NO_BIAS
from longfire.bench.model_speed import DECODING, TRAINING
from longfire.report.table import Block, Table, render_text

LISTING = ("fire", "sdpa")
"""The paper's listing: FIRE's bias as one tensor, passed to PyTorch's SDPA."""
LENGTHS_OF = {FORWARD: "tokens", TRAINING: "tokens", DECODING: "tokens in the cache"}

Record = dict[str, Any]
Row = dict[str, Any]


def speed_table(record: Record) -> str:
    """The report of `longfire bench`: what was measured and where, the tables, and why numbers are missing."""
    subject, stopped = record["setting"]["subject"], "; interrupted" if record.get("interrupted") else ""
    head, *blocks = {"bias": _bias, "attention": _attention, "model": _model}[subject](record)
    return render_text([f"{head}; {machine(record)}{stopped}", *blocks, _missing(record["rows"])])


def machine(record: Record) -> str:
    """The GPU or CPU, and the version of torch."""
    hardware, torch = record["provenance"]["hardware"], f"torch {record['provenance']['versions']['torch']}"
    if record["setting"].get("device") == "cuda":
        return f"{hardware['gpu']}, {torch}"
    threads = f", {hardware['threads']} threads" if "threads" in hardware else ""
    return f"{hardware['cpu']}{threads}, {torch}"


def number(value: float | None) -> str:
    """Two decimals below 10, else one."""
    return "–" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def _bias(record: Record) -> list[Block]:
    """Encodings as rows, lengths as columns: milliseconds, then megabytes."""
    setting = record["setting"]
    lengths = setting["lengths"]
    cells = {(row["encoding"], row["n"]): row for row in record["rows"]}
    rows = [
        [name, *(number(cells.get((name, n), {}).get(key)) for key in ("ms", "peak_mb") for n in lengths)]
        for name in dict.fromkeys(name for name, _ in cells)
    ]
    columns = ["encoding", *(f"{unit}, n={n}" for unit in ("ms", "MB") for n in lengths)]
    head = f"bias, {setting['heads']} heads of {setting['head_dim']}, one sequence, forward, float32"
    return [head, Table(columns, rows)]


def _attention(record: Record) -> list[Block]:
    """A table per length: milliseconds and megabytes, absolute and relative to attention without a bias."""
    setting = record["setting"]
    rows = [row for row in record["rows"] if FORWARD in row or "not run" not in row]
    bases = BASELINES[setting["device"]]
    first = bases[0]
    columns: list[tuple[str, tuple[str, str]]] = [
        ("forward ms", (FORWARD, "ms")),
        (_ratio_header(first), (RATIOS[first], FORWARD)),
        ("fwd+bwd ms", (BOTH, "ms")),
        *((_ratio_header(base), (RATIOS[base], BOTH)) for base in bases),
        ("MB added", (BOTH, "peak_mb")),
        (_ratio_header(first), (RATIOS[first], MEMORY)),
    ]
    tables = [
        Table(
            ["encoding", "engine", *(name for name, _ in columns)],
            [[*_names(row), *(number(row.get(part, {}).get(key)) for _, (part, key) in columns)] for row in group],
            left=2,
            title=f"n = {n:,}, {batch} sequence{'s' * (batch > 1)}",
        )
        for (n, batch), same in groupby(rows, key=lambda row: (row["n"], row["batch"]))
        if (group := list(same))
    ]
    head = f"attention, {setting['heads']} heads of {setting['head_dim']}, causal, {setting['dtype']}"
    return [head, *tables, _launch_overhead(rows), _sharing(record)]


def _model(record: Record) -> list[Block]:
    """A table per kind and length, fastest first, with times relative to RoPE on each of its kernels."""
    setting, tables = record["setting"], []
    for kind, n in dict.fromkeys((row["kind"], row["n"]) for row in record["rows"]):
        rows = [row for row in record["rows"] if (row["kind"], row["n"]) == (kind, n)]
        ratios = list(dict.fromkeys(key for row in rows for key in row if key.startswith("÷")))
        cells = [
            [
                row["encoding"],
                row.get("engine", "–"),
                f"{row['ms']:,.2f}" if "ms" in row else "–",
                f"{row['tokens/s']:,}" if "ms" in row else "–",
                *(f"{row[ratio]:.2f}" if ratio in row else "–" for ratio in ratios),
            ]
            for row in sorted(rows, key=lambda row: row.get("ms", float("inf")))
        ]
        title = f"{kind}, {rows[0]['batch']} × {n:,} {LENGTHS_OF[kind]}"
        tables.append(Table(["encoding", "engine", "ms", "tokens/s", *ratios], cells, left=2, title=title))
    compiled = "compiled" if setting["compile"] else "not compiled"
    return [f"{setting['size']} model, {setting['dtype']}, {compiled}", *tables]


def batch_and_type(record: Record) -> str:
    """The forward pass: `16 × 2,048 tokens, bfloat16, compiled`."""
    setting = record["setting"]
    row = next((row for row in record["rows"] if row["kind"] == FORWARD), None)
    size = [f"{row['batch']} × {row['n']:,} tokens"] if row and "batch" in row else []
    return ", ".join([*size, setting["dtype"], "compiled" if setting["compile"] else "not compiled"])


def best_rows(record: Record) -> list[Row]:
    """The fastest engine's row for each kind, length and encoding."""
    best: dict[tuple[str, int, str], Row] = {}
    for row in record["rows"]:
        key = row["kind"], row["n"], row["encoding"]
        if "ms" in row and (key not in best or row["ms"] < best[key]["ms"]):
            best[key] = row
    return list(best.values())


def _names(row: Row) -> tuple[str, str]:
    """Display names of encoding and engine."""
    if row["encoding"] == NO_BIAS:
        return NO_BIAS, {"flash": "SDPA flash", "cudnn": "SDPA cuDNN", "sdpa": "SDPA"}[row["engine"]]
    listing = (row["encoding"], row["engine"]) == LISTING
    return row["encoding"], f"{row['engine']} (the listing)" if listing else row["engine"]


def _ratio_header(baseline: str) -> str:
    return "÷ no bias" if baseline == "sdpa" else RATIOS[baseline]


def _launch_overhead(rows: Sequence[Row]) -> str:
    """Eager times, where the tables have times of replayed CUDA graphs."""
    eager = [
        f"{row['encoding']} n={row['n']} {number(row[FORWARD]['eager_ms'])}"
        for row in rows
        if "eager_ms" in row.get(FORWARD, {}) and row["encoding"] in (NO_BIAS, "fire") and row["engine"] != "cudnn"
    ]
    if not eager:
        return ""
    return (
        "Calls that a CUDA graph can capture are timed as replayed graphs: GPU time only. Forward launched from eager "
        f"Python, in ms: {', '.join(eager)}."
    )


def _sharing(record: Record) -> str:
    """What sharing one FIRE across layers saves."""
    by_length: dict[int, list[str]] = {}
    for row in record["rows"]:
        if row["encoding"] == FIRE_S and BOTH in row.get("÷ not shared", {}):
            by_length.setdefault(row["n"], []).append(f"{row['engine']} {number(row['÷ not shared'][BOTH])}")
    if not by_length:
        return ""
    ratios = "; ".join(f"n={n} {', '.join(engines)}" for n, engines in by_length.items())
    layers = record["setting"]["shared_layers"]
    return f"{FIRE_S}: time per layer, with one bias for {layers} layers. Fwd+bwd ÷ one FIRE per layer: {ratios}."


def _missing(rows: Sequence[Row]) -> list[str]:
    """Why cells are empty, one line per reason."""
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        for status in ("not run", "wrong", "failed"):
            if status in row:
                reason = row[status] if status == "not run" else f"{status}: {row[status]}"
                reasons.setdefault(reason, []).append(row)
    return [f"{_cases(affected, rows)}: {reason}" for reason, affected in reasons.items()]


def _cases(affected: Sequence[Row], rows: Sequence[Row]) -> str:
    """The names of the affected rows; just the engine if all its rows are affected."""
    names = []
    for row in affected:
        engine = row.get("engine")
        if engine and "not run" in row and all(other in affected for other in rows if other.get("engine") == engine):
            names.append(engine)
        else:
            names.append(" ".join(part for part in (row.get("kind"), row["encoding"], engine, f"n={row['n']}") if part))
    return ", ".join(dict.fromkeys(names))
