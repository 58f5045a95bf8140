"""Plots of speed records."""

from pathlib import Path
from typing import Any

from longfire.bench.benchmark import BOTH, FIRE_S, FORWARD, NO_BIAS
from longfire.bench.layout_speed import ratio_name
from longfire.bench.layouts import LAYOUTS, Comparison
from longfire.bench.model_speed import BASELINE, DECODING, TRAINING
from longfire.encodings.labels import label_title
from longfire.report.speed import best_rows, compared, machine, number
from longfire.report.summary import COLORS, assign_colors

FIRE_COLORS = {name: COLORS[name][0] for name in ("fire", FIRE_S)}
PANELS = {"ms": "forward + backward, milliseconds", "peak_mb": "memory added by forward + backward, MB"}
STYLES: tuple[tuple[Any, str], ...] = (
    ("-", "o"),
    ("-.", "s"),
    (":", "^"),
    ((0, (5, 1, 1, 1, 1, 1)), "D"),
    ((0, (1, 3)), "v"),
)
"""Line styles and markers of engines, in order. Baselines are dashed."""
BASELINE_LOOKS = {
    "flash": ("SDPA flash, no bias", "black"),
    "cudnn": ("SDPA cuDNN, no bias", "gray"),
    "sdpa": ("SDPA, no bias", "black"),
}
PART_COLORS = {FORWARD: "silver", BOTH: FIRE_COLORS["fire"]}
MODEL_PANELS = {
    FORWARD: ("forward, milliseconds", "ms", 1.0),
    TRAINING: ("training, thousand tokens per second", "tokens/s", 1e-3),
    DECODING: ("decoding, tokens per second", "tokens/s", 1.0),
}

Record = dict[str, Any]
Row = dict[str, Any]


def plot_speed(record: Record, path: Path) -> None:
    """Plot time and memory by length: a colour per encoding, a style per engine, no bias dashed."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows, lengths = record["rows"], record["setting"]["lengths"]
    measured = [row for row in rows if row["encoding"] != NO_BIAS and BOTH in row]
    names = list(dict.fromkeys(row["encoding"] for row in measured))
    engines = list(dict.fromkeys(row["engine"] for row in measured))
    pairs = assign_colors([(label_title(name), name) for name in names])
    colors = {name: on_white for name, (on_white, _) in zip(names, pairs, strict=True)}

    def look(name: str, engine: str) -> dict[str, Any]:
        if name == NO_BIAS:
            return {"color": BASELINE_LOOKS[engine][1], "linestyle": "--", "linewidth": 2, "zorder": 4}
        style, marker = STYLES[engines.index(engine) % len(STYLES)]
        fire = name in FIRE_COLORS
        thick = name == "fire"  # stays visible under FIRE-S, which often coincides
        size = {"linewidth": 2.4 if thick else 1.2, "markersize": 7 if thick else 4}
        return {"color": colors[name], "linestyle": style, "marker": marker, **size} | (
            {"zorder": 3, "alpha": 1} if fire else {"zorder": 2, "alpha": 0.75}
        )

    figure = Figure(figsize=(13, 6.2), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for (name, engine), points in _lines(rows, key).items():
            axes.plot(*zip(*points, strict=True), **look(name, engine))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.set_xlabel("sequence length in tokens")
        axes.set_title(title)
        axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,g}"))
        axes.grid(alpha=0.3, which="major")
    baselines = dict.fromkeys(row["engine"] for row in rows if row["encoding"] == NO_BIAS)
    looks = [BASELINE_LOOKS[engine] for engine in baselines]
    keys = [Line2D([], [], color=color, linestyle="--", label=label) for label, color in looks]
    keys += [Line2D([], [], color=colors[name], linewidth=3, label=name) for name in names]
    for engine, (style, marker) in zip(engines, STYLES * len(engines), strict=False):
        keys.append(Line2D([], [], color="dimgray", linestyle=style, marker=marker, label=f"engine {engine}"))
    figure.legend(handles=keys, loc="outside right center", frameon=False)
    figure.suptitle(_attention_title(record))
    figure.savefig(path, dpi=100)


def _lines(rows: list[Row], key: str) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Measured points (length, value) by encoding and engine."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        if row.get(BOTH, {}).get(key):
            lines.setdefault((row["encoding"], row["engine"]), []).append((row["n"], row[BOTH][key]))
    return {name: sorted(points) for name, points in lines.items()}


def _attention_title(record: Record) -> str:
    setting = record["setting"]
    amount = f"{setting['tokens']:,} tokens per batch" if setting["tokens"] else "one sequence"
    heads = f"{setting['heads']} heads of {setting['head_dim']}"
    return f"Causal attention with position biases: {heads}, {setting['dtype']}, {amount}. {machine(record)}"


def plot_model(record: Record, path: Path) -> None:
    """Plot forward times by encoding, as in the paper's figure, next to training and decoding."""
    from matplotlib.figure import Figure

    best = best_rows(record)
    rows = [row for row in record["rows"] if row in best or (row["kind"] == TRAINING and "ms" in row)]
    kinds = [kind for kind in MODEL_PANELS if any(row["kind"] == kind for row in rows)]
    panels = max(1, len(kinds))  # one empty panel if nothing was measured
    figure = Figure(figsize=(5.2 * panels, 5.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, panels, squeeze=False)[0], kinds, strict=False):
        _plot_bars(axes, kind, [row for row in rows if row["kind"] == kind])
    setting = record["setting"]
    lengths = "; ".join(f"{kind} at {', '.join(f'{n:,}' for n in setting[kind])}" for kind in kinds)
    figure.suptitle(f"The {setting['size']} model in {setting['dtype']} on {machine(record)}; {lengths}")
    figure.savefig(path, dpi=110)


def _plot_bars(axes: Any, kind: str, rows: list[Row]) -> None:
    """Draw a bar per row, longest sequences at the bottom, slowest first within a length."""
    title, key, factor = MODEL_PANELS[kind]
    bars = sorted(rows, key=lambda row: (-row["n"], -row["ms"]))
    values = [row[key] * factor for row in bars]
    several = len({row["n"] for row in bars}) > 1
    colors = FIRE_COLORS | {BASELINE: "black"}
    drawn = axes.barh(range(len(bars)), values, color=[colors.get(row["encoding"], "silver") for row in bars])
    texts = [f"{value:,.4g}  {row['engine']}" for value, row in zip(values, bars, strict=True)]
    axes.bar_label(drawn, texts, padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), [row["encoding"] + (f", {row['n']:,}" if several else "") for row in bars])
    axes.set_xlim(0, max(values) * 1.45)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)


def plot_layouts(record: Record, path: Path) -> None:
    """Plot the times of each layout divided by its baseline's, labelled in milliseconds, with a line at each target."""
    from matplotlib.figure import Figure

    setting, layouts = record["setting"], record["setting"]["layouts"]
    bars = [[pair for pair in compared(record) if pair[0] in LAYOUTS[name].comparisons] for name in layouts]
    heights = [len(pairs) + 1 for pairs in bars]
    figure = Figure(figsize=(10, 1 + 0.5 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(layouts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, name, pairs in zip(panels, layouts, bars, strict=True):
        several = len({row["n"] for _, row in pairs}) > 1
        for i, (comparison, row) in enumerate(pairs):
            _plot_ratio(axes, i, comparison, row, setting["device"])
        axes.set_yticks(range(len(pairs)), [_ratio_label(*pair, setting["device"], several) for pair in pairs])
        axes.set_ylim(max(1, len(pairs)) - 0.5, -0.5)  # from top to bottom
        axes.set_xlim(left=0)
        axes.axvline(1, color="gray", linestyle=":", zorder=0)
        axes.set_title(name)
        axes.spines[["top", "right"]].set_visible(False)
    keys = {key: handle for axes in panels for handle, key in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(keys.values(), keys, loc="outside lower center", ncols=3, frameon=False)
    heads = f"{setting['heads']} heads of {setting['head_dim']}, {setting['dtype']}"
    figure.suptitle(f"Time of attention relative to a baseline: {heads}. {machine(record)}")
    figure.savefig(path, dpi=110)


def _plot_ratio(axes: Any, place: int, comparison: Comparison, row: Row, device: str) -> None:
    """Draw a bar for forward, one for both, their targets, and the numbers on the right."""
    for y, part in ((place - 0.2, FORWARD), (place + 0.2, BOTH)):
        ratio, target = row[ratio_name(comparison, device)].get(part), comparison.target(row, part)
        if ratio is None:
            continue
        axes.barh(y, ratio, 0.36, color=PART_COLORS[part], label=part)
        text = f"{number(ratio)}   {number(row[part]['ms'])} ms"
        axes.text(1.01, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        if target is not None:
            axes.vlines(target, y - 0.2, y + 0.2, color="black", label="target")


def _ratio_label(comparison: Comparison, row: Row, device: str, several: bool) -> str:
    """`fire: random positions ÷ causal`, with the engine unless it is the fused one."""
    engine = "" if row["engine"] == "fused" else f" on {row['engine']}"
    length = f", {row['n']:,}" if several else ""
    return f"{row['encoding']}{engine}{length}: {comparison.arrangement} {ratio_name(comparison, device)}"


PLOTS = {"attention": plot_speed, "layouts": plot_layouts, "model": plot_model}
"""By the subject of a record."""
