"""A reproduction beside the paper's own numbers."""

from typing import Any

from longfire.report.compare import compare_table
from longfire.report.summary import Record
from longfire.report.table import text_table


def reproduced_table(record: Record, paper: list[dict[str, Any]], bold: bool = False) -> str:
    """Ours, and below the paper's, which are of larger models trained longer on another text."""
    shown = [compare_table(record, bold=bold)]
    if paper:
        lengths = [key for key in paper[0] if key.isdigit()]
        rows = [[row["label"], *(_number(row[n]) for n in lengths)] for row in paper]
        table = text_table(["in the paper, trained at 2,048", *(f"{int(n):,}" for n in lengths)], rows)
        shown.append(f"{table}\n\nThe paper's models: 125M parameters, 315 billion tokens of C4.")
    else:
        shown.append("The paper shows this as a picture, without numbers.")
    return "\n\n".join(shown)


def theorem_table(record: dict[str, Any]) -> str:
    """How far a FIRE is from the encoding that it is made to equal."""
    rows = [
        [row["encoding"], f"{row['max_length']:,}", f"{row['largest']:.3g}", f"{row['error']:.1e}"]
        for row in record["rows"]
    ]
    table = text_table(["encoding", "positions to", "largest bias", "largest error ÷ it"], rows)
    return f"Theorem 3.1: FIRE equals each of these, in {record['setting']['dtype']}.\n\n{table}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
