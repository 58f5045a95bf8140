"""Report of a comparison: verdict, a table per text or for the task, failures, and how it was run."""

from collections.abc import Callable, Sequence
from statistics import fmean

from longfire.report.description import NO_RUNS, description
from longfire.report.failures import failures
from longfire.report.metric import TOKEN_ACCURACY, percent
from longfire.report.significance import ENOUGH, RULE, ranking, significance_summary
from longfire.report.summary import (
    Line,
    Record,
    amount,
    amounts,
    finished_seeds,
    is_number,
    lengths_of,
    lines_of,
    metric_of,
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
    """Encodings as rows, lengths as columns.

    A table per text has mean ± deviation over seeds. A synthetic task has tables of exact match and token accuracy,
    with median (worst–best).

    The best at a length is bold, and so are means not significantly above it, given enough seeds to test.

    Args:
        record: the record of a comparison.
        rule: description of the significance test.
        mark: description of highlighted cells.
        parameters: add a column with the number of position parameters.
    """
    if metric_of(record).is_accuracy:
        return _task_tables(record, mark, parameters)
    tables = []
    for i, (name, text_record) in enumerate(texts_of(record).items()):
        legend = "" if i else _legend(record, mark)
        notes = [scored_text(text_record), legend, significance_summary(text_record, SAME_TEST if i else rule)]
        note, name = " ".join(filter(None, notes)), f"log perplexity on {name}" if i else "log perplexity"
        tables.append(_table(text_record, lines_of(text_record), name, note, parameters))
    return tables


def _task_tables(record: Record, mark: str, parameters: bool) -> list[Table]:
    """Exact match, then token accuracy."""
    seeds, questions = len(finished_seeds(record)), record["setting"].get("questions")
    notes = [
        f"Scored: {questions:,} questions at each length." if questions else "",
        f"Median of {seeds} seeds, with the worst and the best where they differ." if seeds > 1 else "",
        f"{mark}: highest{' median' * (seeds > 1)}." if len(lines_of(record)) > 1 else "",
    ]
    tokens = lines_of(record, TOKEN_ACCURACY)
    about = "Tokens of the answers that are right, in percent."
    return [
        _table(record, lines_of(record), "exact match in %", " ".join(filter(None, notes)), parameters),
        _table(record, tokens, TOKEN_ACCURACY.name, about, parameters=False, speeds=False),
    ]


def best_at(record: Record, lines: Sequence[Line], length: int) -> list[str]:
    """The best encodings at a length: with the highest median, or the lowest mean and those level with it."""
    if not metric_of(record).is_accuracy:
        ranked = ranking(record, length)
        return [ranked.best, *ranked.level] if ranked else []
    medians = {line.label: band[0] for line in lines if (band := line.band(length))}
    highest = max(medians.values(), default=0.0)
    if len(medians) < 2 or not highest:
        return []
    return [label for label, value in medians.items() if percent(value) == percent(highest)]


def _table(record: Record, lines: Sequence[Line], name: str, note: str, parameters: bool, speeds: bool = True) -> Table:
    lengths, trained = lengths_of(record), record["setting"]["trained_length"]
    columns = {f"{n:,} (trained)" if n == trained else f"{n:,}": [line.cell(n) for line in lines] for n in lengths}
    if parameters:
        columns["parameters (for position)"] = [_mean_of(line, "position_parameters", amount) for line in lines]
    speed = [_mean_of(line, "tokens_per_second", "{:,.0f}".format) for line in lines]
    if speeds and any(one != "–" for one in speed):
        columns["tokens/s"] = speed
    labels = [line.label for line in lines]
    return Table(
        [f"{name} at", *columns],
        [list(row) for row in zip(labels, *columns.values(), strict=True)],
        highlights={(labels.index(label), j) for j, n in enumerate(lengths, 1) for label in best_at(record, lines, n)},
        notes=[note] if note else [],
        swatches=[f"s{i}" for i in range(len(lines))],
        shaded=lengths.index(trained) + 1 if trained in lengths else None,
    )


def _legend(record: Record, mark: str) -> str:
    seeds = len(finished_seeds(record))
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


def _mean_of(line: Line, key: str, shown: Callable[[float], str]) -> str:
    values = [run[key] for run in line.runs if is_number(run.get(key))]
    return shown(fmean(values)) if values else "–"
