"""`longfire pretrain`, and the corpus and recipe options it shares with other commands."""

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import INTEGER, LIST, NUMBER, PATHS, Commands

if TYPE_CHECKING:
    from longfire.training import Recipe

TEXT_OPTIONS = ("corpus", "field", "validation", "tokenizer", "max_documents", "vocab_size", "skip_bad")
"""Options of `add_corpus_options`, which a synthetic task does not have."""
FLAGS = {"vocab_size": "--vocab", "batch_size": "--batch", "init_from": "--from", "share_position_encoding": "--share"}
"""Options whose attributes have other names."""
VOCABULARIES = {"bytes": 257, "gpt2": 50257}
"""Vocabulary sizes known before the tokenizer is loaded."""


def add_pretrain(commands: Commands) -> None:
    """Add `longfire pretrain`."""
    parser = commands.add_parser(
        "pretrain",
        help="train a model from a recipe",
        description="Train a model from a recipe. Ctrl-C saves a checkpoint; the same command resumes. On several "
        "GPUs: torchrun --nproc-per-node 8 -m longfire pretrain …",
    )
    add = parser.add_argument
    add(
        "recipe",
        metavar="RECIPE",
        help="tiny, small, base, large or base-512; for tasks: task-tiny, task-small or addition",
    )
    add("--out", type=Path, help="output folder (default: runs/RECIPE-ENCODING-SEED)")
    add_corpus_options(parser)
    add_recipe_options(parser)
    add(
        "--encoding",
        metavar="NAME",
        help="position encoding: fire, fire-s (shared across layers), rope, …, with options after a colon "
        "(fire:horizon=512,init=kerple_log)",
    )
    add("--share", dest="share_position_encoding", action="store_true", default=None, help=argparse.SUPPRESS)
    add("--seed", type=int, help="seed for initialisation and data order")
    add(
        "--from",
        dest="init_from",
        metavar="FOLDER",
        help="checkpoint to continue from; size, encoding and tokenizer must match",
    )
    add("--extend-to", **INTEGER, help="target length for --encoding rope_pi or yarn, with --from a rope checkpoint")
    add("--tracker", default="tensorboard", help="tensorboard, wandb, trackio or none")
    add("--fsdp", action="store_true", help="shard the model across GPUs (FSDP2) instead of replicating it")
    add(
        "--context-parallel",
        **INTEGER,
        default=1,
        help="split each sequence over N processes of torchrun, for lengths that do not fit on one GPU",
    )
    add("--dry-run", action="store_true", help="print the full recipe, parameters and tokens, then exit")
    parser.set_defaults(resumes=True, run=run_pretrain)


def add_corpus_options(
    parser: argparse.ArgumentParser, tokenizer: str | None = "the recipe's", vocab: str = "the recipe's"
) -> None:
    """Add the corpus options. `tokenizer` and `vocab` describe their defaults; None adds no options for them."""
    add = parser.add_argument_group("text").add_argument
    add(
        "--corpus",
        **PATHS,
        help="files or folders (.txt .md .py .rst .tex .jsonl .jsonl.gz .jsonl.zst .parquet), or hub:NAME (default: "
        "sources and docs of Python's standard library)",
    )
    add("--field", metavar="NAME", help="text field in .jsonl and .parquet files (default: text)")
    add("--validation", **PATHS, help="held-out text to test on (default: part of the corpus)")
    if tokenizer is not None:
        add(
            "--tokenizer",
            help=f"bytes, bpe (trained on the corpus), or a Hugging Face tokenizer (default: {tokenizer})",
        )
        add("--vocab", dest="vocab_size", **INTEGER, help=f"vocabulary size for bpe (default: {vocab})")
    add("--max-documents", **INTEGER, help="read at most the first N documents")
    add("--skip-bad", action="store_true", help="skip and count unreadable lines instead of stopping")


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that override a recipe."""
    add = parser.add_argument_group("recipe overrides").add_argument
    add(
        "--task",
        metavar="NAME",
        help="a synthetic task instead of text: copy, reverse, sort, parity, addition-hints, mqar, passkey, …",
    )
    add("--length", **INTEGER, help="training length")
    add("--batch", dest="batch_size", **INTEGER, help="sequences per step")
    add("--steps", **INTEGER, help="training steps")
    add("--learning-rate", **NUMBER, help="peak learning rate")
    add("--precision", help="auto, bfloat16 or float32")
    add(
        "--packing",
        choices=("segments",),
        help="segments: tokens attend within their own document, where a sequence has several (default: to all before)",
    )
    add("--set", **LIST, metavar="FIELD=VALUE", help="any field of the recipe")


def chosen_recipe(options: argparse.Namespace, name: str) -> "Recipe":
    """The named recipe with the command line's overrides."""
    from longfire.encodings.labels import check_label
    from longfire.training import recipe_named

    if getattr(options, "share_position_encoding", None):
        message = "--share is now --encoding fire-s (or NAME-s); the next release drops the old option."
        warnings.warn(message, FutureWarning, stacklevel=2)
    recipe = recipe_named(name)
    if (label := getattr(options, "encoding", None)) is None:
        return recipe.but(**recipe_changes(options, recipe))
    check_label(label)
    return recipe.with_encoding(label, **recipe_changes(options, recipe, label))


def recipe_changes(options: argparse.Namespace, recipe: Any, label: str | None = None) -> dict[str, Any]:
    """The fields of a recipe (or class of recipes) that have an option of the same name, or that --set sets.

    Refuses --set for a field that an option, or the encoding's label, sets too.
    """
    names = [field.name for field in fields(recipe) if field.name != "encoding"]  # a label, more than the field
    own = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    given = {name: f"{option_flag(name)} {value}" for name, value in own.items()}
    return own | settings(options.set, {**given, **_set_by_label(label)})


def _set_by_label(label: str | None) -> dict[str, str]:
    """The fields of a recipe that a label sets, `init` aside, which recipes compare with the encoding's own."""
    from longfire.encodings.labels import parse_label

    if label is None:
        return {}
    _, shared, options = parse_label(label)
    names = ("encoding", *["share_position_encoding"] * shared, *["encoding_options"] * bool(options), *options)
    return {name: f"--encoding {label}" for name in names if name != "init"}


def settings(assignments: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Parse --set: `steps=100` → {"steps": 100}. `given`: fields that are set already, and by what."""
    from longfire.encodings.labels import parse_value
    from longfire.training.base_recipe import RENAMED

    values, given = {}, dict(given or {})
    for assignment in assignments:
        typed, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, such as steps=100, not {assignment!r}.")
        name = typed.replace("-", "_")
        field = RENAMED.get(name, name)
        if field in given:
            raise ValueError(f"{field} is given twice: {given[field]} and --set {assignment}. Pass one of them.")
        given[field], values[name] = f"--set {assignment}", parse_value(value)
    return values


def option_flag(name: str) -> str:
    """The option that sets an attribute: max_documents → --max-documents."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def refuse_text_options(options: argparse.Namespace, task: str, *others: str) -> None:
    """Refuse options for text, and `others`, with a synthetic task."""
    if unusable := [option_flag(name) for name in (*TEXT_OPTIONS, *others) if getattr(options, name)]:
        raise ValueError(f"the task {task} generates its own data: omit {', '.join(unusable)}.")


def source_options(options: argparse.Namespace) -> dict[str, Any]:
    """The text for `longfire.data.load_corpus`. Refuses missing paths, so that a dry run does too."""
    from longfire.data.corpus import local_paths

    for source in (options.corpus, options.validation):
        local_paths(source)
    names = ("field", "validation", "skip_bad", "max_documents")
    return {"source": options.corpus, **{name: getattr(options, name) for name in names}}


def corpus_options(options: argparse.Namespace, tokenizer: str, vocab_size: int | None) -> dict[str, Any]:
    """All arguments for `longfire.data.load_corpus`: the text and its tokenizer."""
    from longfire.data import is_saved

    text, saved = source_options(options), is_saved(options.corpus)
    if options.vocab_size is not None and (saved or tokenizer != "bpe"):
        has = "the saved tokens already have" if saved else f"{tokenizer!r} already has"
        raise ValueError(f"--vocab {options.vocab_size} is for --tokenizer bpe; {has} a vocabulary.")
    if saved:  # with their tokenizer
        return {**text, "tokenizer": options.tokenizer}
    return {**text, "tokenizer": tokenizer, "vocab_size": vocab_size if tokenizer == "bpe" else None}


def run_pretrain(options: argparse.Namespace) -> int:
    """Run `longfire pretrain`."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.data import load_corpus
    from longfire.encodings.labels import parse_label, run_folder
    from longfire.encodings.registry import SHARED
    from longfire.training.checkpoints import describe_last
    from longfire.training.context_parallel import check_context_parallel, check_processes
    from longfire.training.pretrain import pretrain
    from longfire.training.processes import check_sharding, is_first
    from longfire.training.task_data import TaskData
    from longfire.training.trainer import SHARDED

    disable_progress_bar()  # for saving and loading
    recipe = chosen_recipe(options, options.recipe)
    label = options.encoding or recipe.encoding
    if recipe.share_position_encoding and not parse_label(label)[1]:
        label += SHARED
    out = options.out or run_folder(Path("runs"), label, recipe.seed, prefix=f"{recipe.name}-")
    description = describe_recipe(recipe)  # refuses bad recipes and checkpoints before any text is read
    check_context_parallel(recipe, options.context_parallel)
    if recipe.task is not None:
        refuse_text_options(options, recipe.task)
    text = corpus_options(options, recipe.tokenizer, recipe.vocab_size)
    if options.dry_run:
        print(description, f"output                   {out}", sep="\n")
        return 0
    check_processes(options.context_parallel)
    if options.fsdp:
        check_sharding()
    refuse_unwritable(out)
    corpus = load_corpus(**text) if recipe.task is None else TaskData(recipe.task)
    already_trained = (out / "done.json").exists()
    how: dict[str, Any] = {"tracker": options.tracker, "context_parallel": options.context_parallel}
    try:
        model = pretrain(recipe, corpus, out, **how, **(SHARDED if options.fsdp else {}))
    except KeyboardInterrupt:
        if is_first():
            print(f"\nlongfire: stopped; {describe_last(out)}.", file=sys.stderr)
        return INTERRUPTED
    if not is_first():
        return 0
    done = read_json(out / "done.json")
    print(
        f"{'Already trained: ' * already_trained}{done['parameters']:,} parameters, {done['tokens_seen']:,} tokens, "
        f"loss {done['final_loss']:.3f}, {done['tokens/s'] or 0:,} tokens/s. Model: {model}"
    )
    return 0


def describe_recipe(recipe: "Recipe") -> str:
    """The full recipe, with parameters and tokens. Refuses a recipe that no model can be built from."""
    from dataclasses import asdict

    import torch

    from longfire.model import LongfireForCausalLM
    from longfire.tasks.synthetic import synthetic_task
    from longfire.training.initial_model import pretraining_config

    vocabulary = recipe.vocab_size if recipe.tokenizer == "bpe" else VOCABULARIES.get(recipe.tokenizer)
    if recipe.task is not None:
        vocabulary = synthetic_task(recipe.task).vocab_size
    config = pretraining_config(recipe, vocabulary or 1)
    lines = {**asdict(recipe), "position_encoding": config.position_encoding}
    if vocabulary or recipe.init_from is not None:
        with torch.device("meta"):
            count = sum(p.numel() for p in LongfireForCausalLM(config).parameters())
        lines["parameters"] = f"{count:,} with a vocabulary of {config.vocab_size:,}"
    lines["tokens"] = f"{recipe.tokens:,}: {recipe.steps:,} steps of {recipe.batch_size} × {recipe.sequence_length}"
    return "\n".join(f"{name:24} {value}" for name, value in lines.items())
