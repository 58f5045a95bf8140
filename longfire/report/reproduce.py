"""Reproductions of the paper's tables and figures beside its own numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longfire.encodings.registry import title_of
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.compare import SPREAD, compare_markdown, compare_table
from longfire.report.description import shared_description
from longfire.report.page import report_page
from longfire.report.summary import Record, amount, lines_of, over_seeds
from longfire.report.table import Table, places

PAPERS_MODELS = "The paper's models: 125M parameters, 315 billion tokens of C4."
PAPERS_RECIPES = ("base", "large", "base-512")
NO_NUMBERS = "The paper shows this as a figure, without numbers."

PaperRows = list[dict[str, Any]]


def reproduced_table(record: Record, paper: PaperRows, bold: bool = False) -> str:
    """Our report for a terminal, then the paper's numbers."""
    return f"{compare_table(record, bold=bold)}\n\n{papers_table(paper) or NO_NUMBERS}"


def reproduced_markdown(record: Record, paper: PaperRows, known: Sequence[str] = ()) -> str:
    """The same for a page that already has the sentences in `known`."""
    theirs = papers_table(paper, known)
    return f"{compare_markdown(record, known)}\n\n{theirs.markdown() if theirs else NO_NUMBERS}"


def reproduced_page(record: Record, path: Path, title: str, paper: PaperRows) -> Path:
    """The same as report.html. Returns its path."""
    return report_page(record, path, title, papers_table(paper) or NO_NUMBERS)


def papers_table(paper: PaperRows, known: Sequence[str] = ()) -> Table | None:
    """The paper's numbers; None if it has none."""
    if not paper:
        return None
    lengths, digits = [key for key in paper[0] if key.isdigit()], places(paper)
    rows = [
        [row["label"], *("–" if row[n] is None else f"{row[n]:.{digits}f}" for n in lengths)]
        for row in paper
        if any(row[n] is not None for n in lengths)
    ]
    columns = ["in the paper, trained at 2,048", *(f"{int(n):,}" for n in lengths)]
    return Table(columns, rows, notes=[PAPERS_MODELS] if PAPERS_MODELS not in known else [])


def heading(shows: str, what: str, record: Record) -> str:
    """The paper's table or figure, or that this stands in for it, if the models are not the paper's."""
    setting = record["setting"]
    if (setting.get("recipe") or {}).get("name") in PAPERS_RECIPES:
        return f"{shows}: {what}"
    sizes = [amount(run["parameters"]) for run in record["runs"] if run.get("parameters")]
    models = f"models of {sizes[0]}" if sizes else "models"
    return f"In place of {shows} ({what}): {models} trained at {setting['trained_length']:,}"


def shared_notes(records: Sequence[Record]) -> list[str]:
    """Sentences that apply to a page of several reproductions, to be said once."""
    return [*shared_description(records), SPREAD, PAPERS_MODELS]


def learned_table(record: Record, encoding: str = "fire") -> Table | None:
    """FIRE's learned c and L by layer, and how many heads look near or far: mean ± deviation over seeds."""
    lines = [line for line in lines_of(record) if line.encoding == encoding]
    runs = [run["learned"] for line in lines for run in line.runs if "learned" in run]
    if not runs:
        return None
    rows = []
    for layers in zip(*runs, strict=True):
        c, L = ([layer[key] for layer in layers if layer[key] is not None] for key in ("c", "L"))
        near = [sum(look < LOCAL for look in layer["look_back"]) for layer in layers]
        far = [sum(look > ANTI_LOCAL for look in layer["look_back"]) for layer in layers]
        means = [over_seeds(c, 3), over_seeds(L, 0), over_seeds(near, 1), over_seeds(far, 1)]
        rows.append([str(layers[0]["layer"] + 1), *means])
    trained = record["setting"]["trained_length"]
    note = (
        f"c is that of ψ(x) = log(c·x + 1); L is the threshold in tokens (training length {trained:,}). A head's "
        "look-back is the mean distance it attends to if all keys are alike, from the last query of "
        f"{trained:,} tokens, relative to a head without a bias. A head looks near below {LOCAL} and far above "
        f"{ANTI_LOCAL}."
    )
    columns = ["layer", "c", "L", f"heads that look near (below {LOCAL})", f"far (above {ANTI_LOCAL})"]
    return Table(columns, rows, notes=[note])


def theorem_table(record: dict[str, Any]) -> Table:
    """Theorem 3.1: the distance between FIRE and each encoding it is constructed to equal."""
    rows = [
        [title_of(row["encoding"]), f"{row['max_length']:,}", f"{row['largest']:,.1f}", f"{row['error']:.2g}"]
        for row in record["rows"]
    ]
    return Table(
        ["encoding", "positions to", "largest bias", "largest error ÷ it"],
        rows,
        title=f"With constructed parameters, FIRE equals each of these up to rounding in {record['setting']['dtype']}.",
        notes=["The error is the largest over all pairs of positions."],
    )
