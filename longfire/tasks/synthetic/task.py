"""Synthetic tasks: questions and answers of any length, drawn on the fly as token ids.

A row is `[BOS] question [SEP] answer [EOS]`. Its labels are the answer and EOS, and −100 elsewhere.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from zlib import crc32

import numpy as np

from longfire.validation import at_least, one_of

Symbols = Sequence[str]
Generate = Callable[[int, np.random.Generator], tuple[Symbols, Symbols]]
Solve = Callable[[Symbols], Symbols]
Row = dict[str, list[int]]

SPECIAL = ("[PAD]", "[BOS]", "[SEP]", "[EOS]")
"""The first token ids of every task. Its own symbols follow."""
PAD, BOS, SEP, EOS = range(len(SPECIAL))
IGNORED = -100
"""The label of tokens that are not predicted."""
SPLITS = ("train", "test")


@dataclass(frozen=True)
class SyntheticTask:
    """One task. Entries of `longfire.tasks.synthetic.SYNTHETIC`."""

    name: str
    """As typed on the command line: "addition-reversed"."""
    symbols: tuple[str, ...]
    """The alphabet, in the order of the token ids."""
    generate: Generate
    """(length, rng) → question and answer."""
    solve: Solve
    """Question → answer, by another method than `generate`; tests compare the two."""
    num_symbols: Callable[[int], int]
    """Length → number of symbols in the longest question and answer together."""
    paper: str
    """"Delétang et al. (2023), arXiv:2207.02098"."""
    title: str = ""
    """For tables (default: the name, as words)."""
    unit: str = "symbols"
    """What a length counts."""
    min_length: int = 1
    max_length: int | None = None
    step: int = 1
    """Lengths are `min_length`, `min_length + step`, …"""
    interleaved: bool = False
    """The question ends with one query per symbol of the answer. In a row each query is followed by its answer after
    SEP, and only the answers are labelled: the number of queries is given, so EOS is too."""
    generate_test: Generate | None = None
    """For test rows that come from a held-out source (default: `generate`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name.replace("-", " ").capitalize())

    @property
    def vocab_size(self) -> int:
        """The number of token ids, PAD included."""
        return len(SPECIAL) + len(self.symbols)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols, len(SPECIAL))}

    def lengths(self, longest: int) -> range:
        """All lengths of the task up to `longest`, which must be one of them."""
        self.check_length(longest)
        return range(self.min_length, longest + 1, self.step)

    def nearest_length(self, target: float) -> int:
        """The task's length that is nearest to a number, for defaults."""
        length = self.min_length + self.step * max(0, math.floor((target - self.min_length) / self.step + 0.5))
        return length if self.max_length is None else min(length, self.max_length)

    def check_length(self, length: int) -> None:
        """Refuse a length that the task does not have."""
        at_least(f"the length of {self.name}", length, self.min_length)
        if self.max_length is not None and length > self.max_length:
            raise ValueError(f"the length of {self.name} is at most {self.max_length} {self.unit}, not {length}.")
        if beyond := (length - self.min_length) % self.step:
            below = length - beyond
            raise ValueError(
                f"{self.name} has no rows of length {length} ({self.unit}). "
                f"The nearest lengths are {below} and {below + self.step}."
            )

    def sequence_length(self, length: int) -> int:
        """The number of tokens in the longest row of this length."""
        self.check_length(length)
        return self.num_symbols(length) + 3  # BOS, SEP, EOS

    def row(self, length: int, rng: np.random.Generator, split: str = "train") -> Row:
        """One row: `input_ids` and `labels`, aligned with each other as Hugging Face models expect."""
        self.check_length(length)
        one_of("split", split, SPLITS)
        generate = self.generate_test if split == "test" and self.generate_test else self.generate
        question, answer = (self.encode(part) for part in generate(length, rng))
        if not self.interleaved:
            labels = [IGNORED] * (len(question) + 2) + [*answer, EOS]
            return {"input_ids": [BOS, *question, SEP, *answer, EOS], "labels": labels}
        context, queries = question[: -len(answer)], question[-len(answer) :]
        pairs = chain.from_iterable(zip(queries, answer, strict=True))
        labelled = chain.from_iterable((IGNORED, one) for one in answer)
        labels = [IGNORED] * (len(context) + 2) + [*labelled, IGNORED]
        return {"input_ids": [BOS, *context, SEP, *pairs, EOS], "labels": labels}

    def rows(self, count: int, lengths: Iterable[int], seed: int, split: str = "train") -> "Rows":
        """`count` rows, each of a length drawn uniformly from `lengths`."""
        at_least("count", count, 1)
        at_least("seed", seed, 0)
        one_of("split", split, SPLITS)
        chosen = tuple(lengths)
        for length in chosen:
            self.check_length(length)
        if not chosen:
            raise ValueError("give at least one length.")
        return Rows(self, count, chosen, seed, split)

    def encode(self, symbols: Symbols) -> list[int]:
        """Symbols as token ids."""
        ids = self._ids
        return [ids[symbol] for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> str:
        """Token ids, or labels without what they ignore, as text to read."""
        names = SPECIAL + self.symbols
        space = " " if any(len(symbol) > 1 for symbol in self.symbols) else ""
        return space.join(names[number] for number in ids if number not in (IGNORED, PAD))


@dataclass(frozen=True)
class Rows:
    """Rows by number. Row i depends on the task, lengths, seed, split and i, not on the rows read before it."""

    task: SyntheticTask
    count: int
    lengths: tuple[int, ...]
    seed: int
    split: str

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Row:
        if not -self.count <= index < self.count:
            raise IndexError(f"there is no row {index} among {self.count}.")
        key = [crc32(self.task.name.encode()), SPLITS.index(self.split), self.seed, int(index) % self.count]
        rng = np.random.default_rng(key)
        return self.task.row(self.lengths[rng.integers(len(self.lengths))], rng, self.split)
