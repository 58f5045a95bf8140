"""Train short, test long: the comparison as a table for a terminal and as pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from longfire.report.failures import failures
from longfire.report.significance import BEST, clear_best, seeds_verdict
from longfire.report.summary import (
    COLORS,
    Line,
    Record,
    extensions,
    is_number,
    lengths_of,
    lines_of,
    mean_and_deviation,
    over_seeds,
    seeds_of,
    texts_of,
    what_was_run,
)
from longfire.report.table import BOLD, PLAIN, text_table, width

PLUS = "± is the standard deviation over seeds."
HOLDS = 0.5
"""An encoding holds while its log perplexity stays within this of what it is at the shortest length."""
MARKERS = ("o", "s", "^", "D", "v", "P")


def compare_table(record: Record, *, bold: bool = False) -> str:
    """Encodings down, lengths across: log perplexity, mean ± deviation over seeds.

    The best of a length is marked where its lead is significant: in bold type, for a terminal, or with a star.
    """
    plus = f"{PLUS} " if len(seeds_of(record)) > 1 else ""
    tables = [f"{name}:\n\n{lengths_table(one, bold)}" for name, one in list(texts_of(record).items())[1:]]
    verdict = plus + _marked(record, "Bold" if bold else "*") + seeds_verdict(record)
    shown = [
        fill(what_was_run(record), width(), break_on_hyphens=False),
        lengths_table(record, bold),
        *([fill(verdict, width(), break_on_hyphens=False)] if verdict else []),
        *tables,
        *(fill(note, width(), break_on_hyphens=False) for note in record.get("notes", ())),
    ]
    if failed := failures(record):
        shown.append("\n".join(fill(f"– {text}", width(), subsequent_indent="  ") for text in failed))
    return "\n\n".join(shown)


def _marked(record: Record, mark: str) -> str:
    """What a mark means, if there is one in a table of any text."""
    best = [clear_best(one, length) for one in texts_of(record).values() for length in lengths_of(record)]
    return f"{mark}: {BEST} " if any(best) else ""


def lengths_table(record: Record, bold: bool = False) -> str:
    """The numbers alone."""
    lines, lengths = lines_of(record), lengths_of(record)
    best = {length: clear_best(record, length) for length in lengths}

    def cell(line: Line, length: int) -> str:
        text = number(line, length)
        if line.label != best[length]:
            return text if bold or not any(best.values()) else f"{text} "
        return f"{BOLD}{text}{PLAIN}" if bold else f"{text}*"

    head, *cells = speeds(lines)
    rows = [[line.label, *(cell(line, n) for n in lengths), *own] for line, own in zip(lines, cells, strict=True)]
    return text_table(["log perplexity at", *_columns(record), *head], rows)


def _columns(record: Record) -> list[str]:
    trained = record["setting"]["trained_length"]
    return [f"{n:,} (trained)" if n == trained else f"{n:,}" for n in lengths_of(record)]


def number(line: Line, length: int) -> str:
    """Mean ± deviation, or a dash."""
    return over_seeds(line.values(length).values())


def speeds(lines: Sequence[Line]) -> list[list[str]]:
    """The last cell of the head and of each line; of all of them none, where no run says how fast it was."""
    found = ["tokens/s", *(speed(line) for line in lines)]
    return [[one] if any(other != "–" for other in found[1:]) else [] for one in found]


def speed(line: Line) -> str:
    """Training tokens a second, mean over seeds, or a dash."""
    found = [run["tokens_per_second"] for run in line.runs if is_number(run.get("tokens_per_second"))]
    return f"{fmean(found):,.0f}" if found else "–"


def plot_compare(record: Record, folder: Path) -> list[Path]:
    """perplexity.png, with a panel for each text, and losses.png in a folder, which is made if need be; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = texts_of(record)
    on = {name: f" on {name}" if len(texts) > 1 else "" for name in texts}
    near = {name: close_up(one) for name, one in texts.items()}
    whole = {name: partial(_draw_whole, one, on[name]) for name, one in texts.items()}
    close = {name: partial(_draw_close, texts[name], on[name], limits) for name, limits in near.items() if limits}
    if len(close) == len(whole):
        panels = [*whole.values(), *close.values()]
    else:  # each beside its own
        panels = [one[name] for name in texts for one in (whole, close) if name in one]
    return [
        _saved(panels, folder / "perplexity.png"),
        _saved([partial(_draw_losses, record)], folder / "losses.png"),
    ]


def _saved(panels: Sequence[Callable[[Any], None]], path: Path) -> Path:
    """A picture of panels, by what draws each, and one legend for all."""
    from matplotlib.figure import Figure

    across = 2 if len(panels) == 4 else min(3, len(panels))
    down = -(-len(panels) // across)
    wide = {1: 9.0, 2: 13.0}.get(across, 4.6 * across + 2)
    figure = Figure(figsize=(wide, 5.2 if down == 1 else 4.4 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, draw in zip(grid.flat, panels, strict=False):
        draw(axes)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        names = [fill(label, 22, break_long_words=False) for label in labels]
        figure.legend(handles, names, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _draw_whole(record: Record, on: str, axes: Any) -> None:
    seeds = len(seeds_of(record))
    over = f"{seeds} seeds" if seeds > 1 else "one seed"
    _draw_perplexity(axes, record)
    axes.set_title(f"Perplexity{on or ' by length'}, {'mean and deviation over ' * (seeds > 1 and not on)}{over}")


def _draw_close(record: Record, on: str, limits: tuple[float, float], axes: Any) -> None:
    _draw_perplexity(axes, record)
    axes.set_ylim(limits)
    axes.set_ylabel("")
    axes.set_title(f"The lower part{on}, close up")


def close_up(record: Record) -> tuple[float, float] | None:
    """From the least log perplexity to the most of those that hold; None where no other leaves them far behind."""
    means = [[mean_and_deviation(line.values(n).values())[0] for n in lengths_of(record)] for line in lines_of(record)]
    whole = [[mean for mean in line if mean is not None] for line in means]
    whole = [line for line in whole if line]
    holding = [line for line in whole if max(line) < line[0] + HOLDS]
    if len(holding) < 2 or len(holding) == len(whole):
        return None
    low, high = min(min(line) for line in whole), max(max(line) for line in holding)
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _marker(line: Line, i: int) -> str:
    """The same for an encoding in every picture."""
    return MARKERS[(list(COLORS).index(line.encoding) if line.encoding in COLORS else i) % len(MARKERS)]


def _band(record: Record) -> float:
    """How dense the band over seeds is: the more encodings, the more bands lie on each other."""
    return 0.15 * min(1, 5 / len(lines_of(record)))


def _look(line: Line) -> dict[str, Any]:
    fire = line.encoding == "fire"
    return {"color": line.colors[0], "linewidth": 2.6 if fire else 1.6, "zorder": 4 if fire else 3, "label": line.label}


def _draw_perplexity(axes: Any, record: Record) -> None:
    lengths, trained = lengths_of(record), record["setting"]["trained_length"]
    for i, line in enumerate(lines_of(record)):
        points = [(n, *mean_and_deviation(line.values(n).values())) for n in lengths]
        points = [(n, mean, deviation or 0.0) for n, mean, deviation in points if mean is not None]
        if not points:
            continue
        x, y, spread = (list(values) for values in zip(*points, strict=True))
        axes.plot(x, y, marker=_marker(line, i), **_look(line))
        low, high = ([v + sign * s for v, s in zip(y, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=line.colors[0], alpha=_band(record), linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.axvline(trained, color="gray", linestyle="--", linewidth=1, zorder=1)
    last = trained >= lengths[-1]  # there is room on its left alone
    axes.annotate(
        "trained here", (trained, 1), xycoords=("data", "axes fraction"), xytext=(-5 if last else 5, -10),
        textcoords="offset points", ha="right" if last else "left", color="dimgray", fontsize=9, zorder=5,
        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
    )  # fmt: skip
    axes.set_xlabel("tokens in a sequence")
    axes.set_ylabel("log perplexity (lower is better)")


def _draw_losses(record: Record, axes: Any) -> None:
    tops = []
    for line in lines_of(record):
        curve = loss_curve(line)
        if not curve:
            continue
        steps, mean, low, high = (list(values) for values in zip(*curve, strict=True))
        axes.plot(steps, mean, **_look(line) | {"linewidth": 1.8 if line.encoding == "fire" else 1.2})
        axes.fill_between(steps, low, high, color=line.colors[0], alpha=_band(record), linewidth=0)
        tops.append(max(high[len(high) // 20 :]))
    if tops:
        axes.set_ylim(top=max(tops) * 1.02)  # the first steps fall from far above
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    scratch = " from scratch" if extensions(record["runs"]) else ""
    over = ", mean and range over seeds" if len(seeds_of(record)) > 1 else ""
    axes.set_title(f"Loss in training{scratch}{over}")


def loss_curve(line: Line, points: int = 240) -> list[tuple[float, float, float, float]]:
    """(step, mean, lowest, highest over seeds), with neighbouring steps averaged where there are many.

    Of training from scratch: the first steps of a model that was extended are not the first that it was trained.
    """
    by_step: dict[float, list[float]] = {}
    for run in [run for run in line.runs if not run.get("extended")]:
        for step, loss in thinned([pair for pair in run.get("losses", ()) if is_number(pair[1])], points):
            by_step.setdefault(step, []).append(loss)
    return [(step, fmean(values), min(values), max(values)) for step, values in sorted(by_step.items())]


def thinned(pairs: Sequence[Sequence[float]], points: int) -> list[tuple[float, float]]:
    """At most so many (step, loss): means of neighbours."""
    size = -(-len(pairs) // points) or 1
    groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return [(fmean(step for step, _ in group), fmean(loss for _, loss in group)) for group in groups]
