"""`longfire reproduce`: the paper's theorem, tables and figures."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.compare import (
    add_comparison_options,
    check_jobs,
    describe_comparison,
    parse_texts,
    run_comparison,
)
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import INTEGERS, NAMES, Commands
from longfire.commands.training import TEXT_OPTIONS, add_corpus_options, corpus_options, option_flag
from longfire.lab.tables import ENTRIES, Entry, LengthEntry, SpeedEntry, TaskEntry, TheoremEntry
from longfire.tasks.placeholder import PLACEHOLDER
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.lab.comparison import Comparison
    from longfire.lab.scales import Scale

SMOKE_TOKENS = 512
"""Tokens per batch of the speed benchmark at the smoke scale."""


def add_reproduce(commands: Commands) -> None:
    """Add `longfire reproduce`."""
    parser = commands.add_parser(
        "reproduce",
        help="reproduce the paper's tables and figures",
        description="Reproduce a table or figure of the paper (longfire reproduce --list lists them). Entries share "
        "their trained models. Interrupted runs resume; completed runs are skipped.",
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="table or figure; see --list")
    add("--list", action="store_true", help="list all tables and figures")
    add(
        "--scale",
        default="smoke",
        help="smoke: two minutes on a laptop; small: one GPU, a minute per run; paper: needs a cluster",
    )
    add("--seeds", **INTEGERS, help="random seeds (default: the scale's; for tasks, its first)")
    add("--encodings", **NAMES, help="encodings to train (default: the entry's)")
    add(
        "--data",
        metavar="FOLDER",
        help="task data, as for longfire finetune (default: placeholder rows at smoke scale)",
    )
    add("--out", type=Path, default=Path("reproduce"), metavar="FOLDER", help="output folder")
    add_comparison_options(parser)
    add_corpus_options(parser)
    parser.set_defaults(run=run_reproduce)


def run_reproduce(options: argparse.Namespace) -> int:
    """Run `longfire reproduce`. Exit status: 1 if a run failed, 130 if interrupted."""
    if options.list:
        for entry in ENTRIES.values():
            print(f"{entry.name:20} {entry.shows:19} {entry.what}")
        return 0
    from longfire.lab.scales import scale_named

    if options.name is None:
        raise ValueError("name a table or figure to reproduce; longfire reproduce --list lists them.")
    if options.name not in ENTRIES:
        raise ValueError(f"there is no table or figure named {options.name!r}. {hint(options.name, ENTRIES)}")
    check_jobs(options)
    entry, scale = ENTRIES[options.name], scale_named(options.scale)
    reproduce, unused = RUNNERS[type(entry)]
    if isinstance(entry, LengthEntry) and not entry.texts:
        unused = (*unused, "also")
    if ignored := [name for name in unused if getattr(options, name)]:
        flags = " and ".join(map(option_flag, ignored))
        raise ValueError(f"{entry.name} does not use {flags}. Leave {'it' if len(ignored) == 1 else 'them'} out.")
    return reproduce(options, entry, scale)


def reproduce_theorem(options: argparse.Namespace, entry: TheoremEntry, scale: "Scale") -> int:
    """Check Theorem 3.1; the same at every scale."""
    from longfire.lab.theorem_check import check_theorem
    from longfire.report.reproduce import theorem_table

    if options.dry_run:
        print(f"{_title(entry)}, in float64, for all positions below {entry.max_length:,}")
        return 0
    record = check_theorem(entry.max_length)
    file = options.out / "theorem.json"
    write_json(file, record)
    print(f"{theorem_table(record)}\n\nNumbers: {file}")
    return 0


def reproduce_speed(options: argparse.Namespace, entry: SpeedEntry, scale: "Scale") -> int:
    """Measure the paper's model; at the smoke scale, the default of `longfire bench model` with few tokens."""
    from longfire.bench.model_speed import ModelBenchmark
    from longfire.report.speed import speed_table
    from longfire.report.speed_plot import plot_model

    case: dict[str, Any] = {"size": entry.size, "forward": (entry.length,), "tokens": entry.tokens}
    if scale.name == "smoke":
        case = {"tokens": SMOKE_TOKENS}
    setting = ModelBenchmark.on(**case, training=(), decoding=(), seconds=0.3, encodings=options.encodings)
    if options.dry_run:
        print(_title(entry), *(f"{case}, batch {setting.batch(case)}" for case in setting.cases()), sep="\n")
        return 0
    file = options.out / scale.name / entry.name / "model.json"
    record = setting.run(partial(write_json, file))
    if not record["rows"]:
        return INTERRUPTED
    plot_model(record, file.with_suffix(".png"))
    print(f"{speed_table(record)}\n\nNumbers: {file}   Plot: {file.with_suffix('.png')}")
    return INTERRUPTED if record.get("interrupted") else int(any("failed" in row for row in record["rows"]))


def reproduce_lengths(options: argparse.Namespace, entry: LengthEntry, scale: "Scale") -> int:
    """Train short, test long."""
    comparison, runs = entry_comparison(options, entry, scale, options.seeds)
    results = options.out / scale.name / entry.name
    if options.dry_run:
        print(_title(entry), describe_comparison(comparison, runs), f"results: {results}", sep="\n")
        return 0
    show = partial(show_lengths, entry, results)
    return run_comparison(comparison, runs, results / "compare.json", options.jobs, show)


def reproduce_tasks(options: argparse.Namespace, entry: TaskEntry, scale: "Scale") -> int:
    """Fine-tune the same models on tasks, with one seed by default."""
    from longfire.commands.downstream import describe_experiment, run_plans
    from longfire.data.tokenizers import byte_tokenizer
    from longfire.lab.downstream.plan import plan
    from longfire.lab.downstream.questions import load_questions
    from longfire.tasks.load import HUB
    from longfire.training import RECIPES

    comparison, runs = entry_comparison(options, entry, scale, options.seeds or scale.seeds[:1])
    data = options.data or scale.data
    if data is None and not options.dry_run:
        raise ValueError(f"{entry.name} needs the rows of its tasks: --data FOLDER (see docs/tasks.md).")
    placeholder = f"-{PLACEHOLDER}" if data == PLACEHOLDER and options.data is None else ""
    results = options.out / scale.name / f"{entry.name}{placeholder}"
    experiment = entry.experiment(scale, data)
    checkpoints = entry.checkpoints(comparison, runs, experiment.trained_length)
    questions: tuple[Any, ...] = ()
    if not (options.dry_run and data in (None, HUB)):  # refuse missing and oversized rows before hours of training
        tokenizers = [byte_tokenizer()] if comparison.corpus.get("tokenizer") == "bytes" else []
        questions = load_questions(experiment, tokenizers, experiment.test_lengths())
    if options.dry_run:
        print(_title(entry), describe_comparison(comparison, runs), f"results: {results}", "", "fine-tune:", sep="\n")
        print(describe_experiment(experiment, checkpoints, *questions))
        if not questions:
            print("To count the questions, pass --data FOLDER.")
        return 0
    if status := run_comparison(comparison, runs, results / "compare.json", options.jobs, show_failures):
        return status
    print(f"{_title(entry)}\n")
    return run_plans([plan(experiment, checkpoints, results)], size=RECIPES[entry.recipe].size)


RUNNERS: dict[type[Entry], tuple[Callable[..., int], tuple[str, ...]]] = {
    TheoremEntry: (reproduce_theorem, ("seeds", "encodings", "also", "data", "jobs", *TEXT_OPTIONS)),
    SpeedEntry: (reproduce_speed, ("seeds", "also", "data", "jobs", *TEXT_OPTIONS)),
    LengthEntry: (reproduce_lengths, ("data",)),
    TaskEntry: (reproduce_tasks, ()),
}
"""How to reproduce each kind of entry, and the options that it refuses, because it would ignore them."""


def entry_comparison(
    options: argparse.Namespace, entry: LengthEntry, scale: "Scale", seeds: Any
) -> "tuple[Comparison, Path]":
    """An entry's comparison and the folder of its runs, which entries with the same recipe share."""
    overrides = {name: getattr(options, name) for name in ("tokenizer", "vocab_size")}
    recipe = scale.recipes[entry.recipe].but(**{name: value for name, value in overrides.items() if value is not None})
    text = argparse.Namespace(**vars(options))
    if options.corpus is None and scale.corpus == "":
        raise ValueError(f"the scale {scale.name} has no default corpus. Pass one: --corpus books/")
    if options.corpus is None and scale.corpus:
        text.corpus = [scale.corpus]
        text.validation = options.validation or (scale.validation and [scale.validation])
    changes: dict[str, Any] = {"recipe": recipe}
    if seeds:
        changes["seeds"] = tuple(seeds)
    if options.encodings:
        changes["encodings"] = tuple(options.encodings)
    corpus = corpus_options(text, recipe.tokenizer, recipe.vocab_size)
    comparison = entry.comparison(scale, corpus, parse_texts(options.also), **changes)
    return comparison, options.out / scale.name / recipe.name


def show_lengths(entry: LengthEntry, results: Path, record: dict[str, Any]) -> None:
    """Print our table and the paper's, draw the plots and write the report."""
    from longfire.encodings.labels import label_file_name
    from longfire.lab.reported import reported
    from longfire.report.compare import compare_table
    from longfire.report.compare_plot import plot_biases, plot_compare
    from longfire.report.page import report_page
    from longfire.report.reproduce import heading, papers_numbers

    theirs = papers_numbers(reported(entry.reported) if entry.reported else [])
    title = heading(entry.shows, entry.what, record)
    plot_compare(record, results)
    biases = {
        label: plot_biases(curves, results / f"biases-{label_file_name(label)}.png")
        for label, curves in (record["biases"].items() if entry.draws_biases else ())
    }
    page = report_page(record, results / "report.html", title, theirs)
    print(f"{title}\n\n{compare_table(record, bold=sys.stdout.isatty())}\n\n{theirs}")
    for label, plot in biases.items():
        print(f"\nLearned biases of {label}: {plot}")
    if entry.texts and not record["setting"]["also"]:
        print("\nThe paper also tests on other texts. To do the same, pass --also latex=papers/ code=src/")
    print(f"\nReport: {page}   Numbers: {results / 'compare.json'}")


def show_failures(record: dict[str, Any]) -> None:
    """Print which pretraining runs failed."""
    from longfire.report.failures import failures

    for failure in failures(record):
        print(f"longfire: {failure}", file=sys.stderr)


def _title(entry: Entry) -> str:
    return f"{entry.shows}: {entry.what}"
