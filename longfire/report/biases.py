"""Plot learned biases by key: one line per head, one panel per layer and query."""

from pathlib import Path
from typing import Any

MAX_LAYERS = 4
"""Maximum number of layers to draw, evenly spaced."""


def plot_biases(curves: list[dict[str, Any]], path: Path) -> Path:
    """Draw layers as rows and queries as columns. `curves` are an encoding's `biases` in a comparison's record."""
    from matplotlib.figure import Figure

    queries = sorted({curve["query"] for curve in curves})
    all_layers = sorted({curve["layer"] for curve in curves})
    chosen = [i * (len(all_layers) - 1) // (MAX_LAYERS - 1) for i in range(MAX_LAYERS)]
    layers = all_layers if len(all_layers) <= MAX_LAYERS else [all_layers[i] for i in chosen]
    figure = Figure(figsize=(5.2 * len(queries), 2.3 * len(layers)), layout="constrained")
    grid = figure.subplots(len(layers), len(queries), squeeze=False)
    for row, layer in zip(grid, layers, strict=True):
        for axes, query in zip(row, queries, strict=True):
            for curve in curves:
                if (curve["layer"], curve["query"]) == (layer, query):
                    keys = [position + 1 for position in curve["positions"]]
                    axes.plot(keys, curve["values"], linewidth=1.3)
            axes.set_title(f"layer {layer + 1} of {len(all_layers)}, query {query + 1:,}", fontsize=10)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Learned bias of each head, first seed")
    for axes in grid[-1]:
        axes.set_xlabel("key")
    for row in grid:
        row[0].set_ylabel("bias")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
