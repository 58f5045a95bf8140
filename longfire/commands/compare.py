"""`longfire compare`, and the parts it shares with `longfire reproduce`."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import INTEGER, INTEGERS, LIST, NAMES, Commands, Settings
from longfire.commands.training import (
    add_corpus_options,
    add_recipe_options,
    chosen_recipe,
    corpus_options,
    describe_recipe,
    refuse_text_options,
    settings,
)
from longfire.lab import DEFAULT_ENCODINGS, DEFAULT_SEEDS
from longfire.validation import at_least

if TYPE_CHECKING:
    from longfire.lab.comparison import Comparison
    from longfire.training import Recipe

ALL = "all"
CPU_TEST_TOKENS = 32768
TEXT_RECIPE, TASK_RECIPE = "tiny", "task-tiny"


def add_compare(commands: Commands) -> None:
    """Add `longfire compare`."""
    parser = commands.add_parser(
        "compare",
        help="train encodings short, test them long, and compare them",
        description="Train every encoding with every seed and test the models at increasing lengths. Prints a table, "
        "and writes plots and an HTML report to the output folder. Takes minutes on a laptop with the defaults. "
        "Interrupted comparisons resume; completed runs are skipped.",
    )
    add = parser.add_argument
    add(
        "--recipe",
        metavar="NAME",
        help=f"training recipe; see longfire pretrain --help (default: {TEXT_RECIPE}, or {TASK_RECIPE} with --task)",
    )
    add("--out", type=Path, default=Path("compare"), metavar="FOLDER", help="output folder")
    add(
        "--encodings",
        **NAMES,
        default=list(DEFAULT_ENCODINGS),
        help="encodings to compare, with options after a colon (fire:horizon=64,init=kerple_log); fire-s shares one "
        "encoding across all layers; rope_pi and yarn extend the rope model",
    )
    add("--seeds", **INTEGERS, default=list(DEFAULT_SEEDS), help="random seeds")
    add(
        "--lengths",
        **INTEGERS,
        default=[],
        help="test lengths (default: 1, 2, 4, 8 and 16 times the training length; 1 to 4 times with --task)",
    )
    add(
        "--protocol",
        choices=["paper", "paired"],
        help="paper: cut documents to each length; paired: score the same tokens at all lengths (default: paper)",
    )
    add("--test-tokens", **TEST_TOKENS)
    add("--questions", **INTEGER, help="questions at each length with --task (default: 512)")
    add("--dev", action="store_true", help="test on the dev split, for tuning")
    add_comparison_options(parser)
    add_corpus_options(parser)
    add_recipe_options(parser)
    parser.set_defaults(run=run_compare)


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `compare` and `reproduce` share."""
    parser.add_argument(
        "--also",
        **LIST,
        metavar="NAME=PATH",
        help="other texts to test on; documents that are also in the corpus are skipped",
    )
    parser.add_argument("--jobs", **INTEGER, help="runs at a time (default: one per core; one on a GPU)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be trained and tested, then exit")
    parser.set_defaults(resumes=True)


def parse_test_tokens(text: str) -> int | str:
    """A number, or `all`."""
    try:
        return text if text == ALL else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of tokens or {ALL}, not {text!r}") from None


TEST_TOKENS: Settings = {
    "type": parse_test_tokens,
    "metavar": "N",
    "help": f"tokens to score at each length, or {ALL} (default: {ALL} on a GPU, {CPU_TEST_TOKENS} on a CPU)",
}


def chosen_test_tokens(options: argparse.Namespace) -> int | None:
    """The maximum number of tokens to score at each length; None for all."""
    import torch

    limits = {None: None if torch.cuda.is_available() else CPU_TEST_TOKENS, ALL: None}
    tokens: int | None = limits.get(options.test_tokens, options.test_tokens)
    return tokens


def parse_texts(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse --also: `latex=papers/` → ("latex", "papers/")."""
    for text in texts:
        if not re.match(r"[\w.-]+=", text):
            raise ValueError(f"--also takes NAME=PATH, such as latex=papers/, not {text!r}.")
    return tuple((name, source) for name, _, source in (text.partition("=") for text in texts))


def run_compare(options: argparse.Namespace) -> int:
    """Run `longfire compare`. Exit status: 1 if a run failed, 130 if interrupted."""
    from longfire.lab.comparison import Comparison
    from longfire.report.compare import compare_table
    from longfire.report.compare_plot import plot_compare
    from longfire.report.page import report_page

    given = settings(options.set)
    for field, flag in (("encoding", "--encodings"), ("seed", "--seeds")):
        if field in given:
            raise ValueError(f"--set {field}={given[field]}: a comparison has {field}s of its own. Use {flag}.")
    recipe = chosen_recipe(options, options.recipe or (TEXT_RECIPE if options.task is None else TASK_RECIPE))
    comparison = Comparison(
        recipe,
        encodings=tuple(options.encodings),
        seeds=tuple(options.seeds),
        lengths=tuple(options.lengths),
        split="dev" if options.dev else "validation",
        **(_text_options(options, recipe) if recipe.task is None else _task_options(options, recipe.task)),
    )
    file, page = options.out / "compare.json", options.out / "report.html"

    def show(record: dict[str, Any]) -> None:
        plot_compare(record, options.out)
        report_page(record, page)
        print(compare_table(record, bold=sys.stdout.isatty()))
        print(f"\nReport: {page}   Numbers: {file}")

    check_jobs(options)
    if options.dry_run:
        print(describe_comparison(comparison, options.out))
        return 0
    return run_comparison(comparison, options.out, file, options.jobs, show)


def _text_options(options: argparse.Namespace, recipe: "Recipe") -> dict[str, Any]:
    """Arguments of a comparison on text."""
    if options.questions is not None:
        raise ValueError("--questions needs --task: on text, --test-tokens says how much is scored.")
    return {
        "protocol": options.protocol or "paper",
        "tokens": chosen_test_tokens(options),
        "corpus": corpus_options(options, recipe.tokenizer, recipe.vocab_size),
        "also": parse_texts(options.also),
    }


def _task_options(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """Arguments of a comparison on a synthetic task. Refuses options that only text has."""
    refuse_text_options(options, task, "also", "protocol", "test_tokens")
    return {} if options.questions is None else {"questions": options.questions}


def check_jobs(options: argparse.Namespace) -> None:
    """Refuse a `--jobs` below 1, in a dry run too."""
    if options.jobs is not None:
        at_least("--jobs", options.jobs, 1)


def describe_comparison(comparison: "Comparison", out: Path) -> str:
    """The recipe, every run and the tests, for a dry run."""
    runs = [
        f"{run.label}, seed {run.seed}: {run.recipe.position_encoding()}"
        + (f", extends {run.recipe.init_from} to {run.recipe.extend_to:,}" if run.is_extension else "")
        + f", in {run.folder}"
        for run in comparison.runs(out)
    ]
    if (task := comparison.task) is not None:
        data = [f"task: {task.title} ({task.paper}), up to {comparison.recipe.length:,} {task.unit}"]
    else:
        train, test = (" ".join(comparison.corpus.get(name) or ()) for name in ("source", "validation"))
        texts = [test or "a held-out part", *(f"{name} ({source})" for name, source in comparison.also)]
        data = [f"train on: {train or 'the Python standard library'}", f"test on: {', '.join(texts)}"]
    data.append(f"test lengths: {', '.join(map(str, comparison.tested_lengths()))}")
    if task is not None:
        data.append(f"questions at each length: {comparison.questions:,}")
    return "\n".join([describe_recipe(comparison.recipe), *runs, *data])


def run_comparison(
    comparison: "Comparison", out: Path, file: Path, jobs: int | None, show: Callable[[dict[str, Any]], None]
) -> int:
    """Plan and run a comparison, saving the record after each run; show it at the end and return the exit status."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.compare import compare
    from longfire.lab.comparison_plan import plan_comparison

    disable_progress_bar()
    plan = plan_comparison(comparison, out, jobs=jobs)
    record = compare(plan, partial(write_json, file))
    if record["runs"]:
        show(record)
    if record.get("interrupted"):
        finished = {(run["encoding"], run["seed"]) for run in record["runs"]}
        unfinished = [run.folder.name for run in plan.runs if (run.label, run.seed) not in finished]
        print(f"\nlongfire: interrupted. Not finished: {', '.join(unfinished)}.", file=sys.stderr)
        return INTERRUPTED
    return int(any("failed" in run for run in record["runs"]))
