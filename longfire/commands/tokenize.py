"""`longfire tokenize`."""

import argparse
from pathlib import Path

from longfire.commands.parser import Commands
from longfire.commands.training import add_corpus_options, corpus_options


def add_tokenize(commands: Commands) -> None:
    """Add `longfire tokenize`."""
    parser = commands.add_parser(
        "tokenize",
        help="save a corpus as tokens, to train on a machine without the text",
        description="Tokenise a corpus and save the tokens with their tokenizer and splits. Pass the folder as "
        "--corpus to train on any machine.",
    )
    parser.add_argument("out", type=Path, metavar="FOLDER", help="new folder for the tokens")
    add_corpus_options(parser, tokenizer="bytes", vocab="8192")
    parser.set_defaults(run=run_tokenize)


def run_tokenize(options: argparse.Namespace) -> int:
    """Run `longfire tokenize`."""
    from longfire.data import load_corpus

    corpus = load_corpus(**corpus_options(options, options.tokenizer or "bytes", options.vocab_size))
    corpus.save(options.out)
    for name, split in corpus.describe()["splits"].items():
        documents = f"{split['documents']:>9,} document{'s' if split['documents'] != 1 else ' '}"
        print(f"{name:10}  {documents}  {split['tokens']:>13,} tokens  {split['bytes']:>13,} bytes")
    print(f"Vocabulary: {corpus.vocab_size:,}. Tokens: {options.out}")
    return 0
