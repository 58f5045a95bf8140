"""Train short, test long: the comparison as a page to open, one file that needs no network."""

from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from longfire.report.compare import loss_curve, number, speed
from longfire.report.failures import failures
from longfire.report.html import colors_css, facts_table, write_page
from longfire.report.significance import BEST, clear_best, seeds_verdict
from longfire.report.summary import (
    COLORS,
    Line,
    Record,
    amount,
    extensions,
    is_number,
    lengths_of,
    lines_of,
    mean_and_deviation,
    seeds_of,
    texts_of,
    what_was_run,
)

TITLE = "Train short, test long"
HEADS = [COLORS[name] for name in ("kerple_log", "fire", "alibi", "t5", "yarn", "sinusoidal", "learned", "nope")]
"""Colours of attention heads, in turn."""


def report_page(record: Record, path: Path, title: str = TITLE, beside: str = "") -> Path:
    """Write report.html: table, charts, learned biases, settings and versions. Returns the path.

    Args:
        record: of a comparison. Of its `biases`, queries and key positions count from 0.
        path: the file.
        title: plain text.
        beside: HTML, escaped already, to stand after the table.
    """
    lines = lines_of(record)
    data = {
        "trained": record["setting"]["trained_length"],
        "lengths": lengths_of(record),
        "series": [_series(line, i, lengths_of(record)) for i, line in enumerate(lines)],
        "texts": [{"name": name, "perplexity": _by_label(one)} for name, one in texts_of(record).items()],
        "biases": _biases(record, lines),
    }
    colors = {f"s{i}": line.colors for i, line in enumerate(lines)} | {f"h{i}": pair for i, pair in enumerate(HEADS)}
    write_page(
        path,
        title=title,
        body=_body(record, data, title, beside),
        data=data,
        scripts=("report.js",),
        style=colors_css(colors),
    )
    return path


def _by_label(record: Record) -> dict[str, list[list[Any]]]:
    return {line.label: _points(line, lengths_of(record)) for line in lines_of(record)}


def _points(line: Line, lengths: list[int]) -> list[list[Any]]:
    points: list[list[Any]] = []
    for n in lengths:
        mean, deviation = mean_and_deviation(line.values(n).values())
        if mean is not None:
            spread = deviation or 0.0
            points.append([n, mean, mean - spread, mean + spread, f"{number(line, n)}{_interval(line, n)}"])
    return points


def _series(line: Line, i: int, lengths: list[int]) -> dict[str, Any]:
    return {
        "label": line.label,
        "cls": f"s{i}",
        "strong": line.encoding == "fire",
        "losses": [[round(value, 5) for value in point] for point in loss_curve(line)],
        "positions": {n: found for n in lengths if (found := _positions(line, n))},
    }


def _interval(line: Line, length: int) -> str:
    """The 95 % interval over the text, where there is one run, so none over seeds."""
    rows = [row for run in line.runs for row in run.get("perplexity", {}).get("rows", ()) if row["length"] == length]
    if len(rows) != 1 or not rows[0].get("interval"):
        return ""
    low, high = rows[0]["interval"]
    return f" (95 % of the text: {low:.3f} to {high:.3f})"


def _positions(line: Line, length: int) -> list[list[float]]:
    """[from, to, loss]: the mean over seeds in each bin."""
    bins: dict[tuple[int, int], list[float]] = {}
    for run in line.runs:
        for row in run.get("perplexity", {}).get("rows", ()):
            for part in row.get("by_position", ()) if row["length"] == length else ():
                if is_number(part.get("loss")):
                    bins.setdefault((part["from"], part["to"]), []).append(part["loss"])
    return [[a, b, round(fmean(losses), 5)] for (a, b), losses in sorted(bins.items())]


def _biases(record: Record, lines: list[Line]) -> list[dict[str, Any]]:
    labels = {line.encoding: line.label for line in reversed(lines)}
    found = []
    for encoding, curves in (record.get("biases") or {}).items():
        layers: dict[int, list[dict[str, Any]]] = {}
        for curve in curves:
            pairs = zip(curve["positions"], curve["values"], strict=True)
            points = [[key, round(value, 5)] for key, value in pairs if is_number(value)]
            layers.setdefault(curve["layer"], []).append(
                {"head": curve["head"], "query": curve["query"], "points": points}
            )
        if layers:
            found.append(
                {
                    "label": labels.get(encoding, encoding),
                    "queries": sorted({curve["query"] for curve in curves}),
                    "layers": [{"layer": layer, "heads": heads} for layer, heads in sorted(layers.items())],
                }
            )
    order = [line.label for line in lines]
    return sorted(found, key=lambda one: order.index(one["label"]) if one["label"] in order else len(order))


def _body(record: Record, data: dict[str, Any], title: str, beside: str) -> str:
    several = len(seeds_of(record)) > 1
    spread = "Bands: the standard deviation over seeds." if several else "One seed."
    failed = "".join(f"<li>{escape(text)}</li>" for text in failures(record))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(what_was_run(record))}</p>",
        *_tables(record),
        *(f'<p class="soft">{escape(note)}</p>' for note in record.get("notes", ())),
        *([f'<ul class="soft" id="failed">{failed}</ul>'] if failed else []),
        beside,
        _section(
            "perplexity",
            "Perplexity by length",
            f"Log perplexity; lower is better. {spread} Names below the chart show and hide lines.",
        ),
    ]
    if any(one["losses"] for one in data["series"]):
        scratch = " from scratch" if extensions(record["runs"]) else ""
        band = "Mean, with a band from the lowest to the highest seed." if several else ""
        parts.append(_section("losses", f"Loss in training{scratch}", band))
    if any(one["positions"] for one in data["series"]):
        about = "What tokens early and late in a sequence cost. Up to the training length all positions were trained."
        if len(data["texts"]) > 1:
            about += f" On {data['texts'][0]['name']}."
        parts.append(_section("positions", "Loss by position", about))
    if data["biases"]:
        about = (
            "What is added to the attention logits of one query, less each head's highest. A line that falls with the "
            "distance is a head that looks near; one that rises looks far. Ten below the highest a key is never "
            "looked at."
        )
        parts.append(_section("biases", "Learned biases", about))
    return "\n".join([*parts, _settings(record)])


def _section(name: str, title: str, about: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2><p class="soft">{escape(about)}</p></section>'


def _tables(record: Record) -> list[str]:
    """One for each text, under its name where there are several."""
    texts = texts_of(record)
    named = [f"<h2>On {escape(name)}</h2>" if len(texts) > 1 else "" for name in texts]
    return [head + _table(one, i) for i, (head, one) in enumerate(zip(named, texts.values(), strict=True))]


def _table(record: Record, text: int) -> str:
    lines, lengths, trained = lines_of(record), lengths_of(record), record["setting"]["trained_length"]
    best = {n: clear_best(record, n) for n in lengths}

    def cell(line: Line, n: int) -> str:
        mean, _, spread = number(line, n).partition(" ± ")
        value = f"<strong>{mean}</strong>" if best[n] == line.label else mean
        seeds = f' <span class="seeds">± {spread}</span>' if spread else ""
        return f"<td{' class=trained' * (n == trained)}>{value}{seeds}</td>"

    head = "".join(
        f'<th class="trained" scope="col">{n:,}<small>trained</small></th>' if n == trained else f"<th>{n:,}</th>"
        for n in lengths
    )
    rows = "".join(
        f'<tr><th scope="row"><span class="swatch s{i}"></span>{escape(line.label)}</th>'
        f"{''.join(cell(line, n) for n in lengths)}<td>{_parameters(line)}</td><td>{speed(line)}</td></tr>"
        for i, line in enumerate(lines)
    )
    marked = f"Bold: {BEST} " if any(best.values()) else ""
    verdict = marked + seeds_verdict(record)
    after = f"-{text + 1}" if text else ""
    return (
        f'<div class="scroll" tabindex="0"><table id="numbers{after}"><thead><tr><th>log perplexity at</th>'
        f"{head}<th>parameters<br>for position</th><th>training<br>tokens/s</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        + (f'<p class="soft" id="verdict{after}">{escape(verdict)}</p>' if verdict else "")
    )


def _parameters(line: Line) -> str:
    found = [run["position_parameters"] for run in line.runs if is_number(run.get("position_parameters"))]
    return amount(found[0]) if found else "–"


def _settings(record: Record) -> str:
    setting, made = dict(record["setting"]), dict(record.get("provenance") or {})
    recipe, corpus = setting.pop("recipe", None) or {}, setting.pop("corpus", None) or {}
    blocks = {"Run": setting, "Recipe": recipe, "Text": corpus, "Machine and versions": made}
    shown = "".join(
        f"<details{' open' * (name == 'Machine and versions')}><summary>{name}</summary>{facts_table(facts)}</details>"
        for name, facts in blocks.items()
        if facts
    )
    return f'<section id="settings"><h2>Settings and versions</h2>{shown}</section>'
