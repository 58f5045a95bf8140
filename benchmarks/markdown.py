"""Comparisons as Markdown (verdict, picture, tables with the best in bold, method, caveats), and tables of the docs."""

from collections.abc import Sequence
from typing import Any

from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.model.retrofits.architectures import ALIBI, CLASSES, DECODER_HEADS, DECODERS
from longfire.report.compare import comparison_tables
from longfire.report.description import description
from longfire.report.failures import failures
from longfire.report.metric import over_seeds
from longfire.report.reproduce import papers_numbers
from longfire.report.summary import Record, amount, lines_of
from longfire.report.table import Table
from longfire.report.verdict import verdict
from longfire.tasks import TASKS

TEST = "[test](claims.md#which-differences-are-significant)"
UNLESS_STATED = "This applies unless stated otherwise."


def comparison_markdown(record: Record, picture: str = "", known: Sequence[str] = ()) -> str:
    """A comparison by length, without the sentences in `known`, which are elsewhere on the page."""
    tables = [table.markdown() for table in comparison_tables(record, rule=TEST)]
    method = " ".join(sentence for sentence in description(record) if sentence not in known)
    shown = f"[![Log perplexity by length]({picture})]({picture})" if picture else ""
    return "\n\n".join(filter(None, [verdict(record), shown, *tables, *failures(record), method]))


def shared_description(records: Sequence[Record]) -> list[str]:
    """Sentences on method that most of several records share, to be stated once."""
    found = [description(record) for record in records if record["runs"]]
    if len(found) < 2:
        return []
    every = dict.fromkeys(one for own in found for one in own)
    usual = [one for one in every if 2 * sum(one in own for own in found) > len(found)]
    return [*usual, *([UNLESS_STATED] if any(one not in own for one in usual for own in found) else [])]


def reproduction_markdown(record: Record, paper: list[dict[str, Any]], picture: str, known: Sequence[str] = ()) -> str:
    """A table or figure of the paper: our comparison, then the paper's numbers."""
    sizes = [amount(run["parameters"]) for run in record["runs"] if run.get("parameters")]
    models = f"models of {sizes[0]} parameters" if sizes else "models"
    ours = f"*Stand-in: {models}, trained at {record['setting']['trained_length']:,} tokens.*"
    theirs = papers_numbers(paper)
    shown = Table(theirs.columns, theirs.rows).markdown() if isinstance(theirs, Table) else theirs
    return "\n\n".join([ours, comparison_markdown(record, picture, known), shown])


def learned_markdown(record: Record) -> str:
    """What FIRE learned by layer, over seeds: c, L, and how many heads look near or far."""
    lines = [line for line in lines_of(record) if line.encoding == "fire"]
    runs = [run["learned"] for line in lines for run in line.runs if "learned" in run]
    rows = []
    for layers in zip(*runs, strict=True):
        c, L = ([layer[key] for layer in layers if layer[key] is not None] for key in ("c", "L"))
        near = [sum(look < LOCAL for look in layer["look_back"]) for layer in layers]
        far = [sum(look > ANTI_LOCAL for look in layer["look_back"]) for layer in layers]
        means = [over_seeds(c, 3), over_seeds(L, 0), over_seeds(near, 1), over_seeds(far, 1)]
        rows.append([str(layers[0]["layer"] + 1), *means])
    if not rows:
        return ""
    trained = record["setting"]["trained_length"]
    note = (
        f"c is the parameter of ψ(x) = log(c·x + 1), L the threshold in tokens (training length: {trained:,}). A "
        "head's look-back is the mean distance at which the last query attends if all keys are equal, relative to a "
        f"head without a bias: near is below {LOCAL}, far above {ANTI_LOCAL}."
    )
    return Table(["layer", "c", "L", "heads looking near", "heads looking far"], rows, notes=[note]).markdown()


def tasks_markdown() -> str:
    """The table of docs/tasks.md: each task's source, text of a row, and answers."""
    forms = {
        "question": "question, blank line, document",
        "options": "question, four options (A) … (D), blank line, document",
        "document": "document",
    }
    rows = []
    for task in TASKS.values():
        text = forms.get(task.form, f"`{task.template}`")
        text += f"; `{task.document}` may be truncated" if task.document else ""
        answers = ", ".join(f"`{choice}`" for choice in task.choices) or "free"
        rows.append([f"`{task.name}`", " ".join(filter(None, task.hub)), text, answers, str(task.max_answer)])
    return Table(["", "on the Hugging Face hub", "text of a row", "answers", "tokens"], rows, left=4).markdown()


def architectures_markdown() -> str:
    """The table of docs/retrofit.md: each decoder's positions, the heads that are served, and what is special."""
    served = {cls.__name__ for cls in CLASSES}
    rows = []
    for one in DECODERS:
        prefixes = {one.name, one.text or one.name}
        heads = ["✓" if {prefix + part for prefix in prefixes} & served else "" for part in DECODER_HEADS]
        rows.append([one.title or one.name, "ALiBi" if one in ALIBI else "rotary", *heads, one.note])
    columns = ["architecture", "positions", "causal LM", "sequences", "tokens", "notes"]
    return Table(columns, rows, left=len(columns)).markdown()
