"""`longfire compare`, and what carries a comparison out."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import refuse_unwritable, write_json
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.training import (
    add_corpus_options,
    add_recipe_options,
    chosen_recipe,
    corpus_options,
    describe_recipe,
)
from longfire.validation import at_least

if TYPE_CHECKING:
    from longfire.lab.comparison import Comparison

ALL = "all"


def add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire compare` and its options."""
    one = commands.add_parser(
        "compare",
        help="train encodings short, test them long, and show which holds",
        description="Train each encoding with each seed, test all at growing lengths, and show them side by side: a "
        "table here, and a page to open. Without options it takes minutes on a laptop. What is done is not done again.",
    )
    one.add_argument(
        "--recipe", default="tiny", metavar="NAME", help="tiny, unless given; see longfire pretrain --help"
    )
    one.add_argument("--out", type=Path, default=Path("compare"), help="folder; compare, unless given")
    one.add_argument(
        "--encodings",
        nargs="+",
        metavar="NAME",
        help="fire alibi kerple_log rope nope, unless given; fire-s shares one for all layers; rope_pi and yarn extend "
        "rope's model; options after a colon: fire:horizon=64,init=kerple_log",
    )
    one.add_argument("--seeds", type=int, nargs="+", metavar="N", help="0 1 2, unless given")
    one.add_argument(
        "--lengths", type=int, nargs="+", metavar="N", help="1, 2, 4, 8, 16 times the training length, unless given"
    )
    one.add_argument(
        "--protocol",
        choices=["paper", "paired"],
        default="paper",
        help="paper: documents cut at each length; paired: the same tokens at all lengths",
    )
    one.add_argument(
        "--test-tokens",
        type=tokens_to_test_on,
        metavar="N",
        help="to test on at each length, or all; on a GPU all and on a CPU 32768, unless given",
    )
    one.add_argument("--dev", action="store_true", help="test on the dev split: for whatever is being tuned")
    one.add_argument(
        "--also",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=PATH",
        help="other texts to test on; documents that the corpus contains too are left out",
    )
    one.add_argument("--jobs", type=int, metavar="N", help="runs at a time: on a CPU one a core, on a GPU one")
    add_corpus_options(one)
    add_recipe_options(one)
    one.add_argument("--dry-run", action="store_true", help="print what would be trained and tested, and do nothing")
    one.set_defaults(resumes=True, run=run_compare)


def tokens_to_test_on(text: str) -> int | str:
    """A number, or all."""
    try:
        return text if text == ALL else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number of tokens, or {ALL}; not {text!r}") from None


def run_compare(options: argparse.Namespace) -> int:
    """`longfire compare`: 0, 1 if a run failed, 130 if it was interrupted."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.comparison import DEFAULT, Comparison
    from longfire.report.compare import compare_table, plot_compare
    from longfire.report.page import report_page

    disable_progress_bar()
    recipe = chosen_recipe(options, options.recipe)
    usual = None if torch.cuda.is_available() else 32768
    tokens = {None: usual, ALL: None}.get(options.test_tokens, options.test_tokens)
    comparison = Comparison(
        recipe,
        tuple(options.encodings or DEFAULT),
        tuple(options.seeds or (0, 1, 2)),
        tuple(options.lengths or ()),
        options.protocol,
        tokens,
        "dev" if options.dev else "validation",
        tuple(corpus_options(options, recipe.tokenizer, recipe.vocab_size).items()),
        tuple(named_texts(options.also)),
    )
    check_jobs(options)
    if options.dry_run:
        print(describe_recipe(recipe), *planned_runs(comparison), sep="\n")
        print(f"tested at {comparison.tested_lengths()}, to be written to {options.out}")
        return 0
    file, page = options.out / "compare.json", options.out / "report.html"

    def show(record: dict[str, Any]) -> None:
        print(compare_table(record, bold=sys.stdout.isatty()))
        plot_compare(record, options.out)
        report_page(record, page)
        print(f"\nThe page: {page}   The numbers: {file}")

    return carried_out(comparison, options.out, file, options.jobs, show)


def named_texts(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`latex=papers/` → ("latex", "papers/"), where there is such a path."""
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"--also takes NAME=PATH, such as latex=papers/, not {text!r}.")
        if not path.startswith("hub:") and not Path(path).exists():
            raise FileNotFoundError(f"there is no file or folder {path}, which --also {name} names.")
        yield name, path


def check_jobs(options: argparse.Namespace) -> None:
    """Refuse none at a time."""
    if options.jobs is not None:
        at_least("--jobs", options.jobs, 1)


def planned_runs(comparison: "Comparison") -> Iterator[str]:
    """Of a dry run: a line for each, with its encoding's options."""
    for label, seed, one in comparison.recipes():
        made = f", of {one.init_from}, extended to {one.extend_to:,}" if one.extend_to else ""
        where = comparison.folder(Path(), label, seed)
        yield f"{label}, seed {seed}: {one.position_encoding()}{made}, in {where}"


def carried_out(
    comparison: "Comparison",
    out: Path,
    file: Path,
    jobs: int | None,
    show: Callable[[dict[str, Any]], None] = lambda record: None,
) -> int:
    """Train and test in a folder, with the record in a file; show what there is at the end. The exit status."""
    from longfire.lab.compare import compare

    refuse_unwritable(out)
    record = compare(comparison, out, jobs=jobs, save=partial(write_json, file))
    if record["runs"]:
        show(record)
    if record.get("interrupted"):
        print(f"\nlongfire: stopped. Missing: {missing(record, comparison)}.", file=sys.stderr)
        return INTERRUPTED
    return int(any("failed" in run for run in record["runs"]))


def missing(record: dict[str, Any], comparison: "Comparison") -> str:
    """The runs that a record should have and has not: `rope (seeds 1, 2), nope (seed 2)`."""
    there = {(run["encoding"], run["seed"]) for run in record["runs"]}
    left = {
        label: seeds
        for label in comparison.encodings
        if (seeds := [str(seed) for seed in comparison.seeds if (label, seed) not in there])
    }
    return ", ".join(f"{label} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" for label, seeds in left.items())
