"""Downstream tasks for a page, in Markdown: what was run, in plain words, and our scores beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any

from longfire.evaluation.metrics import average
from longfire.report.description import changes_in_rows
from longfire.report.downstream import (
    DASH,
    NEAR,
    PLACEHOLDERS,
    SELECTED,
    Paper,
    chance_levels,
    describe_models,
    interval,
    missing,
)
from longfire.report.summary import join_words, over_seeds
from longfire.report.table import markdown_table
from longfire.report.task_rows import (
    Record,
    by_label,
    length_header,
    papers_row,
    papers_size,
    scores_at,
    seed_counts,
    with_means,
    with_seeds,
)
from longfire.tasks import SUITES, TASKS
from longfire.tasks.placeholder import is_placeholder

PAPERS_SIZE, PAPERS_STEPS = 125_000_000, 25_000
ALMOST = 0.8
"""Of the paper's parameters: another vocabulary makes a base model that much smaller."""
PAPERS_LENGTHS = "In the paper, with base models pretrained at 2,048 tokens and fine-tuned on this task at 8,192:"
FAILED, MISSING = "failed", "missing"
OF_SEEDS = f"Of several seeds a score is the mean, above the least and the most of them; {NEAR} if it is so in all."
METRICS = {
    "f1": "F1",
    "exact_match": "exact match",
    "rouge_gm": "ROUGE",
    "accuracy": "accuracy",
    "group_exact_match": "exact match",
}
KEPT = {
    "dev": "the best by its answers to a part of the train split that was kept from training",
    "validation": "the best by its answers to the validation splits of what it was fine-tuned on",
    "loss": "the one with the least loss on a part of the train split that was kept from training",
    "last": "the last",
}

Row = Mapping[str, Any]


def downstream_markdown(record: Record, paper: Paper, picture: str | None = None) -> str:
    """What was run, its scores beside the paper's, and what failed or is missing.

    Args:
        record: of `longfire finetune` or `longfire evaluate`.
        paper: the paper's rows.
        picture: a link to that of scores by length, if there is one.
    """
    tasks, lengths = record["setting"]["tasks"], record["setting"]["lengths"]
    parts, told_apart, means, said = [in_plain_words(record)], with_seeds(record), with_means(record), marks(record)
    for suite in dict.fromkeys(TASKS[task].suite for task in tasks):
        of_suite = [task for task in tasks if TASKS[task].suite == suite]
        if len(lengths) > 1 and tuple(of_suite) != SUITES[suite]:
            parts += [by_length(told_apart, task, paper.get(task, ())) for task in of_suite]
        elif len(of_suite) == 1:
            parts.append(of_one_task(told_apart, of_suite[0], lengths[0], paper.get(suite, ())))
        else:
            for length in lengths:
                parts.append(f"In {length:,} tokens:" if len(lengths) > 1 else "")
                parts.append(averages(record, of_suite, length, paper.get(suite, ())))
                parts.append(by_task(means, of_suite, length))
            said += [OF_SEEDS] if len(means["rows"]) < len(record["rows"]) and OF_SEEDS not in said else []
    if picture:
        parts.append(f"![Scores by length]({picture})")
    parts += [" ".join(said), "\n".join(f"- {plain(note)}" for note in missing(told_apart))]
    return "\n\n".join(part for part in parts if part)


def in_plain_words(record: Record) -> str:
    """Checkpoints, training, what was tested on: a paragraph."""
    setting, rows = record["setting"], record["rows"]
    small = "**Small-scale run.** " if is_small(record) else ""
    stretched = {f"{row['label']} extended to {row['extended_to']:,}" for row in rows if row.get("extended_to")}
    labels = join_words(list(by_label(rows)))
    parts = [f"{small}{labels}{seed_counts(rows)}: {describe_models(rows)}{_beside(sorted(stretched))}."]
    if changed := changes_in_rows(rows):
        parts.append(f"Not as published: {changed}.")
    parts += _finetuned(record) if setting["kind"] == "finetune" else _finetuned_before(rows, setting["tasks"])
    lengths = join_words([f"{n:,}" for n in setting["lengths"]])
    parts.append(f"Tested on {_questions(record)} of the {setting['split']} split, in {lengths} tokens.")
    if is_placeholder(setting["data"]):
        parts.append(PLACEHOLDERS)
    if record.get("interrupted"):
        parts.append("It was interrupted: what is missing was not run.")
    return " ".join(parts)


def is_small(record: Record) -> bool:
    """Whether models, training or questions are fewer than the paper's."""
    sizes = [row["parameters"] for row in record["rows"]]
    recipes = [record["setting"].get("recipe"), *(row.get("finetuned") for row in record["rows"])]
    steps = [recipe["steps"] for recipe in recipes if recipe]
    small = min(sizes, default=0) < ALMOST * PAPERS_SIZE or min(steps, default=PAPERS_STEPS) < PAPERS_STEPS
    return small or record["setting"]["limit"] is not None


def of_one_task(record: Record, task: str, length: int, paper: Sequence[Row]) -> str:
    """A row for each checkpoint: score, interval, that of swapped answers, and the paper's figure where it has any."""
    size = papers_size(record)
    theirs = [(papers_row(row, paper, size) or {}).get(task) for row in record["rows"]]
    known = any(figure is not None for figure in theirs)
    all_found = [outcome(record, row, task, length) for row in record["rows"]]
    swapped = _of(all_found, "swapped") is not None
    rows = []
    for row, found, figure in zip(record["rows"], all_found, theirs, strict=True):
        beside = [_number((found or {}).get("swapped"))] if swapped else []
        beside += [_number(figure)] if known else []
        rows.append([plain(row["label"]), _score(found), _interval(found) or DASH, *beside])
    headers = ["95 %", *(["answers swapped"] if swapped else []), *([f"paper, {size}"] if known else [])]
    return markdown_table(["", METRICS[TASKS[task].metric], *headers], rows)


def averages(record: Record, tasks: Sequence[str], length: int, paper: Sequence[Row]) -> str:
    """A row for each encoding: the mean over the tasks beside the paper's; and over those that all have, if fewer."""
    suite = TASKS[tasks[0]].suite
    whole = tuple(tasks) == SUITES[suite]
    scores = [scores_at(row, length) for row in record["rows"]]
    shared = [task for task in tasks if scores and all(task in found for found in scores)]
    sets = [tasks] if len(shared) in (0, len(tasks)) else [tasks, shared]
    size = papers_size(record)
    rows = []
    for label, seeds in by_label(record["rows"]).items():
        given = papers_row(seeds[0], paper, size) or {}
        cells = []
        for chosen in sets:
            stated = given.get("average") if whole and chosen is tasks else None
            ours = [_average(row, chosen, length) for row in seeds]
            known = [mean for mean in ours if mean is not None]
            cells.append(over_seeds(known, 2) if len(known) == len(ours) else MISSING)
            cells.append(_number(stated or average(given, chosen)))
        rows.append([plain(label), *cells])
    first = "average" if whole else f"mean of {len(tasks)}"
    theirs = f"paper, {size}"
    headers = [first, theirs, f"mean of the {len(shared)} that all have", f"{theirs}, the same"]
    return markdown_table(["", *headers[: 2 * len(sets)]], rows)


def by_task(record: Record, tasks: Sequence[str], length: int) -> str:
    """Tasks down, encodings across, each score above its interval; of several seeds the mean, from least to most."""
    rows = []
    for task in tasks:
        found = [outcome(record, row, task, length) for row in record["rows"]]
        questions, chance = _of(found, "groups") or _of(found, "examples"), _of(found, "chance")
        metric = METRICS[TASKS[task].metric]
        about = f"{metric} of {questions:,}" if questions else metric
        rows.append([f"{TASKS[task].title}{_small(about)}", _number(chance), *map(_cell, found)])
    return markdown_table(["", "one answer", *(plain(row["label"]) for row in record["rows"])], rows)


def by_length(record: Record, task: str, paper: Sequence[Row]) -> str:
    """Checkpoints down, lengths across, each score above its interval; below, the paper's at the same lengths."""
    lengths = record["setting"]["lengths"]
    rows = [
        [plain(row["label"]), *(_cell(outcome(record, row, task, length)) for length in lengths)]
        for row in record["rows"]
    ]
    metric = f"{METRICS[TASKS[task].metric]} at"
    ours = markdown_table([metric, *(length_header(record, length) for length in lengths)], rows)
    encodings = dict.fromkeys(row["encoding"] for row in record["rows"])
    theirs = [
        [one["label"], *(_number(one.get(str(length))) for length in lengths)]
        for encoding in encodings
        for one in paper
        if one["encoding"] == encoding and any(str(length) in one for length in lengths)
    ]
    if not theirs:
        return ours
    return f"{ours}\n\n{PAPERS_LENGTHS}\n\n{markdown_table([metric, *(f'{length:,}' for length in lengths)], theirs)}"


def marks(record: Record) -> list[str]:
    """What the marks mean that are there, and where the paper has nothing."""
    said = []
    for name, meaning in chance_levels(record).items():
        levels = {one[name] for row in record["rows"] for one in row["scores"] if one.get(name) is not None}
        that = f" ({levels.pop():.2f})" if len(levels) == 1 else ""
        said.append(f"{NEAR}: not above {meaning}{that}.")
    if len(record["setting"]["tasks"]) > 1:
        said.append("Averages that the paper does not state are the means of its figures.")
    if not any(task in SUITES[TASKS[task].suite] for task in record["setting"]["tasks"]):
        said.append("The paper has no figures for this.")
    return said


def outcome(record: Record, row: Record, task: str, length: int) -> Record | None:
    """A score; or why there is none, under "failed"; or None where it was not run."""
    for one in row["scores"]:
        if (one["task"], one["length"]) == (task, length):
            return dict(one)
    trained = {mixture["name"] for mixture in record["setting"].get("mixtures", ()) if task in mixture["tasks"]}
    failed = [part for part in row.get("parts", ()) if part["mixture"] in trained and "failed" in part]
    return {"failed": failed[0]["failed"]} if failed else None


def plain(text: str) -> str:
    """With nothing in it that Markdown would take for more than letters."""
    for letter in "\\`*_[]|":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("<", "&lt;")


def _finetuned(record: Record) -> list[str]:
    """How, and which model of a run was taken."""
    setting = record["setting"]
    recipe, mixtures = setting["recipe"], setting["mixtures"]
    together = max(len(mixture["tasks"]) for mixture in mixtures)
    if together > 1:
        on = f"{together} tasks together, each as often as it has rows"
    else:
        on = f"`{setting['tasks'][0]}`" if len(setting["tasks"]) == 1 else "each task by itself"
    numbers = sorted({part["train_rows"] for row in record["rows"] for part in row["parts"] if "train_rows" in part})
    rows = f" ({' to '.join(f'{n:,}' for n in dict.fromkeys([numbers[0], numbers[-1]]))} rows)" if numbers else ""
    return [
        f"Each was fine-tuned on {on}{rows}, in sequences of at most {recipe['length']:,} tokens: {_steps(recipe)}.",
        f"{SELECTED[setting['select']]}.",
    ]


def _finetuned_before(rows: Sequence[Record], tasks: Sequence[str]) -> list[str]:
    """The same of checkpoints that are tested as they are, where all were made in one way."""
    ways = [row["finetuned"] for row in rows if row.get("finetuned")]
    said = []
    if ways and all(way == ways[0] for way in ways):
        kept = KEPT.get(ways[0].get("select") or "")
        said.append(f"Fine-tuning took {_steps(ways[0])}{f'; of each run the model is {kept}' if kept else ''}.")
    on = {task for row in rows for task in row.get("finetuned_on") or ()}
    if on and not on & set(tasks):
        said.append(
            f"None was fine-tuned on {join_words([f'`{task}`' for task in tasks])} itself, as the paper's were."
        )
    return said


def _steps(recipe: Row) -> str:
    return f"{recipe['steps']:,} steps of {recipe['batch_size']} rows, recipe {recipe['name']}, seed {recipe['seed']}"


def _questions(record: Record) -> str:
    """How many; in all, where there are several tasks."""
    scores = [one for row in record["rows"] for one in row["scores"] if "failed" not in one]
    numbers = {one["task"]: one.get("groups") or one["examples"] for one in scores}
    limit = record["setting"]["limit"]
    drawn = f" (at most {limit:,} of a task, evenly drawn)" if limit else ""
    return f"{sum(numbers.values()):,} questions{drawn}" if numbers else f"questions{drawn}"


def _average(row: Record, tasks: Sequence[str], length: int) -> float | None:
    return average({task: one["score"] for task, one in scores_at(row, length).items()}, tasks)


def _of(found: Sequence[Record | None], key: str) -> Any:
    """Of the first that has it."""
    return next((one[key] for one in found if one is not None and one.get(key) is not None), None)


def _cell(found: Record | None) -> str:
    return _score(found) + _small(_interval(found))


def _small(text: str) -> str:
    """Below, in smaller letters."""
    return f"<br><small>{text}</small>" if text else ""


def _score(found: Record | None) -> str:
    if found is None:
        return MISSING
    return FAILED if "failed" in found else f"{found['score']:.2f}{f' {NEAR}' if found.get('near_chance') else ''}"


def _interval(found: Record | None) -> str:
    return "" if found is None or "failed" in found else interval(found)


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _beside(words: Sequence[str]) -> str:
    return f" ({join_words(words)} tokens)" if words else ""
