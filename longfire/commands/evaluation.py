"""`longfire evaluate`."""

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from longfire.atomic_io import write_json
from longfire.commands.downstream import NAMES, add_tasks
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.names import name_of


def add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire evaluate` and its forms."""
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate a checkpoint",
        description="Evaluate a checkpoint: longfire evaluate perplexity CHECKPOINT, or longfire evaluate TASK "
        f"CHECKPOINT --data FOLDER. A TASK is one of, or a suite: {NAMES}. --harness runs EleutherAI's "
        "lm-evaluation-harness, which then knows longfire's models: longfire evaluate --harness run --model hf "
        "--model_args pretrained=FOLDER,max_length=N --tasks NAME. Without max_length the harness cuts texts to the "
        "training length.",
    )
    evaluate.add_argument(
        "--harness",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="arguments of lm-eval, all that follow; with --help, its own help",
    )
    evaluate.set_defaults(run=run_evaluate)
    subjects = evaluate.add_subparsers(title="subjects", metavar="SUBJECT")
    add_perplexity(subjects)
    add_tasks(subjects)


def add_perplexity(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire evaluate perplexity` and its options."""
    one = subjects.add_parser(
        "perplexity",
        help="log perplexity by length",
        description="Log perplexity (natural log) by length, one forward pass per sequence, with 95 % intervals and "
        "the loss by position. For any causal model of transformers. Ctrl-C keeps what was measured.",
    )
    one.add_argument("checkpoint", type=Path, help="folder that save_pretrained wrote, with a tokenizer")
    one.add_argument(
        "--corpus",
        nargs="+",
        metavar="PATH",
        help="files or folders of text, or hub:NAME; unless given, the sources and documentation of this Python's "
        "standard library",
    )
    one.add_argument("--field", metavar="NAME", help="of the text in .jsonl and .parquet; text, unless given")
    one.add_argument(
        "--validation", nargs="+", metavar="PATH", help="the text to test on, if the model was trained with such a text"
    )
    one.add_argument(
        "--split",
        choices=["validation", "dev", "train", "all"],
        default="validation",
        help="of the corpus: validation, unless given; all is for text that the model never saw, and the output says "
        "what of it was trained on",
    )
    one.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="the checkpoint's, unless given")
    one.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="tokens in a sequence: 512 … 8192; of our models that were trained shorter, 1, 2, 4, 8 and 16 times that",
    )
    one.add_argument(
        "--protocol",
        choices=["paper", "paired"],
        default="paper",
        help="paper: documents cut at each length; paired: the same tokens at all lengths",
    )
    one.add_argument("--tokens", type=int, metavar="N", help="read at most so many at each length; all, unless given")
    one.add_argument(
        "--scored", type=int, metavar="N", help="of each window, if paired; half of the shortest length, unless given"
    )
    one.add_argument("--batch-tokens", type=int, metavar="N", help="in a forward pass: on cuda 65536, on cpu 8192")
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of drawn sequences and of intervals: 0")
    one.add_argument("--device", help="cpu, cuda, cuda:1, …; the GPU if there is one, unless given")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="as saved, unless given")
    one.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON; evaluate/perplexity-CHECKPOINT-PROTOCOL.json, unless given"
    )
    one.add_argument("--dry-run", action="store_true", help="print what would be evaluated, and evaluate nothing")
    one.set_defaults(run=run_perplexity)


def run_perplexity(options: argparse.Namespace) -> int:
    """`longfire evaluate perplexity`: 0, 1 if a length failed, 130 if it was interrupted."""
    from longfire.evaluation.perplexity_setting import (
        PerplexitySetting,
        measure_perplexity,
        own_record,
        refuse_other_record,
    )
    from longfire.report.perplexity import perplexity_table

    given: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(PerplexitySetting)}
    setting = PerplexitySetting(**given)
    if options.out is not None:
        refuse_other_record(options.out, setting)
    name = f"perplexity-{name_of(options.checkpoint)}-{options.protocol}"
    out = options.out or own_record(Path("evaluate"), name, setting)
    if options.dry_run:
        print(f"{setting}\nto be written to {out}")
        return 0
    record = measure_perplexity(setting, partial(write_json, out))
    print(f"{perplexity_table(record)}\n\nwritten to {out}")
    if record.get("interrupted"):
        return INTERRUPTED
    return int(any("failed" in row for row in record["rows"]))


def run_evaluate(options: argparse.Namespace) -> int:
    """`longfire evaluate`."""
    if options.harness is None:
        raise ValueError(
            "evaluate what? longfire evaluate perplexity CHECKPOINT, longfire evaluate TASK CHECKPOINT --data FOLDER, "
            "or longfire evaluate --harness run --model hf --model_args pretrained=FOLDER --tasks NAME; more with "
            "longfire evaluate --help."
        )
    from longfire.evaluation.harness import run_harness

    return run_harness(options.harness)
