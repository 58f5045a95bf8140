"""Downstream tasks as the paper's tables have them: our rows, then the paper's for the same encodings."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from longfire.evaluation.metrics import average
from longfire.report.beside import papers_rows, papers_size
from longfire.report.contexts import (
    DASH,
    INTERVAL,
    METRICS,
    NEAR,
    Record,
    contexts_table,
    interval,
    marked,
    number,
    papers_contexts,
)
from longfire.report.seeds import by_label, how_many, with_seeds
from longfire.report.summary import amount, changes_in_rows, in_a_row
from longfire.report.table import text_table, width
from longfire.tasks import SUITES, TASKS
from longfire.tasks.placeholder import is_placeholder

Paper = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows of the paper by table: "scrolls", "glue", "narrative_qa"."""

ABREAST = 8
"""Tasks in one block of columns, at most, as in the paper's table of GLUE; fewer where a terminal is narrow."""
SELECTED = {
    "dev": "Tested is the best model of a run by its answers to a part of the train split that was kept from training",
    "validation": "Tested is the best model of a run on this very validation split, as in the paper: a choice that "
    "flatters all",
    "loss": "Tested is the model of a run with the least loss on a part of the train split that was kept from training",
    "last": "Tested is the last model of each run",
}
SAY_NOTHING = "Made-up rows: scores say nothing."
PAPERS = {
    "scrolls": "the whole datasets, 25,000 steps of 128 × 8,192 tokens",
    "glue": "the whole datasets, 25,000 steps of 256 × 1,024 tokens",
}


def downstream_table(record: Record, paper: Paper, size: str | None = None) -> str:
    """What was done, its scores, and what is missing or failed.

    A suite has a table for each length, as the paper's; tasks alone that were tested at several lengths one each.

    Args:
        record: of `longfire finetune` or `longfire evaluate`.
        paper: its rows.
        size: of the paper's models. None: the nearest to ours.
    """
    tasks, lengths = record["setting"]["tasks"], record["setting"]["lengths"]
    size = size or papers_size(record)
    parts = [fill(what_was_done(record), width())]
    told_apart = with_seeds(record)
    beside: list[str] = []
    for suite in dict.fromkeys(TASKS[task].suite for task in tasks):
        of_suite = [task for task in tasks if TASKS[task].suite == suite]
        if len(lengths) > 1 and tuple(of_suite) != SUITES[suite]:
            theirs = [row for task in of_suite for row in papers_contexts(record, paper.get(task, ()))]
            parts += [contexts_table(told_apart, task, paper.get(task, ())) for task in of_suite]
        else:
            theirs = papers_rows(record, paper.get(suite, ()), size)
            parts += [suite_table(told_apart, suite, of_suite, length, theirs) for length in lengths]
        beside += [suite] if theirs else []
    parts.append(fill(how_to_read(record, beside), width()))
    if notes := missing(told_apart):
        parts.append("\n".join(fill(f"– {text}", width(), subsequent_indent="  ") for text in notes))
    return "\n\n".join(parts)


def suite_table(
    record: Record, suite: str, tasks: Sequence[str], length: int, theirs: Sequence[Mapping[str, Any]]
) -> str:
    """Checkpoints down, the paper's below, tasks across, in blocks. Where the whole suite was asked for, an average."""
    for abreast in range(ABREAST, 1, -1):
        shown = _blocks(record, suite, tasks, length, theirs, abreast)
        if max(map(len, shown.splitlines())) <= width():
            break
    return shown


def _blocks(
    record: Record, suite: str, tasks: Sequence[str], length: int, theirs: Sequence[Mapping[str, Any]], abreast: int
) -> str:
    """The same with so many tasks in a block."""
    scores = {row["label"]: at_length(row, length) for row in record["rows"]}
    shared = [task for task in tasks if scores and all(task in found for found in scores.values())]
    whole = tuple(tasks) == SUITES[suite]
    averages = ["Average", *([f"of {len(shared)}"] if len(shared) < len(tasks) else [])] if whole else []
    blocks = [list(tasks[start : start + abreast]) for start in range(0, len(tasks), abreast)]
    shown = []
    for block in blocks:
        last = averages if block is blocks[-1] else []
        rows = _head(scores, block, len(last))
        for label, found in scores.items():
            plain = {task: one["score"] for task, one in found.items()}
            own = [average(plain, tasks), average(plain, shared)][: len(last)]
            rows.append([label, *(marked(found.get(task)) for task in block), *map(number, own)])
            if any(intervals := [interval(found.get(task)) for task in block]):
                rows.append([INTERVAL, *(f"{text} " for text in intervals), *[""] * len(last)])
        if theirs:
            rows.append([f"in the paper, {theirs[0]['size']}", *[""] * (len(block) + len(last))])
        for row in theirs:
            given = row.get("average") or average(row, tasks)
            own = [given, average(row, shared)][: len(last)]
            rows.append([f"  {row['label']}", *(number(row.get(task)) for task in block), *map(number, own)])
        shown.append(text_table([f"in {length:,} tokens", *(TASKS[task].title for task in block), *last], rows))
    return "\n\n".join(shown)


def at_length(row: Record, length: int) -> dict[str, Record]:
    """A row's scores at a length, by task."""
    return {one["task"]: one for one in row["scores"] if one["length"] == length and "failed" not in one}


def what_was_done(record: Record) -> str:
    """The experiment in a paragraph."""
    setting, rows = record["setting"], record["rows"]
    labels = ", ".join(by_label(rows)) + how_many(rows)
    lengths = ", ".join(f"{n:,}" for n in setting["lengths"])
    parts = [f"{labels}: {models(rows)}."]
    if changed := changes_in_rows(rows):
        parts.append(f"Not as published: {changed}.")
    if setting["kind"] == "finetune":
        recipe, mixtures = setting["recipe"], setting["mixtures"]
        together = max(len(mixture["tasks"]) for mixture in mixtures)
        on = f"{together} tasks together, each as often as it has rows" if together > 1 else "each task by itself"
        parts.append(
            f"Fine-tuned on {on}, recipe {recipe['name']}: {recipe['steps']:,} steps of {recipe['batch_size']} × at "
            f"most {recipe['length']:,} tokens, seed {recipe['seed']}. {SELECTED[setting['select']]}."
        )
    limit = f", {setting['limit']:,} questions a task at most" if setting["limit"] else ""
    data = "placeholder rows" if is_placeholder(setting["data"]) else setting["data"]
    parts.append(f"Tested on the {setting['split']} split of {data}, in {lengths} tokens{limit}.")
    if brief := setting.get("brief"):
        parts.append(
            f"A trial: of each split at most {brief['rows']:,} questions are read, what has no room is left out, and "
            f"answers end after {brief['max_answer']} tokens."
        )
    if is_placeholder(setting["data"]):
        parts.append(SAY_NOTHING)
    if record.get("interrupted"):
        parts.append("It was interrupted: what is missing was not run.")
    return " ".join(parts)


def how_to_read(record: Record, beside: Sequence[str]) -> str:
    """Marks, and what the paper's rows are, of the suites that have any beside ours."""
    parts = ["Scores are 0 … 100, with their 95 % intervals."]
    parts += [f"{NEAR} is not above what {meaning}." for meaning in near_meanings(record).values()]
    if beside:
        made = "; ".join(PAPERS[suite] for suite in beside)
        parts.append(
            f"The paper's rows: 125M parameters (base) or 350M (large), trained on C4, {made}, the best on validation. "
            f"Where ours are smaller in model, training or data, the two are not to be compared."
        )
    return " ".join(parts)


def near_meanings(record: Record) -> dict[str, str]:
    """What scores that are marked are not above, by the name that it has in the record."""
    near = [one for row in record["rows"] for one in row["scores"] if one.get("near_chance")]
    own = any(one.get("chance") is not None and not TASKS[one["task"]].choices for one in near)
    said = {
        "chance": f"one and the same answer to all questions{', or the option in one and the same place,' * own} would "
        "score",
        "swapped": "the same answers score when each is given to a question on another document",
    }
    return {name: meaning for name, meaning in said.items() if any(one.get(name) is not None for one in near)}


def missing(record: Record) -> list[str]:
    """Tasks that are not in the data, and what failed."""
    notes = [f"{task} is left out: {why}." for task, why in record["setting"]["missing"].items()]
    for row in record["rows"]:
        failed = [(part["mixture"], part["failed"]) for part in row.get("parts", ()) if "failed" in part]
        failed += [(f"{one['task']} at {one['length']:,}", one["failed"]) for one in row["scores"] if "failed" in one]
        notes += [f"{row['label']} on {where} failed: {' '.join(why.split())}" for where, why in failed]
    return notes


def _head(scores: Mapping[str, dict[str, Record]], tasks: Sequence[str], more: int) -> list[list[str]]:
    """Lines above the scores: metric, questions, and chance where a task has one."""
    ours = list(scores.values())

    def of(task: str, key: str) -> Any:
        return next((found[task].get(key) for found in ours if task in found), None)

    rows = [["metric", *(METRICS[TASKS[task].metric] for task in tasks)]]
    rows.append(["questions", *(_count(of(task, "groups") or of(task, "examples")) for task in tasks)])
    if any(of(task, "chance") is not None for task in tasks):
        rows.append(["chance", *(number(of(task, "chance")) for task in tasks)])
    return [[*row, *[""] * more] for row in rows]


def models(rows: Sequence[Record]) -> str:
    """What the checkpoints are, as far as it is known: size, pretraining, and fine-tuning before this."""
    sizes = sorted({row["parameters"] for row in rows})
    shown = amount(sizes[0]) if amount(sizes[0]) == amount(sizes[-1]) else f"{amount(sizes[0])} to {amount(sizes[-1])}"
    text = f"{'models' if len(rows) > 1 else 'a model'} of {shown} parameters"
    trained = sorted({row["trained_length"] for row in rows if row["trained_length"]})
    seen = sorted({row["tokens_seen"] for row in rows if row["tokens_seen"]})
    if trained:
        on = f"on {amount(seen[0])}{f' to {amount(seen[-1])}' if len(seen) > 1 else ''} tokens " if seen else ""
        texts = sorted({row["corpus"] for row in rows if row.get("corpus")})
        on += f"{'of' if seen else 'on'} {in_a_row(texts)} " if texts else ""
        text += f", pretrained {on}in sequences of {' and '.join(f'{n:,}' for n in trained)}"
    tuned = sorted({row["finetuned_length"] for row in rows if row["finetuned_length"]})
    if tuned:
        tasks = sorted({task for row in rows for task in row.get("finetuned_on") or ()})
        on = f"on {in_a_row(tasks)} " if tasks else ""
        text += f", fine-tuned {on}in sequences of up to {' and '.join(f'{n:,}' for n in tuned)}"
    return text


def _count(value: int | None) -> str:
    return f"{DASH} " if value is None else f"{value:,} "
