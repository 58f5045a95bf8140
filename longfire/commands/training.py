"""`longfire pretrain`, and what other commands have in common with it: text and recipe."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.commands.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from longfire.model import LongfireConfig
    from longfire.training import Recipe

OWN = ("encoding", "length", "batch_size", "steps", "learning_rate", "seed", "precision", "tokenizer", "vocab_size")
"""Fields of a recipe that have an option of their own; --set takes all."""


def add_pretrain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire pretrain` and its options."""
    one = commands.add_parser(
        "pretrain",
        help="train a model by a recipe",
        description="Train a model by a recipe: tiny, small, base, large or base-512. Ctrl-C saves a checkpoint first, "
        "and the same command resumes. On several GPUs: torchrun --nproc-per-node 8 -m longfire pretrain …",
    )
    one.add_argument("recipe", metavar="RECIPE", help="tiny, small, base, large or base-512")
    one.add_argument("--out", type=Path, help="folder of the run; runs/RECIPE-ENCODING-SEED, unless given")
    add_corpus_options(one)
    add_recipe_options(one)
    one.add_argument(
        "--encoding",
        metavar="NAME",
        help="position encoding: fire, fire-s (FIRE-S: one for all layers), rope, …; with options: "
        "fire:horizon=512,init=kerple_log",
    )
    one.add_argument(
        "--share", dest="share_position_encoding", action="store_true", default=None, help=argparse.SUPPRESS
    )
    one.add_argument("--seed", type=int, help="of weights and of the order of the text")
    one.add_argument(
        "--from",
        dest="init_from",
        metavar="FOLDER",
        help="a checkpoint to go on from; size, encoding and tokenizer must be its own",
    )
    one.add_argument(
        "--extend-to",
        type=int,
        metavar="N",
        help="with --encoding rope_pi or yarn, and --from a checkpoint with rope: the length to reach",
    )
    one.add_argument("--tracker", default="tensorboard", help="tensorboard, wandb, trackio or none")
    one.add_argument("--fsdp", action="store_true", help="shard the model over the GPUs (FSDP2) instead of copying it")
    one.add_argument(
        "--dry-run", action="store_true", help="print the whole recipe, parameters and tokens; train nothing"
    )
    one.set_defaults(resumes=True, run=run_pretrain)


def add_corpus_options(one: argparse.ArgumentParser) -> None:
    """Where the text is from."""
    text = one.add_argument_group("text")
    text.add_argument(
        "--corpus",
        nargs="+",
        metavar="PATH",
        help="files or folders (.txt .md .py .rst .tex .jsonl .jsonl.gz .jsonl.zst .parquet), or hub:NAME; unless "
        "given, the sources and documentation of this Python's standard library",
    )
    text.add_argument("--field", metavar="NAME", help="of the text in .jsonl and .parquet; text, unless given")
    text.add_argument(
        "--validation", nargs="+", metavar="PATH", help="text to test on; a part of the corpus, unless given"
    )
    text.add_argument("--tokenizer", help="bytes, bpe (trained on the corpus), or a Hugging Face tokenizer")
    text.add_argument("--vocab", dest="vocab_size", type=int, metavar="N", help="of a bpe")
    text.add_argument("--max-documents", type=int, metavar="N", help="the first so many: of a large dataset of the hub")
    text.add_argument("--skip-bad", action="store_true", help="leave out lines that cannot be read, and count them")


def add_recipe_options(one: argparse.ArgumentParser) -> None:
    """What may be other than in the recipe."""
    of = one.add_argument_group("other than in the recipe")
    of.add_argument("--length", type=int, metavar="N", help="tokens in a training sequence")
    of.add_argument("--batch", dest="batch_size", type=int, metavar="N", help="sequences in a step")
    of.add_argument("--steps", type=int, metavar="N", help="steps of training")
    of.add_argument("--learning-rate", type=float, metavar="X")
    of.add_argument("--precision", help="auto, bfloat16 or float32")
    of.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help="any field of the recipe, by name"
    )


def chosen_recipe(options: argparse.Namespace, name: str) -> "Recipe":
    """The recipe of this name with what the command line changes."""
    from longfire.encodings.labels import check_label
    from longfire.training import recipe_named

    given = {
        field: getattr(options, field, None) for field in (*OWN, "share_position_encoding", "init_from", "extend_to")
    }
    if given["share_position_encoding"]:
        message = "--share is now --encoding fire-s (or NAME-s); the next release drops the old option."
        warnings.warn(message, FutureWarning, stacklevel=2)
    label = given.pop("encoding")
    changes = {field: value for field, value in given.items() if value is not None} | settings(options.set)
    recipe = recipe_named(name)
    if label is None:
        return recipe.but(**changes)
    check_label(label)
    return recipe.with_encoding(label, **changes)


def settings(given: Sequence[str]) -> dict[str, Any]:
    """`steps=100` → {"steps": 100}."""
    from longfire.encodings.labels import parse_value

    found = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, such as steps=100, not {setting!r}.")
        found[name.replace("-", "_")] = parse_value(value)
    return found


def corpus_options(options: argparse.Namespace, tokenizer: str, vocab_size: int | None) -> dict[str, Any]:
    """As `longfire.data.load_corpus` takes them. Tokens that are made already have a tokenizer of their own.

    Refuses a path that is not there, for a dry run as well.
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
    """`longfire pretrain`."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.data import load_corpus
    from longfire.encodings.labels import parse_label, run_folder
    from longfire.encodings.registry import SHARED
    from longfire.training.pretrain import pretrain, training_sequences
    from longfire.training.run import SHARDED, what_is_kept

    disable_progress_bar()  # of saving and loading; training has one of its own
    recipe = chosen_recipe(options, options.recipe)
    label = options.encoding or recipe.encoding
    if recipe.share_position_encoding and not parse_label(label)[1]:
        label += SHARED
    out = options.out or run_folder(Path("runs"), label, recipe.seed, prefix=f"{recipe.name}-")
    recipe.check()
    planned_config(recipe)  # what it goes on from is looked for before any text is read
    text = corpus_options(options, recipe.tokenizer, recipe.vocab_size)
    if options.dry_run:
        print(described(recipe), f"to be written to {out}", sep="\n")
        return 0
    refuse_unwritable(out)
    corpus = load_corpus(**text)
    training_sequences(recipe, corpus)  # a text that is too short leaves no folder behind
    before = (out / "done.json").exists()
    try:
        model = pretrain(recipe, corpus, out, tracker=options.tracker, **(SHARDED if options.fsdp else {}))
    except KeyboardInterrupt:
        print(f"\nlongfire: stopped; {what_is_kept(out)}.", file=sys.stderr)
        return INTERRUPTED
    done = read_json(out / "done.json")
    print(
        f"{'Trained already: ' * before}{done['parameters']:,} parameters, {done['tokens_seen']:,} tokens, loss "
        f"{done['final_loss']:.3f}, {done['tokens/s'] or 0:,} tokens/s. The model: {model}"
    )
    return 0


def described(recipe: "Recipe") -> str:
    """The whole recipe, the parameters and the tokens."""
    from dataclasses import asdict

    import torch

    from longfire.model import LongfireForCausalLM

    lines = [f"{name:24} {value}" for name, value in asdict(recipe).items()]
    config = planned_config(recipe)
    encoding = recipe.position_encoding() if config is None else config.position_encoding
    lines.append(f"{'position_encoding':24} {encoding}")
    if config is not None:
        with torch.device("meta"):
            model = LongfireForCausalLM(config)
        count = sum(p.numel() for p in model.parameters())
        lines.append(f"{'parameters':24} {count:,} with a vocabulary of {model.config.vocab_size:,}")
    lines.append(f"{'tokens':24} {recipe.tokens:,}: {recipe.steps:,} steps of {recipe.batch_size} × {recipe.length}")
    return "\n".join(lines)


def planned_config(recipe: "Recipe") -> "LongfireConfig | None":
    """Of the model that would be trained: the checkpoint's, or a new one's where the vocabulary is known."""
    from longfire.training.start import checkpoint_folder, config_to_go_on

    if recipe.init_from is not None:
        return config_to_go_on(recipe, checkpoint_folder(recipe.init_from))
    known = {"bytes": 257, "bpe": recipe.vocab_size, "gpt2": 50257}
    vocabulary = known.get(recipe.tokenizer)
    return None if vocabulary is None else recipe.config(vocabulary)
