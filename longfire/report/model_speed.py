"""The speed of whole models: a table, and the paper's figure."""

from pathlib import Path
from typing import Any

from longfire.bench.attention_speed import FIRE_S
from longfire.bench.model_speed import BASELINE, DECODING, FORWARD, TRAINING
from longfire.report.table import text_table

TITLES = {
    FORWARD: "forward, milliseconds",
    TRAINING: "training, thousand tokens a second",
    DECODING: "decoding, tokens a second",
}
HEADS = {FORWARD: "tokens", TRAINING: "tokens", DECODING: "tokens in the cache"}


def model_table(record: dict[str, Any]) -> str:
    """A block for each kind and length, relative to RoPE on each of its kernels."""
    setting = record["setting"]
    parts = [
        f"{setting['size']} model, {setting['dtype']}, {'compiled' if setting['compile'] else 'not compiled'}; "
        f"{_machine(record)}{'; interrupted' if record.get('interrupted') else ''}"
    ]
    for kind, n in dict.fromkeys((row["kind"], row["n"]) for row in record["rows"]):
        rows = [row for row in record["rows"] if (row["kind"], row["n"]) == (kind, n)]
        ratios = list(dict.fromkeys(key for row in rows for key in row if key.startswith("÷")))
        shown = [
            [
                row["encoding"],
                row.get("engine", "–"),
                f"{row['ms']:,.2f}" if "ms" in row else "–",
                f"{row['tokens/s']:,}" if "ms" in row else "–",
                *(f"{row[ratio]:.2f}" if ratio in row else "–" for ratio in ratios),
            ]
            for row in sorted(rows, key=lambda row: row.get("ms", float("inf")))
        ]
        header = ["encoding", "engine", "ms", "tokens/s", *ratios]
        parts.append(f"{kind}, {rows[0]['batch']} × {n:,} {HEADS[kind]}\n{text_table(header, shown, left=2)}")
    failed = [
        f"{row['encoding']} {row['kind']} n={row['n']}: {row['failed']}" for row in record["rows"] if "failed" in row
    ]
    return "\n\n".join([*parts, *(["– " + "\n– ".join(failed)] if failed else [])])


def batch_and_type(record: dict[str, Any]) -> str:
    """What a forward pass was of: `16 × 2,048 tokens, bfloat16, compiled`."""
    setting = record["setting"]
    row = next((row for row in record["rows"] if row["kind"] == FORWARD), None)
    size = [f"{row['batch']} × {row['n']:,} tokens"] if row and "batch" in row else []
    return ", ".join([*size, setting["dtype"], "compiled" if setting["compile"] else "not compiled"])


def _machine(record: dict[str, Any]) -> str:
    made = record["provenance"]
    hardware = made["hardware"]
    on_gpu = record["setting"]["device"] == "cuda"
    return f"{hardware['gpu'] if on_gpu else hardware['cpu']}, torch {made['versions']['torch']}"


def best_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each encoding the row on its fastest engine, for each kind and length."""
    best: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in record["rows"]:
        key = row["kind"], row["n"], row["encoding"]
        if "ms" in row and (key not in best or row["ms"] < best[key]["ms"]):
            best[key] = row
    return list(best.values())


def plot_model(record: dict[str, Any], path: Path) -> None:
    """Forward by encoding, as in the paper's figure; training and decoding beside it."""
    from matplotlib.figure import Figure

    best = best_rows(record)
    rows = [row for row in record["rows"] if row in best or (row["kind"] == TRAINING and "ms" in row)]
    kinds = [kind for kind in TITLES if any(row["kind"] == kind for row in rows)]
    panels = max(1, len(kinds))  # an empty one where nothing was measured
    figure = Figure(figsize=(5.2 * panels, 5.6), layout="constrained")
    axes_of = figure.subplots(1, panels, squeeze=False)[0]
    for axes, kind in zip(axes_of, kinds, strict=False):
        own = [row for row in rows if row["kind"] == kind]
        unit = {FORWARD: ("ms", 1.0), TRAINING: ("tokens/s", 1e-3), DECODING: ("tokens/s", 1.0)}[kind]
        lengths = sorted({row["n"] for row in own}, reverse=True)
        bars = [row for n in lengths for row in sorted((r for r in own if r["n"] == n), key=lambda r: -r["ms"])]
        values = [row[unit[0]] * unit[1] for row in bars]
        several = len(lengths) > 1
        labels = [row["encoding"] + (f", {row['n']:,}" if several else "") for row in bars]
        drawn = axes.barh(range(len(bars)), values, color=[_color(row) for row in bars])
        axes.bar_label(
            drawn,
            [f"{value:,.4g}  {row['engine']}" for value, row in zip(values, bars, strict=True)],
            padding=3,
            fontsize=8,
        )
        axes.set_yticks(range(len(bars)), labels)
        axes.set_xlim(0, max(values) * 1.45)
        axes.set_title(TITLES[kind])
        axes.spines[["top", "right"]].set_visible(False)
    setting = record["setting"]
    figure.suptitle(
        f"The {setting['size']} model in {setting['dtype']} on {_machine(record)}; "
        + "; ".join(f"{kind} at {', '.join(f'{n:,}' for n in setting[kind])}" for kind in kinds)
    )
    figure.savefig(path, dpi=110)


def _color(row: dict[str, Any]) -> str:
    return {"fire": "crimson", FIRE_S: "darkorange", BASELINE: "black"}.get(row["encoding"], "silver")
