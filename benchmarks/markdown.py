"""Records as Markdown: the verdict, the picture, the table with the best in bold, then method and caveats."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from benchmarks.names import with_display_names
from longfire.encodings.registry import title_of
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.failures import failures
from longfire.report.significance import clear_best, differences, seeds_verdict
from longfire.report.summary import (
    Record,
    amount,
    in_a_row,
    lengths_of,
    lines_of,
    over_seeds,
    seeds_of,
    sentences,
    texts_of,
)
from longfire.report.table import Table, places
from longfire.tasks import TASKS

TEST = "[test](claims.md#which-differences-are-significant)"
PLUS = "± is the standard deviation over seeds."
BOLD = "Bold is the lowest mean."
PAPERS_MODELS = "The paper's models have 125M parameters and saw 315 billion tokens of C4."
A_FIGURE = "The paper shows this as a figure, without numbers."
UNLESS_STATED = "This applies unless stated otherwise."
Numbers = dict[str, dict[int, float]]
"""Mean log perplexity by label and length."""


def comparison_markdown(record: Record, picture: str = "", known: Sequence[str] = ()) -> str:
    """A comparison by length. Sentences in `known` are stated elsewhere on the page and left out."""
    record = with_display_names(record)
    parts = [verdict(record), f"![Log perplexity by length]({picture})" if picture else ""]
    legend = " ".join(note for note in (PLUS * (len(seeds_of(record)) > 1), BOLD) if note not in known)
    for i, (text, one) in enumerate(texts_of(record).items()):
        notes = ["" if i else legend, scored(one), seeds_verdict(one, TEST)]
        parts += [lengths_table(one, f" on {text}" if i else "").markdown(), " ".join(filter(None, notes))]
    parts += [*failures(record), " ".join(sentence for sentence in sentences(record) if sentence not in known)]
    return "\n\n".join(filter(None, parts))


def lengths_table(record: Record, on: str = "") -> Table:
    """Encodings down, lengths across, the lowest mean of a length in bold."""
    lines, lengths, trained = lines_of(record), lengths_of(record), record["setting"]["trained_length"]
    rows = [[line.label, *(over_seeds(line.values(n).values()) for n in lengths)] for line in lines]
    best = best_by_length(record) if len(lines) > 1 else {}
    bold = [(i, 1 + j) for i, line in enumerate(lines) for j, n in enumerate(lengths) if best.get(n) == line.label]
    columns = [f"{n:,} (trained)" if n == trained else f"{n:,}" for n in lengths]
    return Table([f"log perplexity{on} at", *columns], rows, highlights=bold)


def verdict(record: Record) -> str:
    """Who is best where, and how much the best, FIRE and the worst change beyond the training length."""
    means, lengths, best = mean_perplexities(record), lengths_of(record), best_by_length(record)
    trained = record["setting"]["trained_length"]
    whole = {label: values for label, values in means.items() if len(values) == len(lengths)}
    if not whole or trained not in lengths or len(lengths) == 1:
        return ""
    changes = {label: values[lengths[-1]] - values[trained] for label, values in whole.items()}
    shown = dict.fromkeys([best[lengths[-1]], "FIRE", max(changes, key=lambda label: changes[label])])
    beyond = [f"{label} {_change(changes[label])}" for label in shown if label in changes]
    moved = f"From {trained:,} to {lengths[-1]:,} tokens {in_a_row(beyond)}."
    return f"{_leaders(record, best)} {moved}" if len(means) > 1 else moved


def _leaders(record: Record, best: dict[int, str]) -> str:
    """`A is best at every length, significantly.`"""
    spans = [(label, [length for length, _ in group]) for label, group in groupby(best.items(), lambda one: one[1])]
    if len(spans) == 1:
        return f"{spans[0][0]} has the lowest perplexity at every length{_significance(record)}."
    where = [f"{label} at {in_a_row([f'{n:,}' for n in lengths])}" for label, lengths in spans]
    return f"Lowest perplexity: {'; '.join(where)}."


def _significance(record: Record) -> str:
    """How sure the lead of an encoding is that is best at every length."""
    by_length = [differences(record, n) for n in lengths_of(record)]
    if not all(by_length):
        return ""
    clear = [f"{n:,}" for n in lengths_of(record) if clear_best(record, n)]
    if len(clear) == len(by_length):
        return ", significantly below all others"
    level = dict.fromkeys(
        one.worse for of in by_length for one in of if one.better == of[0].better and not one.significant
    )
    if level and len(level) <= 2 < len(lines_of(record)):
        partly = f" (below that too at {in_a_row(clear)})" if clear else ""
        return f", significantly below all but {in_a_row(list(level))}{partly}"
    return f", significantly at {in_a_row(clear)}" if clear else ", but not significantly below all others"


def _change(by: float) -> str:
    if abs(by) < 0.0005:
        return "does not change"
    return f"{'degrades' if by > 0 else 'improves'} by {abs(by):.3f}"


def mean_perplexities(record: Record) -> Numbers:
    """Over seeds."""
    lines = {line.label: {n: line.values(n) for n in lengths_of(record)} for line in lines_of(record)}
    return {label: {n: fmean(of.values()) for n, of in values.items() if of} for label, values in lines.items()}


def best_by_length(record: Record) -> dict[int, str]:
    """The label with the lowest mean at each length."""
    means = mean_perplexities(record)
    found = {n: [label for label, values in means.items() if n in values] for n in lengths_of(record)}
    return {n: min(labels, key=lambda label: means[label][n]) for n, labels in found.items() if labels}


def scored(record: Record) -> str:
    """How much held-out text the numbers are of: documents and tokens."""
    rows: list[Record] = next(
        (run["perplexity"]["rows"] for run in record["runs"] if run.get("perplexity", {}).get("rows")), []
    )
    rows = [row for row in rows if row.get("documents") and row.get("tokens")]
    if not rows:
        return ""
    documents, tokens = ([row[key] for row in rows] for key in ("documents", "tokens"))
    documents_shown = span(f"{n:,}" for n in (max(documents), min(documents)))
    tokens_shown = span(amount(n) for n in (max(tokens), min(tokens)))
    return f"Scored at each length: {documents_shown} held-out documents, {tokens_shown} tokens."


def span(values: Iterable[str]) -> str:
    """`a to b`, or `a` where both are the same."""
    return " to ".join(dict.fromkeys(values))


def shared_sentences(records: Sequence[Record]) -> list[str]:
    """Sentences on method that most of several records have, to be stated once."""
    found = [sentences(record) for record in records if record["runs"]]
    if len(found) < 2:
        return []
    every = dict.fromkeys(one for own in found for one in own)
    usual = [one for one in every if 2 * sum(one in own for own in found) > len(found)]
    return [*usual, *([UNLESS_STATED] if any(one not in own for one in usual for own in found) else [])]


def reproduction_markdown(
    record: Record, paper: Sequence[dict[str, Any]], picture: str, known: Sequence[str] = ()
) -> str:
    """A table or figure of the paper: our comparison, then the paper's numbers."""
    sizes = [amount(run["parameters"]) for run in record["runs"] if run.get("parameters")]
    models = f"models of {sizes[0]} parameters" if sizes else "models"
    ours = f"*Stand-in: {models}, trained at {record['setting']['trained_length']:,} tokens.*"
    theirs = papers_table(paper).markdown() if paper else A_FIGURE
    return "\n\n".join([ours, comparison_markdown(record, picture, known), theirs])


def papers_table(paper: Sequence[dict[str, Any]]) -> Table:
    """The paper's numbers by length, those of the lowest perplexity in bold."""
    lengths = [key for key in paper[0] if key.isdigit()]
    digits, given = places(paper), [row for row in paper if any(row[n] is not None for n in lengths)]
    rows = [[row["label"], *("–" if row[n] is None else f"{row[n]:.{digits}f}" for n in lengths)] for row in given]
    best = {n: min((row[n] for row in given if row[n] is not None), default=None) for n in lengths}
    bold = [(i, 1 + j) for i, row in enumerate(given) for j, n in enumerate(lengths) if row[n] == best[n] is not None]
    return Table(["in the paper, trained at 2,048", *(f"{int(n):,}" for n in lengths)], rows, highlights=bold)


def learned_markdown(record: Record, encoding: str = "fire") -> str:
    """What FIRE learned by layer, over seeds: c, L, and how many heads look near or far."""
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
        near, far = [sum(x < LOCAL for x in heads) for heads in looks], [sum(x > ANTI_LOCAL for x in h) for h in looks]
        c, L = ([layer[key] for layer in layers if layer[key] is not None] for key in ("c", "L"))
        counts = (over_seeds(c, 3), over_seeds(L, 0), over_seeds(near, 1), over_seeds(far, 1))
        rows.append([str(layers[0]["layer"] + 1), *counts])
    if not rows:
        return ""
    trained = record["setting"]["trained_length"]
    note = (
        f"c is that of ψ(x) = log(c·x + 1), L the threshold in tokens, of {trained:,} trained on. A head's look-back "
        "is the mean distance that it attends to when all keys are alike, from the last query, relative to a head "
        f"without a bias: near is below {LOCAL}, far above {ANTI_LOCAL}."
    )
    return Table(["layer", "c", "L", "heads looking near", "heads looking far"], rows, notes=[note]).markdown()


def theorem_markdown(record: Record) -> str:
    """How far a FIRE is from the encoding that it is constructed to equal."""
    rows = [
        [title_of(row["encoding"]), f"{row['max_length']:,}", f"{row['largest']:,.1f}", f"{row['error']:.2g}"]
        for row in record["rows"]
    ]
    worst = max((row["error"] for row in record["rows"]), default=0.0)
    head = (
        f"With computed, untrained parameters FIRE equals each of these up to rounding in "
        f"{record['setting']['dtype']}: the largest relative error over all pairs of positions is {worst:.0g}."
    )
    columns = ["encoding", "positions to", "largest bias", "largest error ÷ it"]
    return f"{head}\n\n{Table(columns, rows).markdown()}"


def tasks_markdown() -> str:
    """The task table of docs/tasks.md: source, text of a row, answers."""
    forms = {
        "question": "question, blank line, document",
        "options": "question, four options (A) … (D), blank line, document",
        "document": "document",
    }
    rows = []
    for task in TASKS.values():
        text = forms.get(task.form, f"`{task.template}`")
        text += f"; `{task.document}` may be cut" if task.document else ""
        answers = ", ".join(f"`{choice}`" for choice in task.choices) or "free"
        rows.append([f"`{task.name}`", " ".join(filter(None, task.hub)), text, answers, str(task.max_answer)])
    return Table(["", "on the Hugging Face hub", "text of a row", "answers", "tokens"], rows, left=4).markdown()
