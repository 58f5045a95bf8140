"""Tables of speed records, for a terminal."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from longfire.bench.attention_speed import BASELINES, MEMORY, RATIOS
from longfire.bench.benchmark import BOTH, FIRE_S, FORWARD, NO_BIAS, name_of
from longfire.bench.layout_speed import comparisons_of, ratio_name
from longfire.bench.layouts import LAYOUTS, Comparison
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
    head, *blocks = TABLES[subject](record)
    return render_text([f"{head}; {machine(record)}{stopped}", *blocks])


def machine(record: Record) -> str:
    """The GPU or CPU, and the version of torch."""
    hardware, torch = record["provenance"]["hardware"], f"torch {record['provenance']['versions']['torch']}"
    if record["setting"].get("device") == "cuda":
        return f"{hardware['gpu']}, {torch}"
    count = hardware.get("threads")
    threads = f", {count} thread{'s' * (count != 1)}" if count else ""
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
    return [head, Table(columns, rows), missing(record["rows"])]


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
    return [head, *tables, _launch_overhead(rows), _sharing(record), missing(record["rows"])]


def _layouts(record: Record) -> list[Block]:
    """A table per length, what is missing and, last, the ratios."""
    setting, rows = record["setting"], [row for row in record["rows"] if FORWARD in row]
    columns = (FORWARD, "ms"), (BOTH, "ms"), (BOTH, "peak_mb")
    tables = [
        Table(
            ["layout", "encoding", "engine", "forward ms", "fwd+bwd ms", "MB added"],
            [
                [row["arrangement"], *_names(row), *(number(row.get(part, {}).get(key)) for part, key in columns)]
                for row in rows
                if (row["n"], row["batch"]) == (n, batch)
            ],
            left=3,
            title=f"n = {n:,}, {batch * n:,} tokens per batch",
        )
        for n, batch in dict.fromkeys((row["n"], row["batch"]) for row in rows)
    ]
    head = f"attention by layout, {setting['heads']} heads of {setting['head_dim']}, {setting['dtype']}"
    return [head, *tables, missing(record["rows"]), ratio_table(record)]


def ratio_table(record: Record) -> Table:
    """Times relative to each layout's baseline, with the targets in brackets."""
    setting = record["setting"]
    cells: list[list[str]] = []
    for comparison, row in compared(record):
        against = ratio_name(comparison, setting["device"])
        cells.append([comparison.arrangement, against, row["encoding"], row["engine"], f"{row['n']:,}"])
        for part in (FORWARD, BOTH):
            ratio = _with_target(row[against].get(part), comparison.target(row, part))
            cells[-1] += [number(row.get(part, {}).get("ms")), ratio]
    columns = ["layout", "÷ baseline", "encoding", "engine", "n", "forward ms", "ratio", "fwd+bwd ms", "ratio"]
    return Table(columns, cells, left=4)


def _with_target(ratio: float | None, target: float | None) -> str:
    """A ratio and the largest that was wanted; where that was missed, to three decimals."""
    if ratio is None or target is None:
        return number(ratio)
    return f"{number(ratio)} (≤ {target:.2f})" if ratio <= target else f"{ratio:.3f} (> {target:.2f})"


def compared(record: Record) -> list[tuple[Comparison, Row]]:
    """Every comparison with a row that has its ratios, in the layouts' order."""
    layouts, device = record["setting"]["layouts"], record["setting"]["device"]
    return [
        (comparison, row)
        for name in layouts
        for comparison in LAYOUTS[name].comparisons
        for row in record["rows"]
        if comparison in comparisons_of(row, layouts) and ratio_name(comparison, device) in row
    ]


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
    return [f"{setting['size']} model, {setting['dtype']}, {compiled}", *tables, missing(record["rows"])]


TABLES = {"bias": _bias, "attention": _attention, "layouts": _layouts, "model": _model}


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
    listing = (row["encoding"], row["engine"]) == LISTING and "arrangement" not in row
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


def missing(rows: Sequence[Row]) -> list[str]:
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
            names.append(name_of(row.get("kind"), row.get("arrangement"), row["encoding"], engine, row["n"]))
    return ", ".join(dict.fromkeys(names))
