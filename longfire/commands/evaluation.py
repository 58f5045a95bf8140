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
from longfire.commands.parser import Commands, path_slug

if TYPE_CHECKING:
    from longfire.evaluation.perplexity_plan import PerplexityPlan


def add_evaluate(commands: Commands) -> None:
    """`longfire evaluate` and its forms."""
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate a checkpoint",
        description="Evaluate a checkpoint: longfire evaluate perplexity CHECKPOINT, or longfire evaluate TASK "
        f"CHECKPOINT --data FOLDER, where TASK is a task or a suite: {NAMES}. --harness runs EleutherAI's "
        "lm-evaluation-harness with longfire's models registered: longfire evaluate --harness run --model hf "
        "--model_args pretrained=FOLDER,max_length=N --tasks NAME. Without max_length the harness truncates texts to "
        "the training length.",
    )
    evaluate.add_argument(
        "--harness",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="pass all following arguments to lm-eval; --help shows its own help",
    )
    evaluate.set_defaults(run=run_evaluate)
    subjects = evaluate.add_subparsers(title="subjects", metavar="SUBJECT")
    add_perplexity(subjects)
    add_tasks(subjects)


def add_perplexity(subjects: Commands) -> None:
    """`longfire evaluate perplexity` and its options."""
    one = subjects.add_parser(
        "perplexity",
        help="log perplexity by length",
        description="Log perplexity (natural log) by length, one forward pass per sequence, with 95 % intervals and "
        "the loss by position, for any causal model of transformers. Ctrl-C keeps what was measured.",
    )
    one.add_argument("checkpoint", type=Path, help="folder that save_pretrained wrote, with a tokenizer")
    one.add_argument(
        "--corpus",
        nargs="+",
        metavar="PATH",
        help="files or folders of text, or hub:NAME (default: sources and documentation of Python's standard library)",
    )
    one.add_argument("--field", metavar="NAME", help="of the text in .jsonl and .parquet (default: text)")
    one.add_argument(
        "--validation", nargs="+", metavar="PATH", help="held-out text, if the model was trained with a separate one"
    )
    one.add_argument(
        "--split",
        choices=["validation", "dev", "train", "all"],
        default="validation",
        help="of the corpus; all is for text the model never saw, and the output says if it did",
    )
    one.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="(default: the checkpoint's)")
    one.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="tokens in a sequence (default: 512 … 8192; for longfire models trained shorter, 1, 2, 4, 8 and 16 times "
        "the training length)",
    )
    one.add_argument(
        "--protocol",
        choices=["paper", "paired"],
        default="paper",
        help="paper: documents cut at each length; paired: the same tokens at all lengths",
    )
    one.add_argument("--tokens", type=int, metavar="N", help="read at most this many at each length (default: all)")
    one.add_argument(
        "--scored",
        type=int,
        metavar="N",
        help="tokens scored in each paired window (default: half of the shortest length)",
    )
    one.add_argument(
        "--batch-tokens", type=int, metavar="N", help="in a forward pass (default: 65536 on cuda, 8192 on cpu)"
    )
    one.add_argument("--seed", type=int, default=0, metavar="N", help="for sampled sequences and intervals")
    one.add_argument("--device", help="cpu, cuda, cuda:1, … (default: the GPU if there is one)")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="(default: as saved)")
    one.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="JSON file to write (default: evaluate/perplexity-CHECKPOINT-PROTOCOL.json)",
    )
    one.add_argument("--dry-run", action="store_true", help="print the plan without evaluating")
    one.set_defaults(run=run_perplexity)


def plan(options: argparse.Namespace) -> "tuple[PerplexityPlan, Path]":
    """What to measure, checked, and the record to write."""
    from longfire.evaluation.perplexity_plan import PerplexityPlan

    planned = PerplexityPlan(**{field.name: getattr(options, field.name) for field in fields(PerplexityPlan)})
    name = f"perplexity-{path_slug(options.checkpoint)}-{options.protocol}"
    return planned, planned.record_path(options.out, Path("evaluate") / f"{name}.json")


def run_perplexity(options: argparse.Namespace) -> int:
    """`longfire evaluate perplexity`: 0, 1 if a length failed, 130 if interrupted."""
    from longfire.report.perplexity_table import perplexity_table

    planned, out = plan(options)
    if options.dry_run:
        print(f"{planned}\nto be written to {out}")
        return 0
    record = planned.run(partial(write_json, out))
    print(f"{perplexity_table(record)}\n\nRecord: {out}")
    if record.get("interrupted"):
        return INTERRUPTED
    return int(any("failed" in row for row in record["rows"]))


def run_evaluate(options: argparse.Namespace) -> int:
    """`longfire evaluate --harness`."""
    if options.harness is None:
        raise ValueError(
            "evaluate what? longfire evaluate perplexity CHECKPOINT, longfire evaluate TASK CHECKPOINT --data FOLDER, "
            "or longfire evaluate --harness run --model hf --model_args pretrained=FOLDER --tasks NAME; see longfire "
            "evaluate --help."
        )
    return run_harness(options.harness)


def run_harness(arguments: Sequence[str]) -> int:
    """Run `lm-eval` with these arguments and longfire's model types registered.

    HF_HUB_OFFLINE also takes the metrics library offline, which has a switch of its own.
    """
    if offline := os.environ.get("HF_HUB_OFFLINE"):
        os.environ.setdefault("HF_EVALUATE_OFFLINE", offline)
    from lm_eval.__main__ import cli_evaluate

    import longfire.model  # noqa: F401

    before = sys.argv
    sys.argv = ["lm-eval", *arguments]  # where the harness reads them
    try:
        cli_evaluate()
    finally:
        sys.argv = before
    return 0
