"""Speed measurements as a picture."""

from pathlib import Path
from typing import Any

from longfire.bench.attention_speed import BOTH, FIRE_S, NO_BIAS

PANELS = {"ms": "forward + backward, milliseconds", "peak_mb": "memory added by forward + backward, MB"}
STYLES: tuple[tuple[Any, str], ...] = (
    ("-", "o"),
    ("-.", "s"),
    (":", "^"),
    ((0, (5, 1, 1, 1, 1, 1)), "D"),
    ((0, (1, 3)), "v"),
)
"""Of engines, in order. Dashes are the baselines'."""
BASELINES = {
    "flash": ("SDPA flash, no bias", "black"),
    "cudnn": ("SDPA cuDNN, no bias", "gray"),
    "sdpa": ("SDPA, no bias", "black"),
}


def plot_speed(record: dict[str, Any], path: Path) -> None:
    """Time and memory by length: encodings by colour, engines by style, attention without a bias dashed."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows, setting = record["rows"], record["setting"]
    measured = [row for row in rows if row["encoding"] != NO_BIAS and BOTH in row]
    names = list(dict.fromkeys(row["encoding"] for row in measured))
    engines = list(dict.fromkeys(row["engine"] for row in measured))
    others = [name for name in names if name not in ("fire", FIRE_S)]
    colors: dict[str, Any] = {
        name: mpl.colormaps["viridis"](0.95 * i / max(1, len(others) - 1)) for i, name in enumerate(others)
    }
    colors |= {"fire": "crimson", FIRE_S: "darkorange"}

    figure = Figure(figsize=(13, 6.2), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        lines = _lines(rows, key)
        for (name, engine), points in lines.items():
            if name == NO_BIAS:
                look: dict[str, Any] = {"color": BASELINES[engine][1], "linestyle": "--", "linewidth": 2, "zorder": 4}
            else:
                style, marker = STYLES[engines.index(engine) % len(STYLES)]
                fire = name in ("fire", FIRE_S)
                look = {"color": colors[name], "linestyle": style, "marker": marker, "linewidth": 2.4 if fire else 1.2}
                look |= {"markersize": 7 if fire else 4, "zorder": 3 if fire else 2, "alpha": 1 if fire else 0.75}
                if name == FIRE_S:  # often on top of FIRE's line, which is to be seen beneath
                    look |= {"linewidth": 1.2, "markersize": 4}
            axes.plot(*zip(*points, strict=True), **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(setting["lengths"], [f"{n:,}" for n in setting["lengths"]])
        axes.set_xlabel("tokens in a sequence")
        axes.set_title(title)
        axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,g}"))
        axes.grid(alpha=0.3, which="major")
    keys = [Line2D([], [], color=color, linestyle="--", label=label) for label, color in _baselines(rows)]
    keys += [Line2D([], [], color=colors[name], linewidth=3, label=name) for name in names]
    for engine, (style, marker) in zip(engines, STYLES * len(engines), strict=False):
        keys.append(Line2D([], [], color="dimgray", linestyle=style, marker=marker, label=f"engine {engine}"))
    figure.legend(handles=keys, loc="outside right center", frameon=False)
    figure.suptitle(_about(record))
    figure.savefig(path, dpi=100)


def _lines(rows: list[dict[str, Any]], key: str) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Points (length, value) by encoding and engine, as far as they were measured."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        if row.get(BOTH, {}).get(key):
            lines.setdefault((row["encoding"], row["engine"]), []).append((row["n"], row[BOTH][key]))
    return {name: sorted(points) for name, points in lines.items()}


def _baselines(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [BASELINES[name] for name in dict.fromkeys(row["engine"] for row in rows if row["encoding"] == NO_BIAS)]


def _about(record: dict[str, Any]) -> str:
    setting, hardware = record["setting"], record["provenance"]["hardware"]
    machine = hardware["gpu"] if setting["device"] == "cuda" else f"{hardware['cpu']}, {hardware['threads']} threads"
    amount = f"{setting['tokens']:,} tokens in all" if setting["tokens"] else "one sequence"
    heads = f"{setting['heads']} heads of {setting['head_dim']}"
    return f"Causal attention with position biases: {heads}, {setting['dtype']}, {amount}. {machine}"
