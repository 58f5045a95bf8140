"""Plots of a comparison: perplexity or exact match by length, training loss, and learned biases."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from longfire.report.description import extensions
from longfire.report.summary import (
    Line,
    Record,
    finished_seeds,
    is_number,
    lengths_of,
    lines_of,
    metric_of,
    texts_of,
)

HOLDS = 0.5
"""Nats: encodings that stay within this of their log perplexity at the shortest length count as extrapolating."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "p", "d", "h", "8")
BAND = 0.08
"""Opacity of the bands over seeds."""
MAX_LINES, MAX_LABEL = 8, 24
"""With more lines, or longer labels, use a legend instead of labels at the line ends."""
LABEL_GAP = 0.05
"""Minimum distance between labels, as a fraction of the axis."""
MAX_POINTS = 240
"""Of a loss curve."""
MAX_LAYERS = 4
"""Maximum number of layers whose biases are drawn, evenly spaced."""


def plot_compare(record: Record, folder: Path) -> list[Path]:
    """Write perplexity.png, with panels for each text, or accuracy.png, and losses.png; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f" on {name}": one for name, one in texts_of(record).items()}
    if len(texts) == 1:
        texts = {"": record}
    whole = [partial(_draw_by_length, one, suffix) for suffix, one in texts.items()]
    zoomed = [partial(_draw_zoomed, one, suffix) for suffix, one in texts.items() if zoom_limits(one)]
    labels = [line.label for line in lines_of(record)]
    direct = len(labels) <= MAX_LINES and max(map(len, labels), default=0) <= MAX_LABEL
    return [
        _save([*whole, *zoomed], folder / f"{metric_of(record).test}.png", legend=not direct),
        _save([partial(_draw_losses, record)], folder / "losses.png", legend=True),
    ]


def _save(panels: Sequence[Callable[[Any], None]], path: Path, *, legend: bool) -> Path:
    from matplotlib.figure import Figure

    across = 2 if len(panels) == 4 else min(3, len(panels))
    down = -(-len(panels) // across)
    width = {1: 9.0, 2: 13.0}.get(across, 4.6 * across + 2)
    figure = Figure(figsize=(width, 5.2 if down == 1 else 4.4 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, draw in zip(grid.flat, panels, strict=False):
        draw(axes)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if not legend:
            _label_ends(axes)
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles and legend:
        names = [fill(label, 22, break_long_words=False) for label in labels]
        figure.legend(handles, names, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _label_ends(axes: Any) -> None:
    """Label each line at its last point, with the labels spread apart."""
    low, high = axes.get_ylim()
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    right = max((line.get_xdata()[-1] for line in lines), default=0)
    ends = {line: (line.get_ydata()[-1] - low) / (high - low) for line in lines if line.get_xdata()[-1] == right}
    shown = sorted((line for line, y in ends.items() if 0 <= y <= 1), key=lambda line: ends[line])
    heights = spread_apart([ends[line] for line in shown], LABEL_GAP)
    for line, y in zip(shown, heights, strict=True):
        axes.annotate(
            line.get_label(), (1, y), xycoords="axes fraction", xytext=(4, 0),
            textcoords="offset points", va="center", color=line.get_color(), fontsize=9, annotation_clip=False,
        )  # fmt: skip


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """Move ascending places up and down equally, within [0, 1], until they are at least `gap` apart."""
    middle = [fmean(pair) for pair in zip(_pushed_up(places, gap), _pushed_down(places, gap), strict=True)]
    inside = _pushed_up([max(0.0, place) for place in middle], gap)
    return _pushed_down([min(1.0, place) for place in inside], gap)


def _pushed_up(places: Sequence[float], gap: float) -> list[float]:
    return list(accumulate(places, lambda last, place: max(place, last + gap)))


def _pushed_down(places: Sequence[float], gap: float) -> list[float]:
    return [-place for place in reversed(_pushed_up([-place for place in reversed(places)], gap))]


def _draw_zoomed(record: Record, suffix: str, axes: Any) -> None:
    _draw_by_length(record, suffix, axes)
    axes.set_ylim(zoom_limits(record))
    axes.set_ylabel("")
    axes.set_title(f"Zoomed in{suffix}")


def zoom_limits(record: Record) -> tuple[float, float] | None:
    """Axis limits around the encodings that extrapolate, if there are several and others do not."""
    if metric_of(record).limits:
        return None
    means = [[mean for n in lengths_of(record) if (mean := line.mean(n)) is not None] for line in lines_of(record)]
    means = [line for line in means if line]
    holding = [line for line in means if max(line) < line[0] + HOLDS]
    if len(holding) < 2 or len(holding) == len(means):
        return None
    low, high = min(min(line) for line in means), max(max(line) for line in holding)
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _style(line: Line) -> dict[str, Any]:
    fire = line.is_fire
    return {"color": line.colors[0], "linewidth": 2.6 if fire else 1.6, "zorder": 4 if fire else 3, "label": line.label}


def _draw_by_length(record: Record, suffix: str, axes: Any) -> None:
    lengths, trained, metric = lengths_of(record), record["setting"]["trained_length"], metric_of(record)
    for i, line in enumerate(lines_of(record)):
        points = [(n, *band) for n in lengths if (band := line.band(n))]
        if not points:
            continue
        x, y, low, high = (list(values) for values in zip(*points, strict=True))
        axes.plot(x, y, marker=MARKERS[i % len(MARKERS)], **_style(line))
        axes.fill_between(x, low, high, color=line.colors[0], alpha=BAND, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.axvline(trained, color="gray", linestyle="--", linewidth=1, zorder=1)
    last = trained >= lengths[-1]  # no room on the right
    height = 0.15 if metric.is_accuracy else 1  # where the curves are not
    axes.annotate(
        "training length", (trained, height), xycoords=("data", "axes fraction"), xytext=(-5 if last else 5, -10),
        textcoords="offset points", ha="right" if last else "left", color="dimgray", fontsize=9, zorder=5,
        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
    )  # fmt: skip
    axes.set_xlabel(metric.length_axis)
    axes.set_ylabel(f"{metric.name} ({metric.direction})")
    if metric.limits:
        axes.set_ylim(metric.limits)
    seeds = len(finished_seeds(record))
    over = f"{f'{metric.spread} over ' * (not suffix)}{seeds} seeds" if seeds > 1 else "one seed"
    title = f"{metric.title}{suffix or ' by length'}, {over}"
    axes.set_title(f"{record['setting']['corpus']['title']}: {title.lower()}" if metric.is_accuracy else title)


def _draw_losses(record: Record, axes: Any) -> None:
    tops = []
    for line in lines_of(record):
        curve = loss_curve(line)
        if not curve:
            continue
        steps, mean, low, high = (list(values) for values in zip(*curve, strict=True))
        axes.plot(steps, mean, **_style(line) | {"linewidth": 1.8 if line.is_fire else 1.2})
        axes.fill_between(steps, low, high, color=line.colors[0], alpha=BAND, linewidth=0)
        tops.append(max(high[len(high) // 20 :]))
    if tops:
        axes.set_ylim(top=max(tops) * 1.02)  # cut off the first steps, which are far above
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    scratch = " from scratch" if extensions(record["runs"]) else ""
    over = ", mean and range over seeds" if len(finished_seeds(record)) > 1 else ""
    axes.set_title(f"Training loss{scratch}{over}")


def loss_curve(line: Line) -> list[tuple[float, float, float, float]]:
    """(step, mean, min, max over seeds) of training from scratch; more than `MAX_POINTS` steps are averaged."""
    by_step: dict[float, list[float]] = {}
    for run in [run for run in line.runs if not run.get("extended")]:
        for step, loss in thinned([pair for pair in run.get("losses", ()) if is_number(pair[1])], MAX_POINTS):
            by_step.setdefault(step, []).append(loss)
    return [(step, fmean(values), min(values), max(values)) for step, values in sorted(by_step.items())]


def thinned(pairs: Sequence[Sequence[float]], points: int) -> list[tuple[float, float]]:
    """At most `points` pairs (step, loss): means of neighbours."""
    size = -(-len(pairs) // points) or 1
    groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return [(fmean(step for step, _ in group), fmean(loss for _, loss in group)) for group in groups]


def plot_biases(curves: list[dict[str, Any]], path: Path) -> Path:
    """Draw learned biases by key, a line per head; layers are rows, queries columns.

    `curves` are an encoding's `biases` in a comparison's record.
    """
    from matplotlib.figure import Figure

    queries = sorted({curve["query"] for curve in curves})
    all_layers = sorted({curve["layer"] for curve in curves})
    layers = sorted({all_layers[i * (len(all_layers) - 1) // (MAX_LAYERS - 1)] for i in range(MAX_LAYERS)})
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
