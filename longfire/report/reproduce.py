"""A reproduction beside the paper's own numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.compare import compare_markdown, compare_table
from longfire.report.html import html_table
from longfire.report.page import report_page
from longfire.report.summary import Record, lines_of, mean_and_deviation
from longfire.report.table import markdown_table, text_table

PAPERS_MODELS = "The paper's models: 125M parameters, 315 billion tokens of C4."
A_PICTURE = "The paper shows this as a picture, without numbers."


def reproduced_table(record: Record, paper: list[dict[str, Any]], bold: bool = False) -> str:
    """Ours, and below the paper's, which are of larger models trained longer on another text."""
    shown = [compare_table(record, bold=bold)]
    shown += [f"{text_table(*_papers(paper))}\n\n{PAPERS_MODELS}" if paper else A_PICTURE]
    return "\n\n".join(shown)


def reproduced_markdown(record: Record, paper: list[dict[str, Any]]) -> str:
    """The same for a page."""
    theirs = f"{markdown_table(*_papers(paper))}\n\n{PAPERS_MODELS}" if paper else A_PICTURE
    return f"{compare_markdown(record)}\n\n{theirs}"


def reproduced_page(record: Record, path: Path, title: str, paper: list[dict[str, Any]]) -> Path:
    """The same as a page to open. Returns the path."""
    theirs = f"{html_table(*_papers(paper))}<p class=soft>{PAPERS_MODELS}</p>" if paper else f"<p>{A_PICTURE}</p>"
    return report_page(record, path, title, f'<section id="paper"><h2>In the paper</h2>{theirs}</section>')


def _papers(paper: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    lengths = [key for key in paper[0] if key.isdigit()]
    rows = [[row["label"], *(_number(row[n]) for n in lengths)] for row in paper]
    return ["in the paper, trained at 2,048", *(f"{int(n):,}" for n in lengths)], rows


def learned_markdown(record: Record, encoding: str = "fire") -> str:
    """What FIRE has learned by layer, mean ± deviation over seeds: c, L, and how many heads look near or far."""
    runs = [
        run["learned"]
        for line in lines_of(record)
        if line.encoding == encoding
        for run in line.runs
        if "learned" in run
    ]
    rows = []
    for layers in zip(*runs, strict=True):
        looks = [layer["look_back"] for layer in layers]
        near, far = ([sum(test(look) for look in heads) for heads in looks] for test in (_is_near, _is_far))
        c, L = ([layer[key] for layer in layers if layer[key] is not None] for key in ("c", "L"))
        rows.append([str(layers[0]["layer"] + 1), _over(c, 3), _over(L, 0), _over(near, 1), _over(far, 1)])
    header = ["layer", "c", "L", f"heads that look near (below {LOCAL})", f"far (above {ANTI_LOCAL})"]
    return markdown_table(header, rows) if rows else ""


def _is_near(look: float) -> bool:
    return look < LOCAL


def _is_far(look: float) -> bool:
    return look > ANTI_LOCAL


def _over(values: Sequence[float], places: int) -> str:
    mean, deviation = mean_and_deviation(values)
    if mean is None:
        return "–"
    return f"{mean:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


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
