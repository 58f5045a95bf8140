"""A comparison as a report: verdict, a table of log perplexity for each text, failures, and how it was run."""

from collections.abc import Callable, Sequence
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
from longfire.report.table import Block, Table, render_markdown, render_text
from longfire.report.verdict import verdict

SPREAD = "± is the standard deviation over seeds."
LOWEST = "Bold: lowest."
LEVEL = "Bold: lowest, or not significantly above it."
SAME_TEST, TEST_ABOVE = "by the same test", "by the test above"


def compare_table(record: Record, *, bold: bool = False) -> str:
    """The report for a terminal. The best cells are bold, or starred without bold type."""
    return render_text(_report(record, mark="Bold" if bold else "*"), bold=bold)


def compare_markdown(record: Record, known: Sequence[str] = ()) -> str:
    """The report for a page that already has the sentences in `known` (of `description`, or `SPREAD` or `RULE`)."""
    return render_markdown(_report(record, known))


def _report(record: Record, known: Sequence[str] = (), mark: str = "Bold") -> list[Block]:
    if not record["runs"]:
        return [NO_RUNS]
    how = " ".join(sentence for sentence in description(record) if sentence not in known)
    tables = comparison_tables(record, known, mark=mark)
    return [verdict(record), *tables, failures(record), how, *record.get("notes", ())]


def comparison_tables(
    record: Record, known: Sequence[str] = (), *, mark: str = "Bold", parameters: bool = False
) -> list[Table]:
    """A table for each text: encodings down, lengths across, mean ± deviation over seeds.

    Args:
        record: of a comparison.
        known: explanations to leave out, as in `compare_markdown`.
        mark: what highlighted cells look like, for the explanation.
        parameters: whether to add a column with the number of position parameters.
    """
    tables = []
    for i, (name, one) in enumerate(texts_of(record).items()):
        rule = TEST_ABOVE if RULE in known else SAME_TEST if i else RULE
        notes = [scored_text(one), significance_summary(one, rule)]
        if not i and RULE not in known:
            notes.insert(1, _legend(record, known).replace("Bold", mark))
        tables.append(_table(one, f" on {name}" if i else "", " ".join(filter(None, notes)), parameters))
    return tables


def _table(record: Record, text: str, note: str, parameters: bool) -> Table:
    lines, lengths, trained = lines_of(record), lengths_of(record), record["setting"]["trained_length"]
    columns = {f"{n:,} (trained)" if n == trained else f"{n:,}": [number(line, n) for line in lines] for n in lengths}
    if parameters:
        columns["parameters (for position)"] = [_mean_of(line, "position_parameters", amount) for line in lines]
    speeds = [_mean_of(line, "tokens_per_second", "{:,.0f}".format) for line in lines]
    if any(speed != "–" for speed in speeds):
        columns["tokens/s"] = speeds
    best = [ranking(record, n) for n in lengths]
    labels = [line.label for line in lines]
    return Table(
        [f"log perplexity{text} at", *columns],
        [list(row) for row in zip(labels, *columns.values(), strict=True)],
        highlights={
            (labels.index(label), j) for j, one in enumerate(best, 1) if one for label in (one.best, *one.level)
        },
        notes=[note] if note else [],
        swatches=[f"s{i}" for i in range(len(lines))],
        shaded=lengths.index(trained) + 1 if trained in lengths else None,
    )


def _legend(record: Record, known: Sequence[str]) -> str:
    parts = [SPREAD] if len(seeds_of(record)) > 1 and SPREAD not in known else []
    if len(lines_of(record)) > 1:
        parts.append(LEVEL if len(seeds_of(record)) >= ENOUGH else LOWEST)
    return " ".join(parts)


def scored_text(record: Record) -> str:
    """How much text the numbers are based on: `Scored: 35 documents, 2.32M to 2.45M tokens at each length.`"""
    rows = [row for line in lines_of(record) for n in lengths_of(record) for row in line.rows(n).values()]
    tokens = amounts(row["tokens"] for row in rows if is_number(row.get("tokens")))
    documents = sorted({row["documents"] for row in rows if row.get("documents")})
    few, many = (f"{documents[0]:,}", f"{documents[-1]:,}") if documents else ("", "")
    parts = [
        f"{few if few == many else f'{few} to {many}'} document{'s' * (many != '1')}" if documents else "",
        f"{tokens} tokens at each length" if tokens else "",
    ]
    return f"Scored: {', '.join(filter(None, parts))}." if any(parts) else ""


def number(line: Line, length: int) -> str:
    """Mean ± deviation of log perplexity, or a dash."""
    return over_seeds(line.values(length).values())


def _mean_of(line: Line, key: str, shown: Callable[[float], str]) -> str:
    found = [run[key] for run in line.runs if is_number(run.get(key))]
    return shown(fmean(found)) if found else "–"
