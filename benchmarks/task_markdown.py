"""Task records as Markdown: the verdict, our scores next to the paper's, and the method."""

from collections.abc import Mapping, Sequence
from typing import Any

from longfire.evaluation.metrics import average
from longfire.report.downstream import (
    DASH,
    NEAR,
    Paper,
    chance_levels,
    describe_tasks,
    interval,
    missing,
)
from longfire.report.metric import fixed, mean_and_deviation, over_seeds
from longfire.report.summary import join_words
from longfire.report.table import Table
from longfire.report.task_rows import (
    Record,
    by_label,
    length_header,
    papers_row,
    papers_size,
    scores_at,
    with_means,
    with_seeds,
)
from longfire.tasks import SUITES, TASKS
from longfire.tasks.placeholder import is_placeholder

PAPERS_SIZE, PAPERS_STEPS = 125_000_000, 25_000
ALMOST = 0.8
"""A base model with a smaller vocabulary has at least this share of the paper's parameters."""
PAPERS_LENGTHS = "In the paper, with base models pretrained at 2,048 tokens and fine-tuned on this task at 8,192:"
FAILED, MISSING = "failed", "missing"
OVER_SEEDS = f"Scores are means over seeds, above their range; {NEAR} if all seeds are near chance."
METRICS = {
    "f1": "F1",
    "exact_match": "exact match",
    "rouge_gm": "ROUGE",
    "accuracy": "accuracy",
    "group_exact_match": "exact match",
}
KEPT = {
    "dev": "the checkpoint with the best answers on a held-out part of the train split",
    "validation": "the checkpoint with the best answers on the validation splits",
    "loss": "the checkpoint with the lowest loss on a held-out part of the train split",
    "last": "the last checkpoint",
}
Row = Mapping[str, Any]


def downstream_markdown(record: Record, paper: Paper, picture: str = "") -> str:
    """The verdict, the scores next to the paper's, what failed or is missing, and the method.

    Args:
        record: written by `longfire finetune` or `longfire evaluate`.
        paper: the paper's rows by table.
        picture: path of a picture of scores by length.
    """
    tasks, lengths = record["setting"]["tasks"], record["setting"]["lengths"]
    seeds, means = with_seeds(record), with_means(record)
    parts, notes = [verdict(record), f"![Scores by length]({picture})" if picture else ""], legend(record)
    for suite in dict.fromkeys(TASKS[task].suite for task in tasks):
        of_suite = [task for task in tasks if TASKS[task].suite == suite]
        if len(lengths) > 1 and tuple(of_suite) != SUITES[suite]:
            parts += [by_length(seeds, task, paper.get(task, ())) for task in of_suite]
        elif len(of_suite) == 1:
            parts.append(one_task(seeds, of_suite[0], lengths[0], paper.get(suite, ())))
        else:
            for length in lengths:
                parts.append(f"In {length:,} tokens:" if len(lengths) > 1 else "")
                parts += [averages(record, of_suite, length, paper.get(suite, ())), by_task(means, of_suite, length)]
            notes += [OVER_SEEDS] if len(means["rows"]) < len(record["rows"]) and OVER_SEEDS not in notes else []
    parts += [" ".join(notes), "\n".join(f"- {escape(note)}" for note in missing(seeds)), method(record)]
    return "\n\n".join(part for part in parts if part)


def verdict(record: Record) -> str:
    """How many scores are near chance, and the range of the others."""
    scores = _scores(record)
    near = sum(bool(one.get("near_chance")) for one in scores)
    if not scores:
        return ""
    if near == len(scores):
        return "Every score is near chance: encodings cannot be compared."
    tasks, lengths = record["setting"]["tasks"], record["setting"]["lengths"]
    shared = [task for task in tasks if all(task in scores_at(row, lengths[0]) for row in record["rows"])]
    means = {}
    for label, rows in by_label(record["rows"]).items():
        means[label] = mean_and_deviation(m for row in rows if (m := _average(row, shared, lengths[0])) is not None)[0]
    known = {label: mean for label, mean in means.items() if mean is not None}
    chance = f"{near} of {len(scores)} scores are near chance" if near else "All scores are above chance"
    if len(known) < 2:
        return f"{chance}."
    best, last = max(known, key=lambda label: known[label]), min(known, key=lambda label: known[label])
    what = "means" if len(tasks) > 1 else "scores"
    return f"{chance}; the {what} range from {known[last]:.2f} ({last}) to {known[best]:.2f} ({best})."


def method(record: Record) -> str:
    """Checkpoints, training and test data, without the data's path."""
    setting, rows = record["setting"], record["rows"]
    data = setting["data"] if is_placeholder(setting["data"]) else "the data"
    small = "**Small-scale run.** " if is_small(record) else ""
    parts = [f"{small}{describe_tasks({**record, 'setting': {**setting, 'data': data}})}"]
    stretched = {f"{row['label']} to {row['extended_to']:,}" for row in rows if row.get("extended_to")}
    parts += [f"Extended: {join_words(sorted(stretched))} tokens."] if stretched else []
    parts += _earlier_finetuning(rows, setting["tasks"])
    trained = sorted({part["train_rows"] for row in rows for part in row.get("parts", ()) if "train_rows" in part})
    tested = {one["task"]: one.get("groups") or one["examples"] for one in _scores(record)}
    counts = [
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys([trained[0], trained[-1]]))} training rows" if trained else "",
        f"{sum(tested.values()):,} test questions" if tested else "",
    ]
    return " ".join([*parts, f"{', '.join(filter(None, counts))}." if any(counts) else ""]).strip()


def is_small(record: Record) -> bool:
    """Whether models, training or questions are smaller than the paper's."""
    sizes = [row["parameters"] for row in record["rows"]]
    recipes = [record["setting"].get("recipe"), *(row.get("finetuned") for row in record["rows"])]
    steps = [recipe["steps"] for recipe in recipes if recipe]
    small = min(sizes, default=0) < ALMOST * PAPERS_SIZE or min(steps, default=PAPERS_STEPS) < PAPERS_STEPS
    return small or record["setting"]["limit"] is not None


def one_task(record: Record, task: str, length: int, paper: Sequence[Row]) -> str:
    """A row per checkpoint: score, interval, score of swapped answers, and the paper's figure if it has one."""
    size, found = papers_size(record), [outcome(record, row, task, length) for row in record["rows"]]
    theirs = [(papers_row(row, paper, size) or {}).get(task) for row in record["rows"]]
    known, swapped = any(figure is not None for figure in theirs), _first(found, "swapped") is not None
    rows = []
    for row, one, figure in zip(record["rows"], found, theirs, strict=True):
        beside = [fixed((one or {}).get("swapped"), 2)] * swapped + [fixed(figure, 2)] * known
        rows.append([escape(row["label"]), _score(one), _interval(one) or DASH, *beside])
    columns = ["95 %", *["answers swapped"] * swapped, *[f"paper, {size}"] * known]
    return Table(["", METRICS[TASKS[task].metric], *columns], rows, highlights=_best(found, down=True)).markdown()


def averages(record: Record, tasks: Sequence[str], length: int, paper: Sequence[Row]) -> str:
    """A row per encoding: the mean over tasks next to the paper's, and over the shared tasks if those are fewer."""
    whole, size = tuple(tasks) == SUITES[TASKS[tasks[0]].suite], papers_size(record)
    scores = [scores_at(row, length) for row in record["rows"]]
    shared = [task for task in tasks if scores and all(task in found for found in scores)]
    sets = [tasks] if len(shared) in (0, len(tasks)) else [tasks, shared]
    rows = []
    for label, seeds in by_label(record["rows"]).items():
        given = papers_row(seeds[0], paper, size) or {}
        cells = []
        for chosen in sets:
            stated = given.get("average") if whole and chosen is tasks else None
            ours = [mean for row in seeds if (mean := _average(row, chosen, length)) is not None]
            cells.append(over_seeds(ours, 2) if len(ours) == len(seeds) else MISSING)
            cells.append(fixed(stated or average(given, chosen), 2))
        rows.append([escape(label), *cells])
    theirs = f"paper, {size}"
    first = "average" if whole else f"mean of {len(tasks)}"
    columns = [first, theirs, f"mean of the {len(shared)} that all have", f"{theirs}, same tasks"]
    return Table(["", *columns[: 2 * len(sets)]], rows).markdown()


def by_task(record: Record, tasks: Sequence[str], length: int) -> str:
    """Tasks down, encodings across; each score above its interval or its range over seeds."""
    rows, bold = [], []
    for i, task in enumerate(tasks):
        found = [outcome(record, row, task, length) for row in record["rows"]]
        questions, metric = _first(found, "groups") or _first(found, "examples"), METRICS[TASKS[task].metric]
        about = _small(f"{metric} of {questions:,}" if questions else metric)
        rows.append([f"{TASKS[task].title}{about}", fixed(_first(found, "chance"), 2), *map(_cell, found)])
        bold += [(i, 2 + column) for _, column in _best(found)]
    labels = [escape(row["label"]) for row in record["rows"]]
    return Table(["", "constant answer", *labels], rows, highlights=bold).markdown()


def by_length(record: Record, task: str, paper: Sequence[Row]) -> str:
    """Checkpoints down, lengths across, each score above its interval; then the paper's at the same lengths."""
    lengths = record["setting"]["lengths"]
    found = [[outcome(record, row, task, length) for length in lengths] for row in record["rows"]]
    rows = [[escape(row["label"]), *map(_cell, own)] for row, own in zip(record["rows"], found, strict=True)]
    bold = [(row, 1 + j) for j in range(len(lengths)) for row, _ in _best([own[j] for own in found], down=True)]
    metric = f"{METRICS[TASKS[task].metric]} at"
    ours = Table([metric, *(length_header(record, length) for length in lengths)], rows, highlights=bold).markdown()
    encodings = dict.fromkeys(row["encoding"] for row in record["rows"])
    theirs = [
        [one["label"], *(fixed(one.get(str(length)), 2) for length in lengths)]
        for encoding in encodings
        for one in paper
        if one["encoding"] == encoding and any(str(length) in one for length in lengths)
    ]
    if not theirs:
        return ours
    return f"{ours}\n\n{PAPERS_LENGTHS}\n\n{Table([metric, *(f'{n:,}' for n in lengths)], theirs).markdown()}"


def legend(record: Record) -> list[str]:
    """What the marks mean, and whether the paper has figures."""
    sentences = []
    for name, meaning in chance_levels(record).items():
        levels = {one[name] for row in record["rows"] for one in row["scores"] if one.get(name) is not None}
        level = f" ({levels.pop():.2f})" if len(levels) == 1 else ""
        sentences.append(f"{NEAR}: not above {meaning}{level}.")
    if len(record["setting"]["tasks"]) > 1:
        sentences.append("Averages that the paper does not state are the means of its figures.")
    if not any(task in SUITES[TASKS[task].suite] for task in record["setting"]["tasks"]):
        sentences.append("The paper has no figures for this.")
    return sentences


def outcome(record: Record, row: Record, task: str, length: int) -> Record | None:
    """A score, or {"failed": reason}, or None if it was not run."""
    for one in row["scores"]:
        if (one["task"], one["length"]) == (task, length):
            return dict(one)
    trained = {mixture["name"] for mixture in record["setting"].get("mixtures", ()) if task in mixture["tasks"]}
    failed = [part for part in row.get("parts", ()) if part["mixture"] in trained and "failed" in part]
    return {"failed": failed[0]["failed"]} if failed else None


def escape(text: str) -> str:
    """Escape Markdown."""
    for letter in "\\`*_[]|":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("<", "&lt;")


def _best(found: Sequence[Record | None], down: bool = False) -> list[tuple[int, int]]:
    """(row, column) of the best score, unless it is near chance or tied."""
    scores = [one["score"] if one and "failed" not in one else None for one in found]
    known = [score for score in scores if score is not None]
    if not known or known.count(max(known)) > 1:
        return []
    index = scores.index(max(known))
    return [] if (found[index] or {}).get("near_chance") else [(index, 1) if down else (0, index)]


def _earlier_finetuning(rows: Sequence[Record], tasks: Sequence[str]) -> list[str]:
    """How the checkpoints were fine-tuned before this record, if all in the same way."""
    recipes = [row["finetuned"] for row in rows if row.get("finetuned")]
    sentences = []
    if recipes and all(recipe == recipes[0] for recipe in recipes):
        recipe, kept = recipes[0], KEPT.get(recipes[0].get("select") or "")
        sentences.append(
            f"Fine-tuning took {recipe['steps']:,} steps of {recipe['batch_size']} rows, recipe {recipe['name']}, seed "
            f"{recipe['seed']}{f'; each run kept {kept}' if kept else ''}."
        )
    on = {task for row in rows for task in row.get("finetuned_on") or ()}
    if on and not on & set(tasks):
        names = join_words([f"`{task}`" for task in tasks])
        sentences.append(f"None was fine-tuned on {names} itself, as the paper's were.")
    return sentences


def _scores(record: Record) -> list[Record]:
    return [one for row in record["rows"] for one in row["scores"] if "failed" not in one]


def _average(row: Record, tasks: Sequence[str], length: int) -> float | None:
    return average({task: one["score"] for task, one in scores_at(row, length).items()}, tasks)


def _first(found: Sequence[Record | None], key: str) -> Any:
    return next((one[key] for one in found if one is not None and one.get(key) is not None), None)


def _cell(found: Record | None) -> str:
    return _score(found) + _small(_interval(found))


def _small(text: str) -> str:
    return f"<br><small>{text}</small>" if text else ""


def _score(found: Record | None) -> str:
    if found is None:
        return MISSING
    return FAILED if "failed" in found else f"{found['score']:.2f}{f' {NEAR}' if found.get('near_chance') else ''}"


def _interval(found: Record | None) -> str:
    return "" if found is None or "failed" in found else interval(found)
