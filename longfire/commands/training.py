"""`longfire pretrain`, and the options for text and recipe that it shares with other commands."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import Commands

if TYPE_CHECKING:
    from longfire.training import Recipe

OWN_OPTIONS = (
    *("length", "batch_size", "steps", "learning_rate", "seed", "precision", "tokenizer", "vocab_size"),
    *("share_position_encoding", "init_from", "extend_to"),
)
"""Recipe fields with an option of their own; --set takes all."""
VOCABULARIES = {"bytes": 257, "gpt2": 50257}
"""Sizes known before the tokenizer is loaded."""


def add_pretrain(commands: Commands) -> None:
    """Add `longfire pretrain`."""
    one = commands.add_parser(
        "pretrain",
        help="train a model from a recipe",
        description="Train a model from a recipe: tiny, small, base, large or base-512. Ctrl-C saves a checkpoint; the "
        "same command resumes. On several GPUs: torchrun --nproc-per-node 8 -m longfire pretrain …",
    )
    one.add_argument("recipe", metavar="RECIPE", help="tiny, small, base, large or base-512")
    one.add_argument("--out", type=Path, help="folder of the run (default: runs/RECIPE-ENCODING-SEED)")
    add_corpus_options(one)
    add_recipe_options(one)
    one.add_argument(
        "--encoding",
        metavar="NAME",
        help="position encoding: fire, fire-s (one for all layers), rope, …; with options: "
        "fire:horizon=512,init=kerple_log",
    )
    one.add_argument(
        "--share", dest="share_position_encoding", action="store_true", default=None, help=argparse.SUPPRESS
    )
    one.add_argument("--seed", type=int, help="seed of the weights and the order of the text")
    one.add_argument(
        "--from",
        dest="init_from",
        metavar="FOLDER",
        help="checkpoint to continue from; size, encoding and tokenizer must match",
    )
    one.add_argument(
        "--extend-to",
        type=int,
        metavar="N",
        help="target length, with --encoding rope_pi or yarn and --from a checkpoint with rope",
    )
    one.add_argument("--tracker", default="tensorboard", help="tensorboard, wandb, trackio or none")
    one.add_argument("--fsdp", action="store_true", help="shard the model over the GPUs (FSDP2) instead of copying it")
    one.add_argument(
        "--dry-run", action="store_true", help="print the whole recipe, parameters and tokens without training"
    )
    one.set_defaults(resumes=True, run=run_pretrain)


def add_corpus_options(one: argparse.ArgumentParser) -> None:
    """Add the options that say where the text is from."""
    text = one.add_argument_group("text")
    text.add_argument(
        "--corpus",
        nargs="+",
        metavar="PATH",
        help="files or folders (.txt .md .py .rst .tex .jsonl .jsonl.gz .jsonl.zst .parquet), or hub:NAME (default: "
        "sources and documentation of this Python's standard library)",
    )
    text.add_argument("--field", metavar="NAME", help="field with the text in .jsonl and .parquet (default: text)")
    text.add_argument(
        "--validation", nargs="+", metavar="PATH", help="held-out text to test on (default: a part of the corpus)"
    )
    text.add_argument("--tokenizer", help="bytes, bpe (trained on the corpus), or a Hugging Face tokenizer")
    text.add_argument("--vocab", dest="vocab_size", type=int, metavar="N", help="vocabulary size of a bpe")
    text.add_argument("--max-documents", type=int, metavar="N", help="read at most the first N documents")
    text.add_argument("--skip-bad", action="store_true", help="skip lines that cannot be read, and count them")


def add_recipe_options(one: argparse.ArgumentParser) -> None:
    """Add the options that change a recipe."""
    changes = one.add_argument_group("changes to the recipe")
    changes.add_argument("--length", type=int, metavar="N", help="tokens in a training sequence")
    changes.add_argument("--batch", dest="batch_size", type=int, metavar="N", help="sequences per step")
    changes.add_argument("--steps", type=int, metavar="N", help="training steps")
    changes.add_argument("--learning-rate", type=float, metavar="X", help="peak learning rate")
    changes.add_argument("--precision", help="auto, bfloat16 or float32")
    changes.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help="any field of the recipe"
    )


def chosen_recipe(options: argparse.Namespace, name: str) -> "Recipe":
    """The named recipe with the command line's changes."""
    from longfire.encodings.labels import check_label
    from longfire.training import recipe_named

    given = {field: getattr(options, field, None) for field in OWN_OPTIONS}
    if given["share_position_encoding"]:
        message = "--share is now --encoding fire-s (or NAME-s); the next release drops the old option."
        warnings.warn(message, FutureWarning, stacklevel=2)
    changes = {field: value for field, value in given.items() if value is not None} | settings(options.set)
    recipe = recipe_named(name)
    if (label := getattr(options, "encoding", None)) is None:
        return recipe.but(**changes)
    check_label(label)
    return recipe.with_encoding(label, **changes)


def settings(given: Sequence[str]) -> dict[str, Any]:
    """Parse --set: `steps=100` → {"steps": 100}."""
    from longfire.encodings.labels import parse_value

    found = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, such as steps=100, not {setting!r}.")
        found[name.replace("-", "_")] = parse_value(value)
    return found


def corpus_options(options: argparse.Namespace, tokenizer: str, vocab_size: int | None) -> dict[str, Any]:
    """Arguments for `longfire.data.load_corpus`. Saved tokens bring their own tokenizer.

    Refuses paths that do not exist, so that a dry run does too.
    """
    from longfire.data import is_saved
    from longfire.data.corpus import local_paths

    for source in (options.corpus, options.validation):
        local_paths(source)
    given: dict[str, Any] = {
        "source": options.corpus,
        "field": options.field,
        "validation": options.validation,
        "skip_bad": options.skip_bad,
        "max_documents": options.max_documents,
    }
    saved = is_saved(options.corpus)
    if options.vocab_size is not None and (saved or tokenizer != "bpe"):
        whose = "the saved tokens have" if saved else f"{tokenizer!r} has"
        raise ValueError(f"--vocab {options.vocab_size} is for --tokenizer bpe; {whose} a vocabulary already.")
    if saved:
        return {**given, "tokenizer": options.tokenizer}
    return {**given, "tokenizer": tokenizer, "vocab_size": vocab_size if tokenizer == "bpe" else None}


def run_pretrain(options: argparse.Namespace) -> int:
    """Run `longfire pretrain`."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.data import load_corpus
    from longfire.encodings.labels import parse_label, run_folder
    from longfire.encodings.registry import SHARED
    from longfire.training.checkpoints import describe_last
    from longfire.training.pretrain import pretrain
    from longfire.training.trainer import SHARDED

    disable_progress_bar()  # for saving and loading
    recipe = chosen_recipe(options, options.recipe)
    label = options.encoding or recipe.encoding
    if recipe.share_position_encoding and not parse_label(label)[1]:
        label += SHARED
    out = options.out or run_folder(Path("runs"), label, recipe.seed, prefix=f"{recipe.name}-")
    described = describe_recipe(recipe)  # refuses a recipe or checkpoint before any text is read
    text = corpus_options(options, recipe.tokenizer, recipe.vocab_size)
    if options.dry_run:
        print(described, f"output                   {out}", sep="\n")
        return 0
    refuse_unwritable(out)
    corpus = load_corpus(**text)
    was_done = (out / "done.json").exists()
    try:
        model = pretrain(recipe, corpus, out, tracker=options.tracker, **(SHARDED if options.fsdp else {}))
    except KeyboardInterrupt:
        print(f"\nlongfire: stopped; {describe_last(out)}.", file=sys.stderr)
        return INTERRUPTED
    done = read_json(out / "done.json")
    print(
        f"{'Trained already: ' * was_done}{done['parameters']:,} parameters, {done['tokens_seen']:,} tokens, loss "
        f"{done['final_loss']:.3f}, {done['tokens/s'] or 0:,} tokens/s. Model: {model}"
    )
    return 0


def describe_recipe(recipe: "Recipe") -> str:
    """The whole recipe, with parameters and tokens. Refuses one that no model can have."""
    from dataclasses import asdict

    import torch

    from longfire.model import LongfireForCausalLM
    from longfire.training.initial_model import pretraining_config

    vocabulary = recipe.vocab_size if recipe.tokenizer == "bpe" else VOCABULARIES.get(recipe.tokenizer)
    config = pretraining_config(recipe, vocabulary or 1)
    lines = {**asdict(recipe), "position_encoding": config.position_encoding}
    if vocabulary or recipe.init_from is not None:
        with torch.device("meta"):
            count = sum(p.numel() for p in LongfireForCausalLM(config).parameters())
        lines["parameters"] = f"{count:,} with a vocabulary of {config.vocab_size:,}"
    lines["tokens"] = f"{recipe.tokens:,}: {recipe.steps:,} steps of {recipe.batch_size} × {recipe.length}"
    return "\n".join(f"{name:24} {value}" for name, value in lines.items())
