"""Several comparisons, on text and on tasks, on one page: a summary table, then each comparison's own report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from longfire.report.compare import best_at, comparison_tables
from longfire.report.description import description, fire_options
from longfire.report.failures import failures
from longfire.report.html import colors_css, section, write_page
from longfire.report.page import chart_data, chart_legend
from longfire.report.significance import ENOUGH
from longfire.report.summary import (
    Record,
    assign_colors,
    finished_seeds,
    join_words,
    label_of,
    lines_of,
    measured_lengths,
    metric_of,
)
from longfire.report.table import Table
from longfire.report.verdict import verdict

TITLE = "Comparisons"
ABOUT = (
    "Each column is at the longest length tested, as a multiple of the training length. Log perplexity: lower is "
    "better. Tasks: exact match in %, higher is better."
)
LEVEL = "; on text also what is not significantly behind it"

Records = Mapping[str, Record]
"""By folder."""


def summary_table(records: Records, *, mark: str = "Bold") -> Table:
    """Encodings as rows, a column per comparison: the metric at its longest length."""
    labels = list(_encodings(records))
    heads = _heads(records)
    cells, highlights = [], set()
    for j, record in enumerate(records.values(), 1):
        lines, far = lines_of(record), max(measured_lengths(record), default=None)
        column = {line.label: line.cell(far) for line in lines} if far else {}
        cells.append([column.get(label, "–") for label in labels])
        highlights |= {(labels.index(label), j) for label in (best_at(record, lines, far) if far else ())}
    tested = any(not metric_of(one).is_accuracy and len(finished_seeds(one)) >= ENOUGH for one in records.values())
    return Table(
        ["", *heads],
        [list(row) for row in zip(labels, *cells, strict=True)],
        highlights=highlights,
        notes=[f"{ABOUT} {mark}: best{LEVEL * tested}.", _different_fires(heads, records)],
        swatches=[f"s{i}" for i in range(len(labels))],
    )


def combined_page(records: Records, path: Path) -> Path:
    """Write the page and return its path."""
    encodings = _encodings(records)
    classes = {label: f"s{i}" for i, label in enumerate(encodings)}
    sections = [_section(i, folder, record, classes) for i, (folder, record) in enumerate(records.items(), 1)]
    write_page(
        path,
        title=TITLE,
        body="\n".join(
            [f"<h1>{TITLE}</h1>", f'<div id="numbers" class="summary">{summary_table(records).html()}</div>', *sections]
        ),
        data={"comparisons": [chart_data(one, f"chart-{i}", classes) for i, one in enumerate(records.values(), 1)]},
        scripts=("report.js",),
        style=colors_css(dict(zip(classes.values(), assign_colors(list(encodings.items())), strict=True))),
    )
    return path


def _section(i: int, folder: str, record: Record, classes: Mapping[str, str]) -> str:
    """Verdict, chart, tables, failures and method of one comparison."""
    is_task, tables = metric_of(record).is_accuracy, comparison_tables(record)
    shown = [replace(one, swatches=[classes[row[0]] for row in one.rows]) for one in tables[: 1 if is_task else None]]
    failed = "".join(f"<li>{escape(text)}</li>" for text in failures(record))
    content = [
        f'<p class="verdict">{escape(verdict(record))}</p><p class="soft">{escape(chart_legend(record))}</p>',
        f'<div id="chart-{i}"></div>',
        *(f'<div id="numbers-{i}-{j}">{table.html()}</div>' for j, table in enumerate(shown, 1)),
        f'<ul class="soft">{failed}</ul>' if failed else "",
        f"<details><summary>How it was run</summary><p>{escape(' '.join(description(record)))}</p></details>",
    ]
    title = record["setting"]["corpus"]["title"] if is_task else f"Text: {_corpus(record)}"
    return section(f"comparison-{i}", title, folder, "".join(content))


def _different_fires(heads: Sequence[str], records: Records) -> str:
    """How each comparison's FIRE differs from the paper's, unless it is the same FIRE in all."""
    fires: dict[str, list[str]] = {}
    for head, record in zip(heads, records.values(), strict=True):
        if text := " ".join(fire_options(record)):
            fires.setdefault(text, []).append(head)
    return " ".join(f"In {join_words(names)}, {text}" for text, names in fires.items()) if len(fires) > 1 else ""


def _heads(records: Records) -> list[str]:
    """`log perplexity at 16×`, `copy at 4×`; followed by the folder where that is not unique."""
    heads = {}
    for folder, record in records.items():
        far, metric = max(measured_lengths(record), default=None), metric_of(record)
        name = _corpus(record) if metric.is_accuracy else metric.name
        heads[folder] = f"{name} at {far / record['setting']['trained_length']:.3g}×" if far else name
    times = Counter(heads.values())
    return [f"{head} ({folder})" if times[head] > 1 else head for folder, head in heads.items()]


def _encodings(records: Records) -> dict[str, str]:
    """The encoding of each label, in order of first occurrence."""
    encodings: dict[str, str] = {}
    for record in records.values():
        for run in record["runs"]:
            encodings.setdefault(label_of(run), str(run["encoding"]))
    return encodings


def _corpus(record: Record) -> str:
    return str((record["setting"].get("corpus") or {}).get("name") or "text")
