"""`longfire retrofit`."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.compare import TEST_TOKENS, chosen_test_tokens
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import INTEGER, INTEGERS, LIST, NUMBER, Commands
from longfire.commands.training import add_corpus_options, recipe_changes, source_options

if TYPE_CHECKING:
    from longfire.lab.retrofit_plan import RetrofitPlan

PLAN_OPTIONS = ("model", "encoding", "training_length", "lora", "lengths", "evaluate_at")


def add_retrofit(commands: Commands) -> None:
    """Add `longfire retrofit`."""
    parser = commands.add_parser(
        "retrofit",
        help="give a trained Hugging Face model another encoding",
        description="Replace a trained model's position encoding with FIRE, train it further until it has recovered, "
        "and measure perplexity by length before and after. Prints a verdict and a table, and writes a page. Ctrl-C "
        "saves a checkpoint; the same command resumes.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder written by save_pretrained, with a tokenizer, or hub name")
    add("out", type=Path, metavar="OUT", help="output folder; the result is in OUT/model")
    add(
        "--encoding",
        metavar="NAME",
        help="new encoding, with options after a colon: fire:init=kerple_log, kerple_log, nope (default: fire)",
    )
    add("--training-length", **INTEGER, help="length to set the encoding up for (default: the model's)")
    add_corpus_options(parser, tokenizer=None)
    add("--tokenizer", help=argparse.SUPPRESS)
    add = parser.add_argument_group("recovery").add_argument
    add("--lora", action="store_true", help="train adapters (PEFT) and the encoding instead of all parameters")
    add("--steps", **INTEGER, help="training steps; 0 only converts (default: 1000)")
    add("--length", **INTEGER, help="tokens in a sequence (default: the training length, at most 2048)")
    add("--batch", dest="batch_size", **INTEGER, help="sequences per step (default: 32)")
    add("--learning-rate", **NUMBER, help="peak learning rate (default: the recipe's)")
    add("--seed", **INTEGER, help="seed for the encoding and the data order (default: 0)")
    add("--precision", help="auto, bfloat16 or float32")
    add("--set", **LIST, metavar="FIELD=VALUE", help="any field of the recipe")
    add = parser.add_argument_group("tests").add_argument
    add(
        "--lengths",
        **INTEGERS,
        help="test lengths (default: a quarter of the sequence length, the length, twice and four times it)",
    )
    add("--test-tokens", **TEST_TOKENS)
    add("--evaluate-at", type=int, nargs="+", default=[], metavar="STEP", help="also test after these steps")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, then exit")
    parser.set_defaults(resumes=True, run=run_retrofit)


def plan(options: argparse.Namespace) -> "RetrofitPlan":
    """The checked plan for the options."""
    from longfire.lab.retrofit_plan import RetrofitPlan
    from longfire.training.recovery import RetrofitRecipe

    if options.tokenizer is not None:
        raise ValueError(f"--tokenizer {options.tokenizer}: a retrofit keeps the model's tokenizer. Omit the option.")
    changes = recipe_changes(options, RetrofitRecipe)
    refuse_encoding_options(options.encoding or "fire", changes)
    return RetrofitPlan(
        **{name: getattr(options, name) for name in PLAN_OPTIONS},
        changes=changes,
        corpus=source_options(options),
        tokens=chosen_test_tokens(options),
    )


def refuse_encoding_options(label: str, changes: Mapping[str, Any]) -> None:
    """Refuse --set for the encoding and its options, which --encoding takes."""
    from longfire.encodings.labels import check_label, parse_label
    from longfire.encodings.registry import ENCODINGS, option_names

    check_label(label)
    if "encoding" in changes:
        raise ValueError(
            f"a retrofit's recipe has no field 'encoding'. Write --encoding {changes['encoding']} without --set."
        )
    name, _, options = parse_label(label)
    if own := [option for option in changes if option in option_names(ENCODINGS[name])]:
        typed = ",".join(f"{option}={value}" for option, value in {**options, **{o: changes[o] for o in own}}.items())
        raise ValueError(
            f"{', '.join(own)}: not a field of the recipe but an option of {name}. Write --encoding {name}:{typed}."
        )


def run_retrofit(options: argparse.Namespace) -> int:
    """Run `longfire retrofit`. Exit status: 1 if a length failed, 130 if interrupted."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.retrofit import retrofit_and_recover
    from longfire.report.retrofit import retrofit_page, retrofit_table
    from longfire.training.checkpoints import describe_last

    disable_progress_bar()  # for saving and loading
    planned = plan(options)
    if options.dry_run:
        print(planned, f"output                   {options.out}", sep="\n")
        return 0
    file, page = options.out / "retrofit.json", options.out / "report.html"
    record = retrofit_and_recover(planned, options.out, save=partial(write_json, file))
    if record["runs"]:
        retrofit_page(record, page)
        print(f"{retrofit_table(record)}\n\nReport: {page}   Numbers: {file}")
    if record.get("interrupted"):
        print(f"\nlongfire: stopped; {describe_last(options.out)}.", file=sys.stderr)
        return INTERRUPTED
    print(f"Model: {options.out / 'model'}")
    return int(any("failed" in row for run in record["runs"] for row in run["perplexity"]["rows"]))
