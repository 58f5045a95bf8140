"""Records as Markdown: the verdict, the picture, the table with the best in bold, then method and caveats."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from benchmarks.names import display_name, with_display_names
from longfire.bench.attention_speed import BOTH, FORWARD, MEMORY, RATIOS
from longfire.bench.model_speed import BASELINE
from longfire.encodings.registry import title_of
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.report.failures import failures
from longfire.report.model_speed import HEADS, batch_and_type, best_rows
from longfire.report.significance import ENOUGH, differences, seeds_verdict
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
    if len(seeds_of(record)) < ENOUGH:
        return ""
    by_length = {n: found for n in lengths_of(record) if (found := differences(record, n))}
    behind = {
        n: {one.worse: one.significant for one in found if one.better == found[0].better}
        for n, found in by_length.items()
    }
    clear = [f"{n:,}" for n, others in behind.items() if all(others.values())]
    if len(clear) == len(behind):
        return ", significantly below all others"
    level = {label for others in behind.values() for label, significant in others.items() if not significant}
    if len(level) == 1 < len(lines_of(record)) - 1:
        return f", significantly below all but {level.pop()}" + (
            f" (and that one at {in_a_row(clear)})" if clear else ""
        )
    return f", significantly at {in_a_row(clear)}" if clear else ", not significantly"


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
    documents_shown = _span(f"{n:,}" for n in (max(documents), min(documents)))
    tokens_shown = _span(amount(n) for n in (max(tokens), min(tokens)))
    return f"Scored at each length: {documents_shown} held-out documents, {tokens_shown} tokens."


def _span(values: Iterable[str]) -> str:
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


def forward_markdown(record: Record) -> str:
    """Figure 5 as a table: a forward pass with each encoding on its fastest engine, fastest first."""
    rows = sorted((row for row in best_rows(record) if row["kind"] == FORWARD), key=lambda row: row["ms"])
    failed = [row for row in record["rows"] if row["kind"] == FORWARD and "failed" in row]
    shown = [
        [
            display_name(row["encoding"]),
            row["engine"],
            f"{row['ms']:.2f}",
            f"{row['fastest']:.2f} to {row['slowest']:.2f}",
        ]
        for row in rows
    ]
    shown += [[display_name(row["encoding"]), "–", "failed", "–"] for row in failed]
    note = (
        f"Logits of {batch_and_type(record)}, {record['setting']['size']} model, {machine(record)}: the median of many "
        "passes, and the range."
    )
    columns = ["encoding", "engine", "milliseconds", "fastest to slowest"]
    return Table(columns, shown, left=2, highlights=[(0, 2)] if rows else [], notes=[note]).markdown()


def attention_figures(record: Record) -> str:
    """The attention record's main figures: FIRE on the fused engine against FlashAttention, cuDNN and a dense bias."""
    rows = {(row["encoding"], row["engine"], row["n"]): row for row in record["rows"]}
    lengths = [n for n in record["setting"]["lengths"] if any(n == key[2] for key in rows)]

    def ratio(n: int, key: str, what: str) -> float | None:
        found: float | None = rows.get(("fire", "fused", n), {}).get(RATIOS[key], {}).get(what)
        return found

    def speedup(n: int) -> float | None:
        ours, dense = (rows.get(("fire", engine, n), {}).get(BOTH, {}).get("ms") for engine in ("fused", "sdpa"))
        return dense / ours if ours and dense else None

    figures = {
        "forward, ÷ FlashAttention without a bias": [ratio(n, "flash", FORWARD) for n in lengths],
        "forward + backward, ÷ FlashAttention without a bias": [ratio(n, "flash", BOTH) for n in lengths],
        "forward + backward, ÷ cuDNN without a bias": [ratio(n, "cudnn", BOTH) for n in lengths],
        "memory added, ÷ FlashAttention's": [ratio(n, "flash", MEMORY) for n in lengths],
        "forward + backward, dense bias ÷ fused": [speedup(n) for n in lengths],
    }
    batches = {row["n"]: row["batch"] for row in record["rows"]}
    columns = ["FIRE, fused engine", *(f"{batches[n]} × {n:,} tokens" for n in lengths)]
    return Table(columns, [[name, *map(_ratio, values)] for name, values in figures.items()]).markdown()


def model_figures(record: Record) -> str:
    """Throughput of FIRE, FIRE-S and T5 relative to RoPE on each of its kernels. Higher is faster."""
    lines, rows = [], record["rows"]
    for kind, n in dict.fromkeys((row["kind"], row["n"]) for row in rows):
        same = {row["encoding"]: row for row in rows if (row["kind"], row["n"]) == (kind, n) and "ms" in row}
        for ratio in (key for key in same.get("fire", {}) if key.startswith("÷")):
            cells = [f"{1 / same[name][ratio]:.2f}" if name in same else "–" for name in ("fire", "fire-s", "t5")]
            engine = ratio.removeprefix(f"÷ {BASELINE} (").removesuffix(")")
            lines.append([f"{kind}, {n:,} {HEADS[kind]}", engine, *cells])
    return Table(["tokens/s, RoPE = 1", "RoPE's kernel", "FIRE", "FIRE-S", "T5"], lines, left=2).markdown()


def speed_line(record: Record) -> str:
    """The attention record in a sentence, with GPU, versions and commit."""
    rows = [row for row in record["rows"] if (row["encoding"], row["engine"]) == ("fire", "fused")]
    ratios = [row[RATIOS["flash"]][BOTH] for row in rows if BOTH in row.get(RATIOS["flash"], {})]
    if not ratios:
        return ""
    lengths, commit = [row["n"] for row in rows], record["provenance"].get("commit") or "unknown"
    times = _span(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return (
        f"Attention with FIRE, forward and backward, takes {times} times as long as FlashAttention "
        f"without a bias, from {min(lengths):,} to {max(lengths):,} tokens "
        f"({machine(record)}, {record['setting']['dtype']}, commit {commit[:7]})."
    )


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


def machine(record: Record) -> str:
    """`NVIDIA H200, torch 2.11.0`."""
    made, device = record["provenance"], "gpu" if record["setting"]["device"] == "cuda" else "cpu"
    return f"{made['hardware'][device]}, torch {made['versions']['torch']}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"
