"""One task at growing context: scores by length, as a table and as a picture."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from longfire.report.summary import COLORS, SPARE
from longfire.report.table import text_table
from longfire.tasks import TASKS

Record = dict[str, Any]
METRICS = {"f1": "F1", "exact_match": "EM", "rouge_gm": "Rgm", "accuracy": "acc.", "group_exact_match": "EM"}
DASH, INTERVAL, NEAR = "–", "  95 %", "≈"
MARKERS = ("o", "s", "^", "D", "v", "P")


def contexts_table(record: Record, task: str, paper: Sequence[Mapping[str, Any]] = ()) -> str:
    """Checkpoints down, lengths across; then the paper's, at those of these lengths that it has."""
    lengths = record["setting"]["lengths"]
    rows = []
    for row in record["rows"]:
        found = _by_length(row, task)
        rows.append([row["label"], *(marked(found.get(n)) for n in lengths)])
        if any(intervals := [interval(found.get(n)) for n in lengths]):
            rows.append([INTERVAL, *(f"{text} " for text in intervals)])
    theirs = [row for row in paper if row["encoding"] in encodings_of(record) and any(str(n) in row for n in lengths)]
    if theirs:
        rows.append(["in the paper, base", *[""] * len(lengths)])
    for one in theirs:
        rows.append([f"  {one['label']}", *(number(one.get(str(n))) for n in lengths)])
    header = [f"{TASKS[task].title}, {METRICS[TASKS[task].metric]} at", *(named(record, n) for n in lengths)]
    return text_table(header, rows)


def plot_contexts(record: Record, task: str, path: Path) -> Path:
    """Scores by length with 95 % intervals; the lengths of training and fine-tuning are marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes: Any = figure.subplots()
    scores, tops = _draw(axes, record, task)
    highest = max(scores, default=0.0)
    axes.set_ylim(0, 1.12 * min(max(tops, default=highest), 3 * highest) or 1)  # few questions have long intervals
    _draw_lengths(axes, record["setting"]["lengths"], _marks(record))
    axes.set_ylabel(f"{METRICS[TASKS[task].metric]} (higher is better)")
    axes.set_title(f"{task} by context length, with 95 % intervals")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _draw(axes: Any, record: Record, task: str) -> tuple[list[float], list[float]]:
    """A line for each row; all scores, and the ends of their intervals."""
    scores: list[float] = []
    tops: list[float] = []
    spare, taken = iter(SPARE * len(record["rows"])), set()
    for i, row in enumerate(record["rows"]):
        encoding = row["encoding"].removesuffix("-s")
        own = encoding in COLORS and encoding not in taken
        color = COLORS[encoding][0] if own else next(spare)[0]
        taken.add(encoding)
        found = [one for _, one in sorted(_by_length(row, task).items())]
        if not found:
            continue
        x, y = [one["length"] for one in found], [one["score"] for one in found]
        fire = encoding == "fire"
        look = {"color": color, "linewidth": 2.6 if fire else 1.6, "zorder": 4 if fire else 3}
        axes.plot(x, y, marker=MARKERS[i % len(MARKERS)], label=row["label"], **look)
        for one in [one for one in found if one["interval"]]:
            beside = one["length"] * 1.012 ** (i - (len(record["rows"]) - 1) / 2)  # or one would hide another
            axes.plot([beside] * 2, one["interval"], color=color, linewidth=1, alpha=0.6, zorder=2)
            if one["score"]:  # of none right in a few, nearly anything may be
                tops.append(one["interval"][1])
        scores += y
    return scores, tops


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
