"""Scores on downstream tasks in the paper's layout: our rows, then the paper's rows for the same encodings."""

from collections.abc import Mapping, Sequence
from typing import Any

from longfire.evaluation.metrics import average
from longfire.report.description import INTERRUPTED, changes_in_rows
from longfire.report.metric import fixed
from longfire.report.summary import amounts, join_words
from longfire.report.table import Block, Table, render_text, width
from longfire.report.task_rows import (
    Record,
    by_label,
    length_header,
    papers_lengths,
    papers_rows,
    papers_size,
    scores_at,
    scores_on,
    seed_count,
    with_seeds,
)
from longfire.tasks import SUITES, TASKS
from longfire.tasks.placeholder import is_placeholder

Paper = Mapping[str, Sequence[Mapping[str, Any]]]
"""The paper's rows, keyed by table: "scrolls", "glue", "narrative_qa"."""

METRICS = {"f1": "F1", "exact_match": "EM", "rouge_gm": "Rgm", "accuracy": "acc.", "group_exact_match": "EM"}
DASH, INTERVAL, NEAR = "–", "  95 %", "≈"
MAX_TASKS = 8
"""Maximum number of tasks side by side, as in the paper's GLUE table; fewer on a narrow terminal."""
SELECTED = {
    "dev": "The tested model is each run's best on a dev split held out from the train split",
    "validation": "The tested model is each run's best on the validation split itself, as in the paper, which inflates "
    "all scores",
    "loss": "The tested model is the one with each run's lowest loss on a dev split held out from the train split",
    "last": "The tested model is the last one of each run",
}
PLACEHOLDERS = "The questions are placeholders, so scores are meaningless."
PAPERS_TRAINING = {
    "scrolls": "the full datasets, 25,000 steps of 128 × 8,192 tokens",
    "glue": "the full datasets, 25,000 steps of 256 × 1,024 tokens",
}


def downstream_table(record: Record, paper: Paper, size: str | None = None) -> str:
    """The report for a terminal: scores, how to read them, and how they were obtained.

    A suite has a table per length, like the paper's; single tasks at several lengths have a table each.

    Args:
        record: the record of `longfire finetune` or `longfire evaluate TASK`.
        paper: the paper's rows.
        size: size of the paper's models to show. None: the closest to ours.
    """
    tasks, lengths = record["setting"]["tasks"], record["setting"]["lengths"]
    size = size or papers_size(record)
    by_seed = with_seeds(record)
    tables: list[Table] = []
    cited: list[str] = []
    for suite in dict.fromkeys(TASKS[task].suite for task in tasks):
        own = [task for task in tasks if TASKS[task].suite == suite]
        if len(lengths) > 1 and tuple(own) != SUITES[suite]:
            theirs = [row for task in own for row in papers_lengths(record, paper.get(task, ()))]
            tables += [length_table(by_seed, task, paper.get(task, ())) for task in own]
        else:
            theirs = papers_rows(record, paper.get(suite, ()), size)
            for length in lengths:
                tables += suite_tables(by_seed, own, length, theirs)
        cited += [suite] if theirs else []
    blocks: list[Block] = [*tables, missing(by_seed), legend(record, cited), describe_tasks(record)]
    return render_text(blocks)


def length_table(record: Record, task: str, paper: Sequence[Mapping[str, Any]] = ()) -> Table:
    """Checkpoints, then the paper's models, as rows; lengths as columns."""
    lengths = record["setting"]["lengths"]
    rows = []
    for row in record["rows"]:
        by_length = scores_on(row, task)
        rows += _score_rows(row["label"], [by_length.get(n) for n in lengths])
    if theirs := papers_lengths(record, paper):
        rows.append(["in the paper, base", *[""] * len(lengths)])
    rows += [[f"  {row['label']}", *(_number(row.get(str(n))) for n in lengths)] for row in theirs]
    title = f"{TASKS[task].title}, {METRICS[TASKS[task].metric]} at"
    return Table([title, *(length_header(record, n) for n in lengths)], rows)


def suite_tables(record: Record, tasks: Sequence[str], length: int, theirs: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Checkpoints, then the paper's models, as rows; tasks as columns, in as many tables as the width requires."""
    for count in range(MAX_TASKS, 1, -1):
        blocks = [tasks[start : start + count] for start in range(0, len(tasks), count)]
        tables = [_suite_table(record, tasks, block, length, theirs) for block in blocks]
        if all(len(line) <= width() for table in tables for line in table.text().splitlines()):
            break
    return tables


def _suite_table(
    record: Record, tasks: Sequence[str], shown: Sequence[str], length: int, theirs: Sequence[Mapping[str, Any]]
) -> Table:
    """One block of tasks. The last block of a suite has averages over all tasks and, if fewer, those every row has."""
    scores = [scores_at(row, length) for row in record["rows"]]
    shared = [task for task in tasks if scores and all(task in by_task for by_task in scores)]
    averages: dict[str, Sequence[str]] = {}
    if tuple(tasks) == SUITES[TASKS[tasks[0]].suite] and shown[-1] == tasks[-1]:
        averages = {"Average": tasks} | ({f"of {len(shared)}": shared} if len(shared) < len(tasks) else {})
    rows = [[*row, *[""] * len(averages)] for row in _task_facts(scores, shown)]
    for row, by_task in zip(record["rows"], scores, strict=True):
        plain = {task: one["score"] for task, one in by_task.items()}
        means = [_number(average(plain, chosen)) for chosen in averages.values()]
        rows += _score_rows(row["label"], [by_task.get(task) for task in shown], means)
    if theirs:
        rows.append([f"in the paper, {theirs[0]['size']}", *[""] * (len(shown) + len(averages))])
    for paper in theirs:
        stated = {"Average": paper.get("average")}
        means = [_number(stated.get(name) or average(paper, chosen)) for name, chosen in averages.items()]
        rows.append([f"  {paper['label']}", *(_number(paper.get(task)) for task in shown), *means])
    return Table([f"in {length:,} tokens", *(TASKS[task].title for task in shown), *averages], rows)


def _task_facts(scores: Sequence[dict[str, Record]], tasks: Sequence[str]) -> list[list[str]]:
    """Rows above the scores: metric, number of questions and, if known, chance."""

    def first(task: str, key: str) -> Any:
        return next((by_task[task].get(key) for by_task in scores if task in by_task), None)

    counts = [first(task, "groups") or first(task, "examples") for task in tasks]
    rows = [
        ["metric", *(METRICS[TASKS[task].metric] for task in tasks)],
        ["questions", *(f"{DASH if count is None else f'{count:,}'} " for count in counts)],
    ]
    if any(first(task, "chance") is not None for task in tasks):
        rows.append(["chance", *(_number(first(task, "chance")) for task in tasks)])
    return rows


def _score_rows(label: str, scores: Sequence[Record | None], means: Sequence[str] = ()) -> list[list[str]]:
    """Scores, marked if not above chance, with their intervals, if any, in a second row."""
    cells = [f"{one['score']:.2f}{NEAR if one.get('near_chance') else ' '}" if one else _number(None) for one in scores]
    rows = [[label, *cells, *means]]
    if any(intervals := [interval(one) for one in scores]):
        rows.append([INTERVAL, *(f"{text} " for text in intervals), *[""] * len(means)])
    return rows


def describe_tasks(record: Record) -> str:
    """Checkpoints, fine-tuning and evaluation in a paragraph."""
    setting, rows = record["setting"], record["rows"]
    seeds = seed_count(rows)
    each = f", {seeds} seeds each" if seeds not in ("", "1") else ""
    parts = [f"{', '.join(by_label(rows))}{each}: {describe_models(rows)}."]
    if changed := changes_in_rows(rows):
        parts.append(f"Not as published: {changed}.")
    if setting["kind"] == "finetune":
        recipe = setting["recipe"]
        together = max(len(mixture["tasks"]) for mixture in setting["mixtures"])
        what = f"a mixture of {together} tasks, in proportion to their size" if together > 1 else "each task separately"
        parts.append(
            f"Fine-tuned on {what}, recipe {recipe['name']}: {recipe['steps']:,} steps of {recipe['batch_size']} × up "
            f"to {recipe['length']:,} tokens, seed {recipe['seed']}. {SELECTED[setting['select']]}."
        )
    limit = f", up to {setting['limit']:,} questions per task" if setting["limit"] else ""
    data = "placeholder questions" if is_placeholder(setting["data"]) else setting["data"]
    lengths = ", ".join(f"{n:,}" for n in setting["lengths"])
    parts.append(f"Tested on the {setting['split']} split of {data}, in {lengths} tokens{limit}.")
    if brief := setting.get("brief"):
        parts.append(
            f"A trial run: up to {brief['rows']:,} questions per split, skipping those that do not fit, and answers of "
            f"up to {brief['max_answer']} tokens."
        )
    parts += [PLACEHOLDERS] if is_placeholder(setting["data"]) else []
    parts += [INTERRUPTED] if record.get("interrupted") else []
    return " ".join(parts)


def describe_models(rows: Sequence[Record]) -> str:
    """Size, pretraining and earlier fine-tuning of the checkpoints, as far as known."""
    text = f"{'models' if len(rows) > 1 else 'a model'} with {amounts(row['parameters'] for row in rows)} parameters"
    trained = sorted({row["trained_length"] for row in rows if row["trained_length"]})
    if trained:
        seen = amounts({row["tokens_seen"] for row in rows if row["tokens_seen"]})
        texts = join_words(sorted({row["corpus"] for row in rows if row.get("corpus")}))
        what = [f"on {seen} tokens" if seen else "", f"{'of' if seen else 'on'} {texts}" if texts else ""]
        lengths = join_words([f"{n:,}" for n in trained])
        text += f", pretrained {' '.join([*filter(None, what), f'in sequences of {lengths}'])}"
    if tuned := sorted({row["finetuned_length"] for row in rows if row["finetuned_length"]}):
        tasks = sorted({task for row in rows for task in row.get("finetuned_on") or ()})
        what = [f"on {join_words(tasks)}" if tasks else ""]
        lengths = join_words([f"{n:,}" for n in tuned])
        text += f", fine-tuned {' '.join([*filter(None, what), f'in sequences of up to {lengths}'])}"
    return text


def legend(record: Record, cited: Sequence[str]) -> str:
    """How to read scores, marks and the paper's rows of the cited suites."""
    parts = ["Scores are 0 to 100, with 95 % intervals."]
    parts += [f"{NEAR}: not above {meaning}." for meaning in chance_levels(record).values()]
    if cited:
        parts.append(
            "The paper's rows: 125M parameters (base) or 350M (large), pretrained on C4, fine-tuned on "
            f"{'; '.join(PAPERS_TRAINING[suite] for suite in cited)}, best model on validation. They are not "
            "comparable with smaller models, shorter training or less data."
        )
    return " ".join(parts)


def chance_levels(record: Record) -> dict[str, str]:
    """The baselines that marked scores are not above, by key in the record."""
    near = [one for row in record["rows"] for one in row["scores"] if one.get("near_chance")]
    options = any(one.get("chance") is not None and not TASKS[one["task"]].choices for one in near)
    meanings = {
        "chance": f"the best constant answer{' or option position' * options}",
        "swapped": "the same answers swapped between documents",
    }
    return {name: meaning for name, meaning in meanings.items() if any(one.get(name) is not None for one in near)}


def missing(record: Record) -> list[str]:
    """Missing tasks and failures."""
    notes = [f"{TASKS[task].title} is missing: {reason}." for task, reason in record["setting"]["missing"].items()]
    for row in record["rows"]:
        failed = [(part["mixture"], part["failed"]) for part in row.get("parts", ()) if "failed" in part]
        failed += [(f"{one['task']} at {one['length']:,}", one["failed"]) for one in row["scores"] if "failed" in one]
        notes += [f"{row['label']} on {test} failed: {' '.join(reason.split())}" for test, reason in failed]
    return notes


def interval(score: Record | None) -> str:
    """`10.2…12.1`, or empty."""
    return "{:.1f}…{:.1f}".format(*score["interval"]) if score is not None and score["interval"] else ""


def _number(value: float | None) -> str:
    """A score, with room for a mark after it."""
    return f"{fixed(value, 2)} "
