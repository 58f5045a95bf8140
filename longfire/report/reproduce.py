"""The paper's numbers, for reports of reproduced tables and figures."""

from typing import Any

from longfire.encodings.registry import title_of
from longfire.report.metric import fixed
from longfire.report.summary import Record, amount
from longfire.report.table import Table, places

PAPERS_MODELS = "The paper's models: 125M parameters, 315 billion tokens of C4."
PAPERS_RECIPES = ("base", "large", "base-512")
NO_NUMBERS = "The paper shows this as a figure, without numbers."


def papers_numbers(paper: list[dict[str, Any]]) -> Table | str:
    """The paper's numbers, or that it has none."""
    if not paper:
        return NO_NUMBERS
    lengths, digits = [key for key in paper[0] if key.isdigit()], places(paper)
    rows = [
        [row["label"], *(fixed(row[n], digits) for n in lengths)]
        for row in paper
        if any(row[n] is not None for n in lengths)
    ]
    columns = ["in the paper, trained at 2,048", *(f"{int(n):,}" for n in lengths)]
    return Table(columns, rows, notes=[PAPERS_MODELS])


def heading(shows: str, what: str, record: Record) -> str:
    """The name of the table or figure, marked as scaled down if the models are not the paper's."""
    setting = record["setting"]
    if (setting.get("recipe") or {}).get("name") in PAPERS_RECIPES:
        return f"{shows}: {what}"
    sizes = [amount(run["parameters"]) for run in record["runs"] if run.get("parameters")]
    models = f"models with {sizes[0]} parameters" if sizes else "models"
    return f"Scaled-down {shows} ({what}): {models}, trained at {setting['trained_length']:,}"


def theorem_table(record: dict[str, Any]) -> Table:
    """Theorem 3.1: the error of FIRE, constructed to equal each encoding."""
    rows = [
        [title_of(row["encoding"]), f"{row['max_length']:,}", f"{row['largest']:,.1f}", f"{row['error']:.2g}"]
        for row in record["rows"]
    ]
    return Table(
        ["encoding", "positions", "largest bias", "relative error"],
        rows,
        title=f"Theorem 3.1: FIRE can equal each of these encodings, up to rounding in {record['setting']['dtype']}.",
        notes=["Relative error: the largest error over all pairs of positions, divided by the largest bias."],
    )
