"""Draw the pictures of the pages. Each is stamped with a hash of its data, so that stale ones are noticed."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import REPRODUCED, ROOT, Record, find_record
from longfire.lab.tables import LengthEntry
from longfire.report.compare_plot import plot_biases, plot_compare
from longfire.report.contexts import plot_contexts
from longfire.report.explore import QUERIES, effects, effects_table, plot_effects
from longfire.report.speed_plot import PLOTS
from longfire.report.summary import lengths_of, lines_of

COMPARISONS = {
    "encodings": "images/encodings-small.png",
    "encodings-base": "images/encodings-base.png",
    "encodings-128": "images/encodings-128.png",
    "start-horizon": "images/start-horizon.png",
    "start-horizon-base": "images/start-horizon-base.png",
    "horizon-tiny": "images/horizon-tiny.png",
}
CONTEXTS = {"narrative-qa": "images/narrative-qa-small.png"}
LAYOUTS = "h200-layouts"
SPEEDS = {
    "h200-attention": "images/attention-h200.png",
    "h200-model": "images/model-h200.png",
    LAYOUTS: "images/layouts-h200.png",
}
INITIAL_BIASES = "images/encodings.png"
"""Drawn by `longfire explore`, and stamped with the tables it prints."""
THEMES = ("light", "dark")
README = {f"images/readme-{theme}.png": theme for theme in THEMES}
FIVE = ("fire:init=kerple_log,horizon=512", "fire", "kerple_log", "alibi", "rope")
"""The encodings in README.md."""
BACKGROUND, TEXT = {"light": "white", "dark": "#0d1117"}, {"light": "#1f2328", "dark": "#e6edf3"}
FAINT = {"light": "#8c959f", "dark": "#6e7681"}
STAMP = "record"
Picture = tuple[Any, Callable[[Path], object]]
"""A picture's data, and the function that draws it."""


def pictures(root: Path = ROOT) -> dict[str, Picture]:
    """All pictures whose records exist, by path within docs/."""
    results = root / "results"
    found: dict[str, Picture] = {}

    def add(names: dict[str, str], draw: Callable[[Record, Path], object]) -> None:
        for name, picture in names.items():
            if (record := find_record(name, results)) is not None:
                found[picture] = record, partial(draw, record)

    add(CONTEXTS, lambda record, path: plot_contexts(record, record["setting"]["tasks"][0], path))
    add(COMPARISONS, draw_lengths)
    add(SPEEDS, lambda record, path: PLOTS[record["setting"]["subject"]](record, path))
    lengths = [entry for entry in REPRODUCED if not entry.draws_biases]
    add({entry.name: picture_of(entry) for entry in lengths}, draw_lengths)
    biases = [entry for entry in REPRODUCED if entry.draws_biases]
    add(
        {entry.name: picture_of(entry) for entry in biases},
        lambda record, path: plot_biases(record["biases"]["fire"], path),
    )
    if (record := find_record("encodings", results)) is not None:
        found |= {picture: (record, partial(draw_readme, record, theme)) for picture, theme in README.items()}
    biases_of = {query: effects(query) for query in QUERIES}
    tables = [effects_table(query, biases) for query, biases in biases_of.items()]
    found[INITIAL_BIASES] = tables, partial(plot_effects, biases_of)
    return found


def draw_pictures(root: Path = ROOT, redraw: bool = False) -> None:
    """Draw and stamp stale pictures, or all of them."""
    for picture, (record, draw) in pictures(root).items():
        path = root / "docs" / picture
        if redraw or is_stale(path, record):
            draw(path)
            stamp(path, record)


def stale_pictures(root: Path = ROOT) -> list[Path]:
    """Pictures that are missing or were drawn from different data."""
    found = {root / "docs" / name: record for name, (record, _) in pictures(root).items()}
    return [path for path, record in found.items() if is_stale(path, record)]


def is_stale(picture: Path, record: Any) -> bool:
    """Whether the picture is missing or was drawn from different data."""
    return not picture.exists() or read_stamp(picture) != digest(record)


def picture_of(entry: LengthEntry) -> str:
    """The path of a reproduced table's or figure's picture, within docs/."""
    return f"images/reproduce-{entry.name}.png"


def is_of_model(record: Record) -> bool:
    """Whether a performance record is of a whole model, not of attention alone."""
    return bool(record["setting"]["subject"] == "model")


def draw_lengths(record: Record, path: Path) -> None:
    """Perplexity by length, as `longfire compare` draws it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(plot_compare(record, Path(folder))[0], path)


def draw_readme(record: Record, theme: str, path: Path) -> None:
    """Log perplexity by length, with five labelled lines. A line that leaves the axis is labelled where it does."""
    from matplotlib.figure import Figure

    back, text, faint, lengths = BACKGROUND[theme], TEXT[theme], FAINT[theme], lengths_of(record)
    trained = record["setting"]["trained_length"]
    lines = {line.encoding: line for line in lines_of(record) if line.encoding in FIVE}
    means = {encoding: [line.mean(n) or 0.0 for n in lengths] for encoding, line in lines.items()}
    names = {encoding: line.label for encoding, line in lines.items()} | {"fire": "FIRE (as published)"}
    figure = Figure(figsize=(8.4, 4.3), layout="constrained", facecolor=back)
    axes: Any = figure.subplots()
    top = max(means["fire"]) + 0.08
    for encoding in FIVE:
        values, color = means[encoding], lines[encoding].colors[THEMES.index(theme)]
        best = encoding == FIVE[0]
        axes.plot(lengths, values, color=color, linewidth=3 if best else 2, marker="o", markersize=5, zorder=3 + best)
        style = {"color": color, "fontsize": 11, "fontweight": "bold" if best else "normal", "va": "center"}
        if values[-1] <= top:
            axes.annotate(
                names[encoding], (lengths[-1], values[-1]), xytext=(10, 0), textcoords="offset points", **style
            )
            continue
        first = next(i for i, value in enumerate(values) if value > top)
        share = (top - values[first - 1]) / (values[first] - values[first - 1])
        exit_at = lengths[first - 1] * (lengths[first] / lengths[first - 1]) ** share
        label = f"{names[encoding]} (to {values[-1]:.2f} at {lengths[-1] // trained}×)"
        axes.annotate(label, (exit_at, top), xytext=(8, -10), textcoords="offset points", **style)
    axes.set_ylim(min(min(means[encoding]) for encoding in FIVE) - 0.02, top)
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        lengths,
        [f"{n:,}\n(trained)" if n == trained else f"{n:,}\n{n // trained}×" for n in lengths],
    )
    axes.minorticks_off()
    axes.set_xlabel("tokens in a sequence", color=text)
    axes.set_ylabel("log perplexity (lower is better)", color=text)
    axes.set_facecolor(back)
    axes.tick_params(colors=text)
    axes.grid(axis="y", color=faint, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(faint)
    figure.savefig(path, dpi=200, facecolor=back)


def digest(record: Any) -> str:
    """A hash of the content, whatever its formatting."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def stamp(picture: Path, record: Any) -> None:
    """Write the record's digest into a PNG."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text(STAMP, digest(record))
    with Image.open(picture) as image:
        image.load()
        image.save(picture, pnginfo=text)


def read_stamp(picture: Path) -> str | None:
    """The digest in a PNG."""
    from PIL import Image

    with Image.open(picture) as image:
        found: str | None = image.info.get(STAMP)
    return found
