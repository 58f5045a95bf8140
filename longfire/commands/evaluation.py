"""`longfire evaluate`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from longfire.atomic_io import write_json
from longfire.commands.downstream import NAMES, add_tasks
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import DTYPES, INTEGER, INTEGERS, PATHS, Commands, path_slug

if TYPE_CHECKING:
    from longfire.evaluation.perplexity_plan import PerplexityPlan


def add_evaluate(commands: Commands) -> None:
    """Add `longfire evaluate` and its subjects."""
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate a checkpoint",
        description="Evaluate a checkpoint: perplexity by length, a task, or EleutherAI's lm-evaluation-harness with "
        "longfire's models registered.",
        epilog="usages:\n"
        "  longfire evaluate perplexity CHECKPOINT --corpus PATH\n"
        "  longfire evaluate TASK CHECKPOINT --data FOLDER\n"
        "  longfire evaluate --harness run --model hf \\\n"
        "      --model_args pretrained=FOLDER,max_length=N --tasks NAME\n"
        f"\nTASK is a task or a suite: {NAMES}.\n"
        "\nWithout max_length the harness truncates texts to the training length.",
    )
    evaluate.add_argument(
        "--harness",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="pass all following arguments to lm-eval; --harness --help shows its help",
    )
    evaluate.set_defaults(run=run_evaluate)
    subjects = evaluate.add_subparsers(title="subjects", metavar="SUBJECT")
    add_perplexity(subjects)
    add_tasks(subjects)


def add_perplexity(subjects: Commands) -> None:
    """Add `longfire evaluate perplexity`."""
    parser = subjects.add_parser(
        "perplexity",
        help="log perplexity by length",
        description="Log perplexity (natural log) by length, one forward pass per sequence, with 95 % intervals and "
        "the loss by position, for any causal language model of transformers. Ctrl-C keeps the lengths measured so "
        "far.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="folder written by save_pretrained, with a tokenizer")
    add(
        "--corpus",
        **PATHS,
        help="files or folders of text, or hub:NAME (default: sources and docs of Python's standard library)",
    )
    add("--field", metavar="NAME", help="text field in .jsonl and .parquet files (default: text)")
    add("--validation", **PATHS, help="held-out text, if separate from the corpus")
    add(
        "--split",
        choices=["validation", "dev", "train", "all"],
        default="validation",
        help="split of the corpus; all is for text the model never saw, and warns if it did",
    )
    add("--tokenizer", type=Path, metavar="FOLDER", help="tokenizer (default: the checkpoint's)")
    add(
        "--lengths",
        **INTEGERS,
        help="test lengths (default: 512 … 8192; for longfire models trained at less than 512, 1, 2, 4, 8 and 16 times "
        "the training length)",
    )
    add(
        "--protocol",
        choices=["paper", "paired"],
        default="paper",
        help="paper: cut documents to each length; paired: score the same tokens at all lengths",
    )
    add("--tokens", **INTEGER, help="maximum tokens at each length (default: all)")
    add("--scored", **INTEGER, help="tokens to score in each paired window (default: half the shortest length)")
    add("--batch-tokens", **INTEGER, help="tokens per forward pass (default: 65536 on cuda, 8192 on cpu)")
    add("--seed", **INTEGER, default=0, help="seed for sampled sequences and intervals")
    add("--device", help="cpu, cuda, cuda:1, … (default: cuda if available)")
    add("--dtype", choices=DTYPES, help="dtype of the weights (default: as saved)")
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="JSON file to write (default: evaluate/perplexity-CHECKPOINT-PROTOCOL.json)",
    )
    add("--dry-run", action="store_true", help="print the plan, then exit")
    parser.set_defaults(run=run_perplexity)


def plan(options: argparse.Namespace) -> "tuple[PerplexityPlan, Path]":
    """The checked plan and the path of its record."""
    from longfire.evaluation.perplexity_plan import PerplexityPlan

    planned = PerplexityPlan(**{field.name: getattr(options, field.name) for field in fields(PerplexityPlan)})
    name = f"perplexity-{path_slug(options.checkpoint)}-{options.protocol}"
    return planned, planned.record_path(options.out, Path("evaluate") / f"{name}.json")


def run_perplexity(options: argparse.Namespace) -> int:
    """Run `longfire evaluate perplexity`. Exit status: 1 if a length failed, 130 if interrupted."""
    from longfire.report.perplexity_table import perplexity_table

    planned, out = plan(options)
    if options.dry_run:
        print(f"{planned}\nto be written to {out}")
        return 0
    record = planned.run(partial(write_json, out))
    print(perplexity_table(record))
    if record["rows"]:
        print(f"\nRecord: {out}")
    if record.get("interrupted"):
        return INTERRUPTED
    return int(any("failed" in row for row in record["rows"]))


def run_evaluate(options: argparse.Namespace) -> int:
    """Run `longfire evaluate --harness`."""
    if options.harness is None:
        raise ValueError(
            "evaluate what? longfire evaluate perplexity CHECKPOINT, longfire evaluate TASK CHECKPOINT --data FOLDER, "
            "or longfire evaluate --harness run --model hf --model_args pretrained=FOLDER --tasks NAME; see longfire "
            "evaluate --help."
        )
    return run_harness(options.harness)


def run_harness(arguments: Sequence[str]) -> int:
    """Run `lm-eval` with these arguments and longfire's model types registered.

    The harness's metrics library ignores HF_HUB_OFFLINE, so its own switch is set too.
    """
    if offline := os.environ.get("HF_HUB_OFFLINE"):
        os.environ.setdefault("HF_EVALUATE_OFFLINE", offline)
    from lm_eval.__main__ import cli_evaluate

    import longfire.model  # noqa: F401

    original = sys.argv
    sys.argv = ["lm-eval", *arguments]  # the harness reads its arguments here
    try:
        cli_evaluate()
    finally:
        sys.argv = original
    return 0
