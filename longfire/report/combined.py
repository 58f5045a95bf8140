"""Several comparisons, on text and on tasks, on one page: a summary table, then each with its verdict, chart and table."""

from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path

from longfire.report.compare import best_at, comparison_tables
from longfire.report.description import description
from longfire.report.failures import failures
from longfire.report.html import colors_css, section, write_page
from longfire.report.page import chart_data, chart_legend
from longfire.report.summary import Record, assign_colors, label_of, lengths_of, lines_of, metric_of
from longfire.report.table import Table
from longfire.report.verdict import verdict

TITLE = "Comparisons"
ABOUT = "Each column is at the longest length tested, as a multiple of the training length."

Records = Mapping[str, Record]
"""By folder."""


def summary_table(records: Records, *, mark: str = "Bold") -> Table:
    """Encodings as rows, a column per comparison: the metric at its longest length."""
    labels = list(_encodings(records))
    remarks = {
        folder: f"{_name(record)} ({'exact match in %' if metric_of(record).is_accuracy else _corpus(record)})"
        for folder, record in records.items()
    }
    repeated = {head for head, times in Counter(remarks.values()).items() if times > 1}
    heads = [f"{_name(record)} ({folder})" if remarks[folder] in repeated else remarks[folder]
             for folder, record in records.items()]  # fmt: skip
    cells, highlights = [], set()
    for j, record in enumerate(records.values(), 1):
        lines, far = lines_of(record), _longest(record)
        column = {line.label: line.cell(far) for line in lines} if far else {}
        cells.append([column.get(label, "–") for label in labels])
        highlights |= {(labels.index(label), j) for label in (best_at(record, lines, far) if far else ())}
    rows = [list(row) for row in zip(labels, *cells, strict=True)]
    swatches = [f"s{i}" for i in range(len(labels))]
    return Table(["", *heads], rows, highlights=highlights, notes=[f"{ABOUT} {mark}: best."], swatches=swatches)


def combined_page(records: Records, path: Path) -> Path:
    """Write the page and return its path."""
    encodings = _encodings(records)
    classes = {label: f"s{i}" for i, label in enumerate(encodings)}
    body = [f"<h1>{TITLE}</h1>", f'<div id="numbers">{summary_table(records).html()}</div>']
    for i, (folder, record) in enumerate(records.items(), 1):
        title = record["setting"]["corpus"]["title"] if metric_of(record).is_accuracy else f"Text: {_corpus(record)}"
        failed = "".join(f"<li>{escape(text)}</li>" for text in failures(record))
        tables = [Table(**{**vars(table), "swatches": [classes[row[0]] for row in table.rows]}).html()
                  for table in comparison_tables(record)]  # fmt: skip
        content = [
            f'<p class="verdict">{escape(verdict(record))}</p><p class="soft">{escape(chart_legend(record))}</p>',
            f'<div id="chart-{i}"></div>',
            *(f'<div id="numbers-{i}-{j}">{table}</div>' for j, table in enumerate(tables, 1)),
            f'<ul class="soft">{failed}</ul>' if failed else "",
            f"<details><summary>How it was run</summary><p>{escape(' '.join(description(record)))}</p></details>",
        ]
        body.append(section(f"comparison-{i}", title, folder, "".join(content)))
    write_page(
        path,
        title=TITLE,
        body="\n".join(body),
        data={"comparisons": [chart_data(one, f"chart-{i}", classes) for i, one in enumerate(records.values(), 1)]},
        scripts=("report.js",),
        style=colors_css(dict(zip(classes.values(), assign_colors(list(encodings.values())), strict=True))),
    )
    return path


def _encodings(records: Records) -> dict[str, str]:
    """The encoding of each label, in order of first occurrence."""
    encodings: dict[str, str] = {}
    for record in records.values():
        for run in record["runs"]:
            encodings.setdefault(label_of(run), str(run["encoding"]))
    return encodings


def _longest(record: Record) -> int | None:
    """The longest length with a result."""
    return max((n for n in lengths_of(record) if any(line.values(n) for line in lines_of(record))), default=None)


def _name(record: Record) -> str:
    """`log perplexity at 16×`, `copy at 4×`."""
    far, name = _longest(record), _corpus(record) if metric_of(record).is_accuracy else metric_of(record).name
    return f"{name} at {far / record['setting']['trained_length']:.3g}×" if far else name


def _corpus(record: Record) -> str:
    return str((record["setting"].get("corpus") or {}).get("name") or "text")
