"""`longfire reproduce`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.compare import carried_out, check_jobs, named_texts, planned_runs
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.training import add_corpus_options, corpus_options, describe_recipe
from longfire.lab.entry import Entry, LengthEntry, SpeedEntry, TaskEntry, TheoremEntry
from longfire.tasks.placeholder import MADE_UP
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.lab.comparison import Comparison
    from longfire.lab.downstream.plan import Experiment
    from longfire.lab.downstream.questions import Questions
    from longfire.lab.scales import Scale


A_TRIAL = 512
"""Tokens in a batch whose time is taken at the scale smoke."""


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
    one.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="as the scale has them, unless given; for tasks its first"
    )
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
    one.set_defaults(resumes=True, run=run_reproduce)


def run_reproduce(options: argparse.Namespace) -> int:
    """`longfire reproduce`: 0, 1 if a run failed, 130 if it was interrupted."""
    from longfire.lab.tables import ENTRIES

    if options.list:
        for entry in ENTRIES.values():
            print(f"{entry.name:20} {entry.shows:19} {entry.what}")
        return 0
    from longfire.lab.scales import scale_named

    if options.name is None:
        raise ValueError("reproduce what? longfire reproduce --list names the paper's tables and figures.")
    if options.name not in ENTRIES:
        known = hint(options.name, ENTRIES)
        raise ValueError(f"there is no table or figure named {options.name!r} here. {known}")
    check_jobs(options)
    entry, scale = ENTRIES[options.name], scale_named(options.scale)
    refuse_unused(options, entry)
    return REPRODUCE[type(entry)](options, entry, scale)


def refuse_unused(options: argparse.Namespace, entry: Entry) -> None:
    """Refuse what would say nothing to this entry, and so not do what was meant."""
    unused = [*UNUSED[type(entry)], *(["also"] if isinstance(entry, LengthEntry) and not entry.texts else [])]
    if given := [FLAGS.get(name, name) for name in unused if getattr(options, name)]:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{entry.name} has no use for {flags}. Leave {'it' if len(given) == 1 else 'them'} out.")


def planned(options: argparse.Namespace, entry: LengthEntry, scale: "Scale") -> "tuple[Comparison, Path]":
    """What is trained, and where. Runs of one recipe are shared by all entries."""
    given = {field: getattr(options, field) for field in ("tokenizer", "vocab_size")}
    recipe = scale.recipes[entry.recipe].but(**{field: value for field, value in given.items() if value is not None})
    if options.corpus is None and scale.corpus == "":
        raise ValueError(f"the scale {scale.name} has no text of its own. Give some: --corpus books/")
    if options.corpus is None and scale.corpus:
        options.corpus = [scale.corpus]
        options.validation = options.validation or (scale.validation and [scale.validation])
    changes: dict[str, Any] = {"seeds": tuple(options.seeds)} if options.seeds else {}
    if options.encodings:
        changes["encodings"] = tuple(options.encodings)
    corpus = tuple(corpus_options(options, recipe.tokenizer, recipe.vocab_size).items())
    comparison = entry.comparison(scale, corpus, tuple(named_texts(options.also)), **changes)
    return replace(comparison, recipe=recipe), options.out / scale.name / recipe.name


def reproduce_theorem(options: argparse.Namespace, entry: TheoremEntry, scale: "Scale") -> int:
    """At every scale the same."""
    from longfire.lab.theorem_check import check_theorem
    from longfire.report.reproduce import theorem_table

    if options.dry_run:
        print(f"{headed(entry)}, in float64, for all positions below {entry.max_length:,}")
        return 0
    record = check_theorem(entry.max_length)
    write_json(options.out / "theorem.json", record)
    print(f"{theorem_table(record)}\n\nThe numbers: {options.out / 'theorem.json'}")
    return 0


def reproduce_speed(options: argparse.Namespace, entry: SpeedEntry, scale: "Scale") -> int:
    """Of the paper's model; at the scale smoke, of what `longfire bench model` takes for the device, of few tokens."""
    from longfire.bench.model_speed import ModelSetting, measure_model
    from longfire.report.model_speed import model_table, plot_model

    papers = {"size": entry.size, "forward": (entry.length,), "tokens": entry.tokens}
    of: dict[str, Any] = {"tokens": A_TRIAL} if scale.name == "smoke" else papers
    setting = ModelSetting.on(**of, training=(), decoding=(), seconds=0.3, encodings=options.encodings)
    if options.dry_run:
        print(headed(entry), *(f"{case}, batch {setting.batch(case)}" for case in setting.cases()), sep="\n")
        return 0
    own = options.out / scale.name / entry.name
    record = measure_model(setting, partial(write_json, own / "model.json"))
    plot_model(record, own / "model.png")
    print(f"{model_table(record)}\n\nThe numbers: {own / 'model.json'}   A picture: {own / 'model.png'}")
    return INTERRUPTED if record.get("interrupted") else int(any("failed" in row for row in record["rows"]))


def headed(entry: Entry) -> str:
    """What it is in the paper, and what that is."""
    return f"{entry.shows}: {entry.what}"


def planned_training(entry: LengthEntry, comparison: "Comparison", runs: Path, own: Path) -> str:
    """For a dry run: the recipe, the runs, and where they go."""
    given = dict(comparison.corpus)
    text = [" ".join(given[name] or ()) for name in ("source", "validation")]
    trained = f"trained on {text[0] or 'the embedded text'}; tested on {text[1] or 'a part of it'}"
    others = "".join(f", {name} ({source})" for name, source in comparison.also)
    where = f"{trained}{others} at {comparison.tested_lengths()}; runs in {runs}, results in {own}"
    return "\n".join([headed(entry), describe_recipe(comparison.recipe), *planned_runs(comparison), where])


def reproduce_lengths(options: argparse.Namespace, entry: LengthEntry, scale: "Scale") -> int:
    """Models trained short and tested long."""
    from transformers.utils.logging import disable_progress_bar

    comparison, runs = planned(options, entry, scale)
    own = options.out / scale.name / entry.name
    if options.dry_run:
        print(planned_training(entry, comparison, runs, own))
        return 0
    disable_progress_bar()
    return carried_out(comparison, runs, own / "compare.json", options.jobs, partial(show_lengths, entry, own))


def show_lengths(entry: LengthEntry, own: Path, record: dict[str, Any]) -> None:
    """Print the table beside the paper's; draw the pictures and make the page."""
    from longfire.encodings.labels import label_file_name
    from longfire.lab.reported import reported
    from longfire.report.biases import plot_biases
    from longfire.report.compare import plot_compare
    from longfire.report.reproduce import heading, reproduced_page, reproduced_table

    paper = reported(entry.reported) if entry.reported else []
    print(f"{heading(entry.shows, entry.what, record)}\n")
    print(reproduced_table(record, paper, bold=sys.stdout.isatty()))
    plot_compare(record, own)
    for label, curves in record["biases"].items() if entry.draws_biases else ():
        print(f"\nLearned biases of {label}: {plot_biases(curves, own / f'biases-{label_file_name(label)}.png')}")
    page = reproduced_page(record, own / "report.html", heading(entry.shows, entry.what, record), paper)
    if entry.texts and not record["setting"]["also"]:
        print("\nThe paper has other texts beside this one. To test on some: --also latex=papers/ code=src/")
    print(f"\nThe page: {page}   The numbers: {own / 'compare.json'}")


def reproduce_tasks(options: argparse.Namespace, entry: TaskEntry, scale: "Scale") -> int:
    """The same models fine-tuned on tasks: those of the first seed, unless seeds are given."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.commands.downstream import shown
    from longfire.lab.downstream.plan import RECORD, plan
    from longfire.lab.downstream.run import downstream
    from longfire.training import RECIPES

    comparison, runs = planned(options, entry, scale)
    if not options.seeds:
        comparison = replace(comparison, seeds=comparison.seeds[:1])
    own = options.out / scale.name / entry.name
    if options.data is None and scale.data == MADE_UP:
        own = own.with_name(f"{own.name}-{MADE_UP}")
    options.data = options.data or scale.data
    experiment = entry.experiment(scale, options.data)
    checkpoints = entry.checkpoints(comparison, runs, experiment.recipe.length)
    tokenizer = dict(comparison.corpus).get("tokenizer")
    if options.dry_run:
        print(planned_training(entry, comparison, runs, own), "", "then fine-tuned:", sep="\n")
        print(planned_tasks(experiment, checkpoints, tokenizer))
        return 0
    if options.data is None:
        raise ValueError(f"{entry.name} needs the tasks' rows. Give their folder: --data tasks/ (see docs/tasks.md)")
    disable_progress_bar()
    before_training(experiment, tokenizer)
    if status := carried_out(comparison, runs, own / "compare.json", options.jobs, show_failures):
        return status
    ready = plan(experiment, checkpoints)
    print(f"{headed(entry)}\n")
    record = downstream(ready, own, save=partial(write_json, own / RECORD))
    return shown(record, own, size=RECIPES[entry.recipe].size)


def planned_tasks(experiment: "Experiment", checkpoints: Sequence[str], tokenizer: str | None) -> str:
    """For a dry run: how checkpoints are fine-tuned and on what; with the tasks' rows, on how many."""
    from longfire.commands.downstream import described_tuning
    from longfire.tasks.sources import HUB

    if experiment.data in (None, HUB):
        return f"{described_tuning(experiment, checkpoints)}\nHow many questions there are: --data tasks/ tells."
    return described_tuning(experiment, checkpoints, *before_training(experiment, tokenizer))


def before_training(experiment: "Experiment", tokenizer: str | None) -> "tuple[dict[str, Questions], dict[str, str]]":
    """The questions, and why others are missing, before models are trained.

    Refuses rows that are not there, or, as far as tokens are known, have no room.
    """
    from longfire.data.tokenizers import byte_tokenizer
    from longfire.lab.downstream.plan import looked_over

    return looked_over(experiment, [byte_tokenizer()] if tokenizer == "bytes" else [])


def show_failures(record: dict[str, Any]) -> None:
    """Of pretraining."""
    from longfire.report.failures import failures

    for failed in failures(record):
        print(f"longfire: {failed}", file=sys.stderr)


OF_TEXT = ("corpus", "field", "validation", "tokenizer", "vocab_size", "max_documents", "skip_bad")
UNUSED: dict[type[Entry], tuple[str, ...]] = {
    TheoremEntry: ("seeds", "encodings", "also", "data", "jobs", *OF_TEXT),
    SpeedEntry: ("seeds", "also", "data", "jobs", *OF_TEXT),
    LengthEntry: ("data",),
    TaskEntry: (),
}
"""Options that some have no use for."""
FLAGS = {"vocab_size": "vocab"}
REPRODUCE: dict[type[Entry], Callable[[argparse.Namespace, Any, "Scale"], int]] = {
    TheoremEntry: reproduce_theorem,
    SpeedEntry: reproduce_speed,
    LengthEntry: reproduce_lengths,
    TaskEntry: reproduce_tasks,
}
"""By what an entry is."""
