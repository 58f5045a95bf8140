"""Plot scores on one task by context length."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from longfire.report.compare_plot import MARKERS
from longfire.report.downstream import METRICS
from longfire.report.summary import FIRES, assign_colors
from longfire.report.task_rows import Record, scores_on, seed_count, training_lengths, with_means
from longfire.tasks import TASKS

OFFSET = 1.018
"""Horizontal shift (a ratio) between neighbouring lines, so that their intervals do not overlap."""


def plot_contexts(record: Record, task: str, path: Path) -> Path:
    """Draw scores by length with 95 % intervals or, for several seeds, means with their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes: Any = figure.subplots()
    bars = "mean and range over seeds" if seed_count(record["rows"]) not in ("", "1") else "with 95 % intervals"
    record = with_means(record)
    axes.set_ylim(0, _ceiling(record, task))
    _draw(axes, record, task)
    _draw_lengths(axes, record["setting"]["lengths"], training_lengths(record))
    axes.set_ylabel(f"{METRICS[TASKS[task].metric]} (higher is better)")
    axes.set_title(f"{task} by context length, {bars}")
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _ceiling(record: Record, task: str) -> float:
    """Upper end of the axis: above all intervals, but at most three times the highest score unless that is 0."""
    scores = [one for row in record["rows"] for one in scores_on(row, task).values()]
    highest = max((one["score"] for one in scores), default=0.0)
    # ignores scores of 0, whose intervals are huge for few questions
    tops = [one["interval"][1] for one in scores if one["interval"] and (one["score"] or not highest)]
    top = max(tops, default=highest)
    return 1.12 * (min(top, 3 * highest) if highest else top) or 1.0


def _draw(axes: Any, record: Record, task: str) -> None:
    rows = record["rows"]
    colors = assign_colors([(row["label"], row["encoding"]) for row in rows])
    for i, (row, (color, _)) in enumerate(zip(rows, colors, strict=True)):
        scores = {n * OFFSET ** (i - (len(rows) - 1) / 2): one for n, one in sorted(scores_on(row, task).items())}
        if not scores:
            continue
        fire = row["label"] in FIRES
        look = {"color": color, "linewidth": 2.6 if fire else 1.4, "zorder": 4 if fire else 3, "markersize": 5}
        axes.plot(
            [*scores],
            [one["score"] for one in scores.values()],
            marker=MARKERS[i % len(MARKERS)],
            label=row["label"],
            **look,
        )
        for x, one in scores.items():
            if one["interval"]:
                _draw_interval(axes, x, one["interval"], color)


def _draw_interval(axes: Any, x: float, ends: Sequence[float], color: Any) -> None:
    """Draw a bar with end marks; if it leaves the axis, an arrow and a number."""
    low, high = ends
    top = axes.get_ylim()[1]
    look = {"color": color, "alpha": 0.55, "zorder": 2}
    axes.plot([x, x], [low, min(high, top)], linewidth=1, **look)
    axes.plot([x], [low], linestyle="", marker="_", markersize=4, **look)
    if high <= top:
        axes.plot([x], [high], linestyle="", marker="_", markersize=4, **look)
        return
    axes.plot([x], [top], linestyle="", marker="^", markersize=5, clip_on=False, **look)
    look = {"textcoords": "offset points", "color": color, "fontsize": 8}
    axes.annotate(f"to {high:.0f}", (x, top), xytext=(4, -8), **look)


def _draw_lengths(axes: Any, lengths: Sequence[int], marks: Mapping[int, str]) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted({*lengths, *marks})
    crowded = any(after < 1.5 * before for before, after in pairwise(ticks))
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], **({"rotation": 30, "ha": "right"} if crowded else {}))
    axes.minorticks_off()
    for (length, what), height in zip(marks.items(), (-10, -24), strict=False):
        axes.axvline(length, color="gray", linestyle="--", linewidth=1, zorder=1)
        axes.annotate(
            what, (length, 1), xycoords=("data", "axes fraction"), xytext=(5, height),
            textcoords="offset points", color="dimgray", fontsize=9,
        )  # fmt: skip
    axes.set_xlabel("tokens of context and answer")
