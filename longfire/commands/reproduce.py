"""`longfire reproduce`."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from longfire.commands.training import add_corpus_options, corpus_options, named_texts
from longfire.storage import write_json

THEOREM = "theorem"


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
    one.add_argument("--also", nargs="+", default=[], metavar="NAME=PATH", help="other texts to test on")
    one.add_argument("--jobs", type=int, metavar="N", help="runs at a time: on a CPU one a core, on a GPU one")
    one.add_argument("--out", type=Path, default=Path("reproduce"), help="folder; reproduce, unless given")
    add_corpus_options(one)
    one.add_argument("--dry-run", action="store_true", help="print what would be trained and tested, and do nothing")
    one.set_defaults(run=run_reproduce)


def run_reproduce(options: argparse.Namespace) -> int:
    """`longfire reproduce`: 0, 1 if a run failed, 130 if it was interrupted."""
    from longfire.lab.tables import ENTRIES

    if options.list:
        print(f"{THEOREM:20} {'Theorem 3.1':16} ALiBi, Kerple, T5 and Sandwich as FIRE")
        for entry in ENTRIES.values():
            print(f"{entry.name:20} {entry.shows:16} {entry.what}")
        return 0
    if options.name is None:
        raise ValueError("reproduce what? longfire reproduce --list names the paper's tables and figures.")
    if options.name == THEOREM:
        return reproduce_theorem(options)
    from longfire.lab.scales import scale_named

    return reproduce_lengths(options, scale_named(options.scale))


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


def reproduce_lengths(options: argparse.Namespace, scale: Any) -> int:
    """Models trained short and tested long."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.compare import compare
    from longfire.lab.reported import reported
    from longfire.lab.tables import entry_named
    from longfire.report.biases import plot_biases
    from longfire.report.compare import plot_compare
    from longfire.report.page import report_page
    from longfire.report.reproduce import reproduced_table

    disable_progress_bar()
    entry = entry_named(options.name)
    recipe = scale.recipes[entry.recipe]
    if options.corpus is None and scale.corpus == "":
        raise ValueError(f"the scale {scale.name} has no text of its own. Give some: --corpus books/")
    if options.corpus is None and scale.corpus:
        options.corpus = [scale.corpus]
    changes: dict[str, Any] = {"seeds": tuple(options.seeds)} if options.seeds else {}
    if options.encodings:
        changes["encodings"] = tuple(options.encodings)
    corpus = tuple(corpus_options(options, recipe.tokenizer, recipe.vocab_size).items())
    comparison = entry.comparison(scale, corpus, tuple(named_texts(options.also)), **changes)
    runs, own = options.out / scale.name / recipe.name, options.out / scale.name / entry.name
    if options.dry_run:
        print(f"{entry.shows}: {entry.what}\n{recipe}")
        print(
            *(f"{label}, seed {seed}: {one.position_encoding()}" for label, seed, one in comparison.recipes()), sep="\n"
        )
        print(f"tested at {comparison.tested_lengths()}; runs in {runs}, results in {own}")
        return 0
    record = compare(comparison, runs, jobs=options.jobs, save=partial(write_json, own / "compare.json"))
    print(f"{entry.shows}: {entry.what}\n")
    print(reproduced_table(record, reported(entry.reported) if entry.reported else [], bold=sys.stdout.isatty()))
    plot_compare(record, own)
    for label, curves in record["biases"].items() if entry.draws_biases else ():
        print(f"\nLearned biases of {label}: {plot_biases(curves, own / f'biases-{label}.png')}")
    print(f"\nThe page: {report_page(record, own / 'report.html')}   The numbers: {own / 'compare.json'}")
    if record.get("interrupted"):
        return 130
    return int(any("failed" in run for run in record["runs"]))
