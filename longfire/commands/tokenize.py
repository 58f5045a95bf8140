"""`longfire tokenize`."""

import argparse
from pathlib import Path

from longfire.commands.training import add_corpus_options, corpus_options


def add_tokenize(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire tokenize` and its options."""
    one = commands.add_parser(
        "tokenize",
        help="text as tokens in a folder, to train where the text is not",
        description="Make the tokens of a corpus and put them into a folder, with their tokenizer and splits. Any "
        "--corpus takes such a folder, on any machine.",
    )
    one.add_argument("out", type=Path, metavar="FOLDER", help="to write; must be new")
    add_corpus_options(one)
    one.set_defaults(run=run_tokenize)


def run_tokenize(options: argparse.Namespace) -> int:
    """`longfire tokenize`."""
    from longfire.data import load_corpus

    corpus = load_corpus(**corpus_options(options, options.tokenizer or "bytes", options.vocab_size))
    corpus.save(options.out)
    for name, split in corpus.describe()["splits"].items():
        print(
            f"{name:10}  {split['documents']:>9,} documents  {split['tokens']:>13,} tokens  {split['bytes']:>13,} bytes"
        )
    print(f"{corpus.vocab_size:,} words in the vocabulary. The tokens: {options.out}")
    return 0
