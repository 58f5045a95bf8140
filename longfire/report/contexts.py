"""One task at growing context: scores by length, as a table and as a picture."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from longfire.report.seeds import how_many, with_means
from longfire.report.summary import COLORS, SPARE
from longfire.report.table import text_table
from longfire.tasks import TASKS

Record = dict[str, Any]
METRICS = {"f1": "F1", "exact_match": "EM", "rouge_gm": "Rgm", "accuracy": "acc.", "group_exact_match": "EM"}
DASH, INTERVAL, NEAR = "–", "  95 %", "≈"
MARKERS = ("o", "s", "^", "D", "v", "P")
BESIDE = 1.018
"""Between the lines of a picture, as a share of the length."""


def contexts_table(record: Record, task: str, paper: Sequence[Mapping[str, Any]] = ()) -> str:
    """Checkpoints down, lengths across; then the paper's, at those of these lengths that it has."""
    lengths = record["setting"]["lengths"]
    rows = []
    for row in record["rows"]:
        found = _by_length(row, task)
        rows.append([row["label"], *(marked(found.get(n)) for n in lengths)])
        if any(intervals := [interval(found.get(n)) for n in lengths]):
            rows.append([INTERVAL, *(f"{text} " for text in intervals)])
    if theirs := papers_contexts(record, paper):
        rows.append(["in the paper, base", *[""] * len(lengths)])
    for one in theirs:
        rows.append([f"  {one['label']}", *(number(one.get(str(n))) for n in lengths)])
    header = [f"{TASKS[task].title}, {METRICS[TASKS[task].metric]} at", *(named(record, n) for n in lengths)]
    return text_table(header, rows)


def papers_contexts(record: Record, paper: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The paper's rows by length with encodings and lengths that the record has."""
    ours = encodings_of(record)
    return [
        row for row in paper if row["encoding"] in ours and any(str(n) in row for n in record["setting"]["lengths"])
    ]


def plot_contexts(record: Record, task: str, path: Path) -> Path:
    """Scores by length with 95 % intervals, of seeds means with their range; training's lengths are marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes: Any = figure.subplots()
    bars = "means, from the least seed to the most" if how_many(record["rows"]) else "with 95 % intervals"
    record = with_means(record)
    axes.set_ylim(0, _ceiling(record, task))
    _draw(axes, record, task)
    _draw_lengths(axes, record["setting"]["lengths"], _marks(record))
    axes.set_ylabel(f"{METRICS[TASKS[task].metric]} (higher is better)")
    axes.set_title(f"{task} by context length, {bars}")
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _ceiling(record: Record, task: str) -> float:
    """Where the axis ends: above all scores and their intervals, but those so long that nothing else would be seen.

    Where all scores are 0, there is nothing else.
    """
    found = [one for row in record["rows"] for one in _by_length(row, task).values()]
    highest = max((one["score"] for one in found), default=0.0)
    # of none right in a few, nearly anything may be
    tops = [one["interval"][1] for one in found if one["interval"] and (one["score"] or not highest)]
    top = max(tops, default=highest)
    return 1.12 * (min(top, 3 * highest) if highest else top) or 1.0


def _draw(axes: Any, record: Record, task: str) -> None:
    """A line for each row, each a little beside the others, or one's intervals would hide another's."""
    rows = record["rows"]
    spare, taken = iter(SPARE * len(rows)), set()
    for i, row in enumerate(rows):
        encoding = row["encoding"]
        own = encoding in COLORS and encoding not in taken
        color = COLORS[encoding][0] if own else next(spare)[0]
        taken.add(encoding)
        found = {n * BESIDE ** (i - (len(rows) - 1) / 2): one for n, one in sorted(_by_length(row, task).items())}
        if not found:
            continue
        fire = encoding == "fire"
        look = {"color": color, "linewidth": 2.6 if fire else 1.4, "zorder": 4 if fire else 3, "markersize": 5}
        axes.plot(
            [*found],
            [one["score"] for one in found.values()],
            marker=MARKERS[i % len(MARKERS)],
            label=row["label"],
            **look,
        )
        for x, one in found.items():
            if one["interval"]:
                _draw_interval(axes, x, one["interval"], color)


def _draw_interval(axes: Any, x: float, ends: Sequence[float], color: Any) -> None:
    """A bar with ends; one that is longer than the axis has an arrow there, and a number."""
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
    near = any(after < 1.5 * before for before, after in pairwise(ticks))
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], **({"rotation": 30, "ha": "right"} if near else {}))
    axes.minorticks_off()
    for (length, what), height in zip(marks.items(), (-10, -24), strict=False):
        axes.axvline(length, color="gray", linestyle="--", linewidth=1, zorder=1)
        axes.annotate(
            f"{what} here", (length, 1), xycoords=("data", "axes fraction"), xytext=(5, height),
            textcoords="offset points", color="dimgray", fontsize=9,
        )  # fmt: skip
    axes.set_xlabel("tokens of context and answer")


def _by_length(row: Record, task: str) -> dict[int, Record]:
    return {one["length"]: one for one in row["scores"] if one["task"] == task and "failed" not in one}


def _marks(record: Record) -> dict[int, str]:
    """Lengths that all rows were trained at, and fine-tuned at."""
    rows, here = record["rows"], record["setting"].get("length")
    trained = {row["trained_length"] for row in rows}
    tuned = {here or row["finetuned_length"] for row in rows}
    marks: dict[int, str] = {}
    for lengths, what in ((trained, "pretrained"), (tuned, "fine-tuned")):
        if len(lengths) == 1 and (length := lengths.pop()) is not None:
            marks[length] = f"{marks[length]} and {what}" if length in marks else what
    return marks


def named(record: Record, length: int) -> str:
    """A length, and what was done at it."""
    what = _marks(record).get(length)
    return f"{length:,}" + (f" ({what})" if what else "")


def marked(found: Record | None) -> str:
    """A score; with a sign after it where it is not above chance, and room for one elsewhere."""
    if found is None:
        return number(None)
    return f"{found['score']:.2f}{NEAR if found.get('near_chance') else ' '}"


def number(value: float | None) -> str:
    """With room for a sign."""
    return f"{DASH} " if value is None else f"{value:.2f} "


def interval(found: Record | None) -> str:
    """`10.2…12.1`, or nothing."""
    return "{:.1f}…{:.1f}".format(*found["interval"]) if found is not None and found["interval"] else ""


def encodings_of(record: Record) -> set[str]:
    """That have a row."""
    return {row["encoding"] for row in record["rows"]}
