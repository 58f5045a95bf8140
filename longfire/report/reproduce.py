"""A reproduction beside the paper's own numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longfire.encodings.registry import title_of
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.compare import PLUS, compare_markdown, compare_table
from longfire.report.page import report_page
from longfire.report.summary import Record, amount, lines_of, over_seeds, shared_sentences
from longfire.report.table import Table, markdown_table, places, text_table

PAPERS_MODELS = "The paper's models: 125M parameters, 315 billion tokens of C4."
PAPERS_RECIPES = ("base", "large", "base-512")
A_PICTURE = "The paper shows this as a picture, without numbers."


def reproduced_table(record: Record, paper: list[dict[str, Any]], bold: bool = False) -> str:
    """Ours, and below the paper's, which are of larger models trained longer on another text."""
    shown = [compare_table(record, bold=bold)]
    shown += [f"{text_table(*_papers(paper))}\n\n{PAPERS_MODELS}" if paper else A_PICTURE]
    return "\n\n".join(shown)


def reproduced_markdown(record: Record, paper: list[dict[str, Any]], said: Sequence[str] = ()) -> str:
    """The same for a page, but what was said before."""
    theirs = markdown_table(*_papers(paper)) if paper else A_PICTURE
    models = [PAPERS_MODELS] if paper and PAPERS_MODELS not in said else []
    return "\n\n".join([compare_markdown(record, said), theirs, *models])


def heading(shows: str, what: str, record: Record) -> str:
    """Of a table or figure of the paper; of one that stands for it, where the models are others."""
    setting = record["setting"]
    if (setting.get("recipe") or {}).get("name") in PAPERS_RECIPES:
        return f"{shows}: {what}"
    sizes = [amount(run["parameters"]) for run in record["runs"] if run.get("parameters")]
    models = f"models of {sizes[0]}" if sizes else "models"
    return f"In place of {shows} ({what}): {models} trained at {setting['trained_length']:,}"


def tables_head(records: Sequence[Record]) -> list[str]:
    """What holds for a page of tables of these records, sentence by sentence, to be said once."""
    return [*shared_sentences(records), PLUS, PAPERS_MODELS]


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
        rows.append(
            [str(layers[0]["layer"] + 1), over_seeds(c, 3), over_seeds(L, 0), over_seeds(near, 1), over_seeds(far, 1)]
        )
    header = ["layer", "c", "L", f"heads that look near (below {LOCAL})", f"far (above {ANTI_LOCAL})"]
    trained = record["setting"]["trained_length"]
    explained = (
        f"c is that of ψ(x) = log(c·x + 1); L is the threshold, in tokens, of the {trained:,} that were trained on. A "
        "head's look-back is how far it looks where all keys are alike: the mean distance of what it attends to, from "
        f"the last query of {trained:,} tokens, divided by that of a head without a bias. Below {LOCAL} it looks near, "
        f"above {ANTI_LOCAL} far; of each layer the heads that do so are counted."
    )
    return f"{markdown_table(header, rows)}\n\n{explained}" if rows else ""


def _is_near(look: float) -> bool:
    return look < LOCAL


def _is_far(look: float) -> bool:
    return look > ANTI_LOCAL


def theorem_table(record: dict[str, Any]) -> str:
    """How far a FIRE is from the encoding that it is made to equal."""
    return f"Theorem 3.1: FIRE equals each of these, in {record['setting']['dtype']}.\n\n{text_table(*_errors(record))}"


def theorem_markdown(record: dict[str, Any]) -> str:
    """The same for a page."""
    made = (
        "With parameters that are computed and not trained FIRE equals each of these, but for rounding in "
        f"{record['setting']['dtype']}. The error is the largest over all pairs of positions."
    )
    return f"{made}\n\n{markdown_table(*_errors(record))}"


def _errors(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    rows = [
        [title_of(row["encoding"]), f"{row['max_length']:,}", f"{row['largest']:,.1f}", f"{row['error']:.2g}"]
        for row in record["rows"]
    ]
    return ["encoding", "positions to", "largest bias", "largest error ÷ it"], rows
