"""Describe in sentences how a comparison was run."""

from collections.abc import Sequence
from typing import Any

from longfire.encodings.labels import RECOMMENDED
from longfire.report.summary import (
    Record,
    amounts,
    finished_seeds,
    join_words,
    label_of,
    lengths_of,
    lines_of,
    metric_of,
    texts_of,
    training_tokens,
)

Runs = Sequence[dict[str, Any]]

NO_RUNS = "No run has finished yet."
INTERRUPTED = "The experiment was interrupted; missing results have not been run."
PUBLISHED = "FIRE is as published, except for the options in its label."
FIRE_RECOMMENDED = "FIRE (recommended) starts as Kerple-log, with its horizon at the training length."
PROTOCOLS = {
    "paper": "documents are cut to each length, so longer lengths only score longer documents",
    "paired": "the same tokens are scored at every length, with more or less context",
}


def description(record: Record) -> list[str]:
    """Sentences on models, training and evaluation."""
    done = [run for run in record["runs"] if "failed" not in run]
    sentences = [
        _models(record, done),
        _training(record, done),
        *fire_options(record),
        *_extended(done),
        *(_task_evaluation(record) if metric_of(record).is_accuracy else _evaluation(record, done)),
        INTERRUPTED if record.get("interrupted") else "",
    ]
    return [sentence for sentence in sentences if sentence]


def _evaluation(record: Record, done: Runs) -> list[str]:
    lengths = ", ".join(f"{n:,}" for n in lengths_of(record))
    text = "the dev split, held out from training," if record["setting"].get("split") == "dev" else "held-out text"
    protocols = {run["perplexity"].get("protocol") for run in done if run.get("perplexity")}
    others = list(texts_of(record))[1:]
    return [
        f"Evaluation uses {text} in sequences of {lengths} tokens, one forward pass each"
        f"{''.join(f'; {PROTOCOLS[name]}' for name in sorted(filter(None, protocols)) if name in PROTOCOLS)}.",
        "Log perplexity is the mean loss per token in nats; lower is better.",
        f"Also evaluated on {join_words(others)}, which share no documents with the corpus." if others else "",
    ]


def _task_evaluation(record: Record) -> list[str]:
    lengths, setting = join_words([f"{n:,}" for n in lengths_of(record)]), record["setting"]
    paper, questions = (setting.get("corpus") or {}).get("paper"), setting.get("questions")
    dev = ", not those of reported results" if setting.get("split") == "dev" else ""
    return [
        f"The task: {paper}." if paper else "",
        f"Evaluation uses {f'{questions:,} ' if questions else ''}questions at each length ({lengths} "
        f"{metric_of(record).unit}), generated with a seed that training does not use{dev}.",
        "An answer is an exact match if every token is right; greedy decoding would give the same.",
    ]


def extensions(runs: Runs) -> dict[tuple[str, int, int], list[str]]:
    """(extended encoding, new length, steps) → labels of its extensions."""
    labels: dict[tuple[str, int, int], dict[str, None]] = {}
    for run in runs:
        if extended := run.get("extended"):
            labels.setdefault((extended["from"], extended["to"], extended["steps"]), {})[label_of(run)] = None
    return {extension: list(names) for extension, names in labels.items()}


def changes_to_fire(recipe: dict[str, Any]) -> str:
    """How a recipe's FIRE differs from the paper's; empty if not at all."""
    options = recipe.get("encoding_options") or {}
    horizon = training_tokens(recipe) if recipe.get("horizon") == "length" else recipe.get("horizon")
    parts = [
        f"starts as {recipe['init']}" if recipe.get("init") else "",
        f"has a horizon of {horizon:,} tokens" if horizon else "",
        "is shared by all layers" if recipe.get("share_position_encoding") else "",
        f"has {', '.join(f'{name}={value}' for name, value in options.items())}" if options else "",
    ]
    return join_words([part for part in parts if part])


def changes_in_rows(rows: Runs) -> str:
    """The same for checkpoints on tasks: `FIRE (starts as kerple_log)`."""
    changes: list[str] = []
    for row in rows:
        if change := changes_to_fire({"init": row.get("start"), "horizon": row.get("horizon")}):
            changes.append(f"{row['label']} ({change})")
    return join_words(list(dict.fromkeys(changes)))


def _models(record: Record, done: Runs) -> str:
    extended = [label for labels in extensions(done).values() for label in labels]
    labels = [line.label for line in lines_of(record) if line.label not in extended]
    size, seeds = amounts(run["parameters"] for run in done if run.get("parameters")), len(finished_seeds(record))
    rate = (record["setting"].get("recipe") or {}).get("learning_rate")
    return (
        f"Models{f' with {size} parameters' if size else ''} were trained from scratch with {join_words(labels)} "
        f"({f'{seeds} seeds' if seeds > 1 else 'one seed'}{f', learning rate {rate:g}' if rate else ''})."
    )


def _training(record: Record, done: Runs) -> str:
    setting, recipe = record["setting"], record["setting"].get("recipe") or {}
    corpus = (setting.get("corpus") or {}).get("name")
    seen, unique = (max((run.get(key) or 0 for run in done), default=0) for key in ("tokens_seen", "unique_tokens"))
    tokens = f" ({amounts([seen])} tokens{f', {amounts([unique])} of them unique' if 0 < unique < seen else ''})"
    factor = recipe.get("position_lr_factor") or 1
    used = f"sequences of {setting['trained_length']:,} tokens{f' from {corpus}' if corpus else ''}"
    if metric_of(record).is_accuracy:
        used = f"generated rows of up to {setting['trained_length']:,} {metric_of(record).unit}"
        if recipe.get("steps") and recipe.get("batch_size"):
            used = f"{recipe['steps'] * recipe['batch_size']:,} {used}, each seen once"
        seen = 0  # the count includes padding
    parts = [
        f"Training used {used}{tokens if seen else ''}",
        f"recipe {recipe['name']}" if recipe.get("name") else "",
        f"{recipe['steps']:,} steps" if recipe.get("steps") else "",
        f"random positions below {recipe['random_positions']:,}" if recipe.get("random_positions") else "",
        "attention within documents" if recipe.get("packing") else "",
        f"with {factor:g}× the learning rate for position parameters (which the paper does not mention)"
        if factor != 1 and (not done or any(run.get("position_parameters", 1) for run in done))
        else "",
    ]
    return f"{', '.join(part for part in parts if part)}."


def fire_options(record: Record) -> list[str]:
    """How the comparison's FIRE differs from the paper's. Labels tell its `init` and horizon."""
    recipe = record["setting"].get("recipe") or {}
    fires = [line.label for line in lines_of(record) if line.encoding.startswith("fire")]
    if not fires or not (changes_to_fire(recipe) or "init" in recipe):
        return []
    changed = changes_to_fire({**recipe, "init": None, "horizon": None})
    recommended = [RECOMMENDED in label for label in fires]
    return [
        *([f"FIRE {changed}."] if changed else []),
        *([PUBLISHED] if not changed and not all(recommended) else []),
        *([FIRE_RECOMMENDED] if any(recommended) else []),
    ]


def _extended(done: Runs) -> list[str]:
    return [
        f"{join_words(labels)} extend{'s' * (len(labels) == 1)} {source}'s model to {length:,} tokens, with "
        f"{steps:,} more training step{'s' * (steps > 1)} at that length."
        for (source, length, steps), labels in extensions(done).items()
    ]
