"""Write a comparison as report.html, one self-contained file: verdict, chart, table, then training and settings."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from longfire.report.compare import comparison_tables
from longfire.report.compare_plot import loss_curve
from longfire.report.description import description, extensions
from longfire.report.failures import failures
from longfire.report.html import colors_css, section, settings_section, write_page
from longfire.report.summary import (
    COLORS,
    Line,
    Record,
    finished_seeds,
    is_number,
    lengths_of,
    lines_of,
    metric_of,
    texts_of,
    training_tokens,
)
from longfire.report.table import Table
from longfire.report.verdict import verdict

TITLE = "Train short, test long"
HEADS = [COLORS[name] for name in ("kerple_log", "recommended", "alibi", "t5", "yarn", "sinusoidal", "learned", "nope")]
"""Colours of attention heads, used in turn."""
POSITIONS = "Loss by position in the sequence{}. Training covered positions up to the training length."
BIASES = (
    "The bias that each head adds to the attention logits of one query, relative to the head's maximum. Where the line "
    "falls with distance, the head prefers near keys; where it rises, far keys. Keys 10 below the maximum get "
    "practically no attention."
)


def report_page(record: Record, path: Path, title: str = TITLE, reference: Table | str | None = None) -> Path:
    """Write report.html and return its path.

    Args:
        record: the record of a comparison. In its `biases`, queries and key positions count from 0.
        path: the file.
        title: plain text.
        reference: the paper's numbers, or a remark, shown after the table.
    """
    lines, recipe = lines_of(record), record["setting"].get("recipe") or {}
    data = curves_data(record)
    data["biases"] = _biases(record, lines)
    data["trained_tokens"] = training_tokens(recipe) if recipe.get("task") else data["trained"]
    colors = {f"s{i}": line.colors for i, line in enumerate(lines)} | {f"h{i}": pair for i, pair in enumerate(HEADS)}
    write_page(
        path,
        title=title,
        body=_body(record, data, title, reference),
        data=data,
        scripts=("report.js",),
        style=colors_css(colors),
    )
    return path


def curves_data(record: Record) -> dict[str, Any]:
    """Data of the charts by length, by position and of the training loss. Line i has the CSS class `s{i}`."""
    lines = lines_of(record)
    data = chart_data(record, metric_of(record).test, {line.label: f"s{i}" for i, line in enumerate(lines)})
    for line, series in zip(lines, data["series"], strict=True):
        series["losses"] = [[round(value, 5) for value in point] for point in loss_curve(line)]
        series["positions"] = {n: bins for n in lengths_of(record) if (bins := _positions(line, n))}
    return data


def chart_data(record: Record, chart: str, classes: Mapping[str, str]) -> dict[str, Any]:
    """Data of the chart by length.

    Args:
        record: the record of a comparison.
        chart: the id of the element to draw in.
        classes: CSS class of each label.
    """
    metric, lengths = metric_of(record), lengths_of(record)
    return {
        "chart": chart,
        "metric": {
            "test": metric.test,
            "name": metric.name.capitalize(),
            "unit": metric.unit,
            "axis": metric.length_axis,
            "limits": metric.limits,
        },
        "trained": record["setting"]["trained_length"],
        "lengths": lengths,
        "series": [
            {"label": line.label, "cls": classes[line.label], "strong": line.is_fire} for line in lines_of(record)
        ],
        "texts": [
            {"name": name, metric.test: {line.label: _points(line, lengths) for line in lines_of(one)}}
            for name, one in texts_of(record).items()
        ],
    }


def _points(line: Line, lengths: list[int]) -> list[list[Any]]:
    """[length, middle, low, high, tooltip]."""
    unit = " %" * line.metric.is_accuracy
    return [
        [n, *band, f"{line.cell(n)}{unit}{_interval(line, n)}"] for n in lengths if (band := line.band(n)) is not None
    ]


def _interval(line: Line, length: int) -> str:
    """The 95 % interval over documents of a single run, which has no deviation over seeds."""
    rows = list(line.rows(length).values())
    if len(rows) != 1 or not rows[0].get("interval"):
        return ""
    low, high = rows[0]["interval"]
    return f" (95 % over the text: {low:.3f} to {high:.3f})"


def _positions(line: Line, length: int) -> list[list[float]]:
    """[from, to, mean loss over seeds] of each bin."""
    bins: dict[tuple[int, int], list[float]] = {}
    for row in line.rows(length).values():
        for part in row.get("by_position", ()):
            if is_number(part.get("loss")):
                bins.setdefault((part["from"], part["to"]), []).append(part["loss"])
    return [[a, b, round(fmean(losses), 5)] for (a, b), losses in sorted(bins.items())]


def _biases(record: Record, lines: list[Line]) -> list[dict[str, Any]]:
    labels = {line.encoding: line.label for line in reversed(lines)}
    biases = []
    for encoding, curves in (record.get("biases") or {}).items():
        layers: dict[int, list[dict[str, Any]]] = {}
        for curve in curves:
            pairs = zip(curve["positions"], curve["values"], strict=True)
            points = [[key, round(value, 5)] for key, value in pairs if is_number(value)]
            head = {"head": curve["head"], "query": curve["query"], "points": points}
            layers.setdefault(curve["layer"], []).append(head)
        if layers:
            biases.append(
                {
                    "label": labels.get(encoding, encoding),
                    "queries": sorted({curve["query"] for curve in curves}),
                    "layers": [{"layer": layer, "heads": heads} for layer, heads in sorted(layers.items())],
                }
            )
    order = [line.label for line in lines]
    return sorted(biases, key=lambda one: order.index(one["label"]) if one["label"] in order else len(order))


def chart_legend(record: Record) -> str:
    """What the chart by length shows."""
    metric = metric_of(record)
    bands = "Bands show the standard deviation over seeds."
    if metric.is_accuracy:
        bands = "Lines show the median over seeds, bands the worst and the best seed."
    spread = bands if len(finished_seeds(record)) > 1 else "One seed."
    return f"{metric.name.capitalize()}; {metric.direction}. {spread}"


def _body(record: Record, data: dict[str, Any], title: str, reference: Table | str | None) -> str:
    several, texts = len(finished_seeds(record)) > 1, data["texts"]
    failed = "".join(f"<li>{escape(text)}</li>" for text in failures(record))
    tables = [table.html() for table in comparison_tables(record, parameters=True)]
    parts = [
        f'<h1>{escape(title)}</h1><p class="verdict">{escape(verdict(record))}</p>',
        section(data["chart"], f"{metric_of(record).title} by length", chart_legend(record)),
        *(f'<div id="numbers{f"-{i}" if i > 1 else ""}">{table}</div>' for i, table in enumerate(tables, 1)),
        f'<ul class="soft" id="failed">{failed}</ul>' if failed else "",
    ]
    if reference:
        shown = reference.html() if isinstance(reference, Table) else f"<p>{escape(reference)}</p>"
        parts.append(section("paper", "In the paper", "", shown))
    notes = "".join(f"<p>{escape(note)}</p>" for note in record.get("notes", ()))
    parts.append(section("method", "How it was run", "", f"<p>{escape(' '.join(description(record)))}</p>{notes}"))
    if any(one["losses"] for one in data["series"]):
        scratch = " from scratch" if extensions(record["runs"]) else ""
        band = "Mean over seeds; the band spans the lowest and highest seed. " if several else ""
        parts.append(section("losses", f"Training loss{scratch}", band + first_steps(data)))
    if any(one["positions"] for one in data["series"]):
        about = POSITIONS.format(f" of {texts[0]['name']}" if len(texts) > 1 else "")
        parts.append(section("positions", "Loss by position", about))
    if data["biases"]:
        parts.append(section("biases", "Learned biases", BIASES))
    return "\n".join([*filter(None, parts), _settings(record)])


def first_steps(data: dict[str, Any]) -> str:
    """A remark on the chart of the training loss, which leaves out the first twentieth of the points if it is high."""
    return "The first steps may lie above the plot." if any(len(one["losses"]) >= 20 for one in data["series"]) else ""


def _settings(record: Record) -> str:
    setting, provenance = dict(record["setting"]), record.get("provenance") or {}
    recipe, corpus = setting.pop("recipe", None) or {}, setting.pop("corpus", None) or {}
    data = "Task" if metric_of(record).is_accuracy else "Text"
    return settings_section(
        {"Comparison": setting, "Recipe": recipe, data: corpus, "Hardware and versions": provenance}
    )
