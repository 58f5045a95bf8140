"""A reproduction beside the paper's own numbers."""

from pathlib import Path
from typing import Any

from longfire.encodings.registry import title_of
from longfire.report.compare import compare_table
from longfire.report.page import report_page
from longfire.report.summary import Record, amount
from longfire.report.table import Table, places, text_table

PAPERS_MODELS = "The paper's models: 125M parameters, 315 billion tokens of C4."
PAPERS_RECIPES = ("base", "large", "base-512")
A_PICTURE = "The paper shows this as a picture, without numbers."


def reproduced_table(record: Record, paper: list[dict[str, Any]], bold: bool = False) -> str:
    """Ours, and below the paper's, which are of larger models trained longer on another text."""
    shown = [compare_table(record, bold=bold)]
    shown += [f"{text_table(*_papers(paper))}\n\n{PAPERS_MODELS}" if paper else A_PICTURE]
    return "\n\n".join(shown)


def heading(shows: str, what: str, record: Record) -> str:
    """Of a table or figure of the paper; of one that stands for it, where the models are others."""
    setting = record["setting"]
    if (setting.get("recipe") or {}).get("name") in PAPERS_RECIPES:
        return f"{shows}: {what}"
    sizes = [amount(run["parameters"]) for run in record["runs"] if run.get("parameters")]
    models = f"models of {sizes[0]}" if sizes else "models"
    return f"In place of {shows} ({what}): {models} trained at {setting['trained_length']:,}"


def reproduced_page(record: Record, path: Path, title: str, paper: list[dict[str, Any]]) -> Path:
    """The same as a page to open. Returns the path."""
    theirs = f"{Table(*_papers(paper)).html()}<p class=soft>{PAPERS_MODELS}</p>" if paper else f"<p>{A_PICTURE}</p>"
    return report_page(record, path, title, f'<section id="paper"><h2>In the paper</h2>{theirs}</section>')


def _papers(paper: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    lengths = [key for key in paper[0] if key.isdigit()]
    digits, given = places(paper), [row for row in paper if any(row[n] is not None for n in lengths)]
    rows = [[row["label"], *("–" if row[n] is None else f"{row[n]:.{digits}f}" for n in lengths)] for row in given]
    return ["in the paper, trained at 2,048", *(f"{int(n):,}" for n in lengths)], rows


def theorem_table(record: dict[str, Any]) -> str:
    """How far a FIRE is from the encoding that it is made to equal."""
    return f"Theorem 3.1: FIRE equals each of these, in {record['setting']['dtype']}.\n\n{text_table(*_errors(record))}"


def _errors(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    rows = [
        [title_of(row["encoding"]), f"{row['max_length']:,}", f"{row['largest']:,.1f}", f"{row['error']:.2g}"]
        for row in record["rows"]
    ]
    return ["encoding", "positions to", "largest bias", "largest error ÷ it"], rows
