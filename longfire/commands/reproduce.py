"""`longfire reproduce`."""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.commands.compare import carried_out, check_jobs, named_texts, planned_runs
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.training import add_corpus_options, corpus_options, described
from longfire.errors import hint
from longfire.storage import write_json
from longfire.tasks import SUITES, TASKS

if TYPE_CHECKING:
    from longfire.lab.comparison import Comparison
    from longfire.lab.downstream.plan import Experiment
    from longfire.lab.entry import Entry, TaskEntry
    from longfire.lab.scales import Scale

THEOREM, SPEED = "theorem", "speed"
UNTRAINED = {
    THEOREM: ("Theorem 3.1", "ALiBi, Kerple, T5 and Sandwich as FIRE"),
    SPEED: ("Figure 5", "time of a forward pass with each encoding"),
}
"""What needs no training."""


def add_reproduce(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire reproduce` and its options."""
    one = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures",
        description="Make a table or figure of the paper anew: longfire reproduce --list names them. What is trained "
        "is kept, and shared between them; stopped and started again it goes on.",
    )
    one.add_argument("name", nargs="?", metavar="NAME", help="of a table or figure; see --list")
    one.add_argument("--list", action="store_true", help="name all of them")
    one.add_argument(
        "--scale",
        default="smoke",
        help="smoke: a laptop, two minutes (unless given); small: one GPU, a minute a run; paper: a cluster",
    )
    one.add_argument("--seeds", type=int, nargs="+", metavar="N", help="as the scale has them, unless given")
    one.add_argument("--encodings", nargs="+", metavar="NAME", help="those of the table, unless given")
    one.add_argument(
        "--also", nargs="+", action="extend", default=[], metavar="NAME=PATH", help="other texts to test on"
    )
    one.add_argument(
        "--data", metavar="FOLDER", help="of tasks' rows, where tasks are fine-tuned on; at smoke made-up ones"
    )
    one.add_argument("--jobs", type=int, metavar="N", help="runs at a time: on a CPU one a core, on a GPU one")
    one.add_argument("--out", type=Path, default=Path("reproduce"), help="folder; reproduce, unless given")
    add_corpus_options(one)
    one.add_argument("--dry-run", action="store_true", help="print what would be trained and tested, and do nothing")
    one.set_defaults(run=run_reproduce)


def run_reproduce(options: argparse.Namespace) -> int:
    """`longfire reproduce`: 0, 1 if a run failed, 130 if it was interrupted."""
    from longfire.lab.tables import ENTRIES

    if options.list:
        trained = {entry.name: (entry.shows, entry.what) for entry in ENTRIES.values()}
        for name, (shows, what) in {**UNTRAINED, **trained}.items():
            print(f"{name:20} {shows:19} {what}")
        return 0
    if options.name is None:
        raise ValueError("reproduce what? longfire reproduce --list names the paper's tables and figures.")
    if options.name == THEOREM:
        return reproduce_theorem(options)
    if options.name == SPEED:
        return reproduce_speed(options)
    from longfire.lab.entry import TaskEntry
    from longfire.lab.scales import scale_named

    if options.name not in ENTRIES:
        known = hint(options.name, [*UNTRAINED, *ENTRIES])
        raise ValueError(f"there is no table or figure named {options.name!r} here. {known}")
    entry, scale = ENTRIES[options.name], scale_named(options.scale)
    comparison, runs = planned(options, entry, scale)
    check_jobs(options)
    own = options.out / scale.name / entry.name
    if isinstance(entry, TaskEntry) and options.data is None and scale.data is not None:
        options.data, own = scale.data, own.with_name(f"{own.name}-{scale.data}")
    if options.dry_run:
        print(f"{entry.shows}: {entry.what}", described(comparison.recipe), *planned_runs(comparison), sep="\n")
        print(f"tested at {comparison.tested_lengths()}; runs in {runs}, results in {own}")
        return 0
    if isinstance(entry, TaskEntry):
        return reproduce_tasks(options, entry, scale, comparison, runs, own)
    return reproduce_lengths(options, entry, comparison, runs, own)


def planned(options: argparse.Namespace, entry: "Entry", scale: "Scale") -> "tuple[Comparison, Path]":
    """What is trained, and where. Runs of one recipe are shared by all entries."""
    given = {field: getattr(options, field) for field in ("tokenizer", "vocab_size")}
    recipe = scale.recipes[entry.recipe].but(**{field: value for field, value in given.items() if value is not None})
    if options.corpus is None and scale.corpus == "":
        raise ValueError(f"the scale {scale.name} has no text of its own. Give some: --corpus books/")
    if options.corpus is None and scale.corpus:
        options.corpus = [scale.corpus]
    changes: dict[str, Any] = {"seeds": tuple(options.seeds)} if options.seeds else {}
    if options.encodings:
        changes["encodings"] = tuple(options.encodings)
    corpus = tuple(corpus_options(options, recipe.tokenizer, recipe.vocab_size).items())
    comparison = entry.comparison(scale, corpus, tuple(named_texts(options.also)), **changes)
    return replace(comparison, recipe=recipe), options.out / scale.name / recipe.name


def reproduce_theorem(options: argparse.Namespace) -> int:
    """Theorem 3.1, which needs no training and so no scale."""
    from longfire.lab.theorem_check import check_theorem
    from longfire.report.reproduce import theorem_table

    if options.dry_run:
        print("ALiBi, Kerple, T5 and Sandwich as FIRE, in float64, for all positions below 2048")
        return 0
    record = check_theorem()
    write_json(options.out / "theorem.json", record)
    print(f"{theorem_table(record)}\n\nThe numbers: {options.out / 'theorem.json'}")
    return 0


def reproduce_speed(options: argparse.Namespace) -> int:
    """Forward passes of the base model at 2048 tokens; at the scale smoke, of a tiny one."""
    from longfire.evaluation.model_speed import ModelSetting, measure_model
    from longfire.lab.scales import scale_named
    from longfire.report.model_speed import model_table, plot_model

    of: dict[str, Any] = (
        {} if scale_named(options.scale).name == "smoke" else {"size": "base", "forward": (2048,), "tokens": 32768}
    )
    setting = ModelSetting.on(**of, training=(), decoding=(), seconds=0.3, encodings=options.encodings)
    if options.dry_run:
        print(*(f"{case}, batch {setting.batch(case)}" for case in setting.cases()), sep="\n")
        return 0
    own = options.out / options.scale / SPEED
    record = measure_model(setting, partial(write_json, own / "model.json"))
    plot_model(record, own / "model.png")
    print(f"{model_table(record)}\n\nThe numbers: {own / 'model.json'}   A picture: {own / 'model.png'}")
    return INTERRUPTED if record.get("interrupted") else int(any("failed" in row for row in record["rows"]))


def reproduce_lengths(
    options: argparse.Namespace, entry: "Entry", comparison: "Comparison", runs: Path, own: Path
) -> int:
    """Models trained short and tested long."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.labels import file_name
    from longfire.lab.reported import reported
    from longfire.report.biases import plot_biases
    from longfire.report.compare import plot_compare
    from longfire.report.reproduce import heading, reproduced_page, reproduced_table

    disable_progress_bar()
    paper = reported(entry.reported) if entry.reported else []

    def show(record: dict[str, Any]) -> None:
        print(f"{entry.shows}: {entry.what}\n")
        print(reproduced_table(record, paper, bold=sys.stdout.isatty()))
        plot_compare(record, own)
        for label, curves in record["biases"].items() if entry.draws_biases else ():
            print(f"\nLearned biases of {label}: {plot_biases(curves, own / f'biases-{file_name(label)}.png')}")
        page = reproduced_page(record, own / "report.html", heading(entry.shows, entry.what, record), paper)
        print(f"\nThe page: {page}   The numbers: {own / 'compare.json'}")

    return carried_out(comparison, runs, own / "compare.json", options.jobs, show)


def reproduce_tasks(
    options: argparse.Namespace, entry: "TaskEntry", scale: "Scale", comparison: "Comparison", runs: Path, own: Path
) -> int:
    """The same models, of the first seed, fine-tuned on tasks."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.commands.downstream import shown
    from longfire.lab.downstream.plan import RECORD, Experiment, plan
    from longfire.lab.downstream.questions import mixtures_of
    from longfire.lab.downstream.run import downstream
    from longfire.report.failures import failures

    if options.data is None:
        raise ValueError(f"{entry.name} needs the tasks' rows. Give their folder: --data tasks/ (see docs/tasks.md)")
    disable_progress_bar()
    comparison = replace(comparison, seeds=comparison.seeds[:1])
    suite = TASKS[entry.task].suite if entry.task in TASKS else entry.task
    recipe = scale.finetuning[suite]
    experiment = Experiment(
        entry.task,
        tuple(mixtures_of(entry.task)),
        recipe,
        options.data,
        lengths=entry.lengths(recipe.length),
        limit=scale.questions,
        dev_examples=scale.questions or 64,
        must=entry.task not in SUITES,
        brief=scale.brief,
    )
    refuse_in_vain(experiment, dict(comparison.corpus).get("tokenizer"))

    def show_failures(record: dict[str, Any]) -> None:
        for failed in failures(record):
            print(f"longfire: {failed}", file=sys.stderr)

    if status := carried_out(comparison, runs, own / "compare.json", options.jobs, show_failures):
        return status
    ready = plan(experiment, entry.checkpoints(comparison, runs, recipe.length))
    print(f"{entry.shows}: {entry.what}\n")
    return shown(downstream(ready, own, save=partial(write_json, own / RECORD)), own)


def refuse_in_vain(experiment: "Experiment", tokenizer: str | None) -> None:
    """Before models are trained: refuse rows that are not there, or, as far as tokens are known, have no room."""
    from longfire.data.tokenizers import byte_tokenizer
    from longfire.lab.downstream.plan import looked_over

    looked_over(experiment, [byte_tokenizer()] if tokenizer == "bytes" else [])
