"""Report of a comparison: verdict, a table of log perplexity per text, failures, and how it was run."""

from collections.abc import Callable
from statistics import fmean

from longfire.report.description import NO_RUNS, description
from longfire.report.failures import failures
from longfire.report.significance import ENOUGH, RULE, ranking, significance_summary
from longfire.report.summary import (
    Line,
    Record,
    amount,
    amounts,
    is_number,
    lengths_of,
    lines_of,
    over_seeds,
    seeds_of,
    texts_of,
)
from longfire.report.table import Block, Table, render_text
from longfire.report.verdict import verdict

SPREAD = "± is the standard deviation over seeds."
SAME_TEST = "by the same test"


def compare_table(record: Record, *, bold: bool = False) -> str:
    """The report for a terminal. The best cells are bold, or starred if `bold` is False."""
    if not record["runs"]:
        return NO_RUNS
    blocks: list[Block] = [
        verdict(record),
        *comparison_tables(record, mark="Bold" if bold else "*"),
        failures(record),
        " ".join(description(record)),
        *record.get("notes", ()),
    ]
    return render_text(blocks, bold=bold)


def comparison_tables(record: Record, *, rule: str = RULE, mark: str = "Bold", parameters: bool = False) -> list[Table]:
    """A table per text: encodings as rows, lengths as columns, mean ± deviation over seeds.

    The lowest mean at a length is bold, and so are means not significantly above it, given enough seeds to test.

    Args:
        record: the record of a comparison.
        rule: description of the significance test.
        mark: description of highlighted cells.
        parameters: add a column with the number of position parameters.
    """
    tables = []
    for i, (name, text_record) in enumerate(texts_of(record).items()):
        legend = "" if i else _legend(record, mark)
        notes = [scored_text(text_record), legend, significance_summary(text_record, SAME_TEST if i else rule)]
        tables.append(_table(text_record, f" on {name}" if i else "", " ".join(filter(None, notes)), parameters))
    return tables


def _table(record: Record, text: str, note: str, parameters: bool) -> Table:
    lines, lengths, trained = lines_of(record), lengths_of(record), record["setting"]["trained_length"]
    columns = {
        f"{n:,} (trained)" if n == trained else f"{n:,}": [perplexity_cell(line, n) for line in lines] for n in lengths
    }
    if parameters:
        columns["parameters (for position)"] = [_mean_of(line, "position_parameters", amount) for line in lines]
    speeds = [_mean_of(line, "tokens_per_second", "{:,.0f}".format) for line in lines]
    if any(speed != "–" for speed in speeds):
        columns["tokens/s"] = speeds
    rankings = [ranking(record, n) for n in lengths]
    labels = [line.label for line in lines]
    return Table(
        [f"log perplexity{text} at", *columns],
        [list(row) for row in zip(labels, *columns.values(), strict=True)],
        highlights={
            (labels.index(label), j) for j, one in enumerate(rankings, 1) if one for label in (one.best, *one.level)
        },
        notes=[note] if note else [],
        swatches=[f"s{i}" for i in range(len(lines))],
        shaded=lengths.index(trained) + 1 if trained in lengths else None,
    )


def _legend(record: Record, mark: str) -> str:
    seeds = len(seeds_of(record))
    spread = SPREAD if seeds > 1 else ""
    if len(lines_of(record)) < 2:
        return spread
    return f"{spread} {mark}: lowest{', or not significantly above it' * (seeds >= ENOUGH)}.".strip()


def scored_text(record: Record) -> str:
    """`Scored: 35 documents, 2.32M to 2.45M tokens at each length.`"""
    rows = [row for line in lines_of(record) for n in lengths_of(record) for row in line.rows(n).values()]
    tokens = amounts(row["tokens"] for row in rows if is_number(row.get("tokens")))
    documents = sorted({row["documents"] for row in rows if row.get("documents")})
    few, many = (f"{documents[0]:,}", f"{documents[-1]:,}") if documents else ("", "")
    parts = [
        f"{few if few == many else f'{few} to {many}'} document{'s' * (many != '1')}" if documents else "",
        f"{tokens} tokens at each length" if tokens else "",
    ]
    return f"Scored: {', '.join(filter(None, parts))}." if any(parts) else ""


def perplexity_cell(line: Line, length: int) -> str:
    """Mean ± deviation of log perplexity, or a dash."""
    return over_seeds(line.values(length).values())


def _mean_of(line: Line, key: str, shown: Callable[[float], str]) -> str:
    values = [run[key] for run in line.runs if is_number(run.get(key))]
    return shown(fmean(values)) if values else "–"
