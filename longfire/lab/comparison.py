"""What is compared: encodings × seeds, trained short and tested long."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longfire.data import Corpus, is_saved, load_corpus
from longfire.errors import at_least
from longfire.lab.labels import check_label, file_name, read_label
from longfire.training import Recipe

DEFAULT = ("fire", "alibi", "kerple_log", "rope", "nope")
MULTIPLES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    recipe: Recipe
    encodings: tuple[str, ...] = DEFAULT
    seeds: tuple[int, ...] = (0, 1, 2)
    lengths: tuple[int, ...] = ()
    """To test at. Empty: 1, 2, 4, 8 and 16 times the training length."""
    protocol: str = "paper"
    tokens: int | None = None
    """To test on at each length. None: all of the validation split."""
    split: str = "validation"
    """Or "dev", for whatever is tuned."""
    corpus: tuple[tuple[str, Any], ...] = ()
    """Options of `longfire.data.load_corpus`."""
    also: tuple[tuple[str, str], ...] = ()
    """Names and paths of other texts to test on, all of each: no run was trained on them."""

    def __post_init__(self) -> None:
        for label in self.encodings:
            check_label(label)
        folders = Counter(file_name(label) for label in self.encodings)
        if twice := [name for name, times in folders.items() if times > 1]:
            raise ValueError(f"{', '.join(twice)}: asked for more than once.")
        for seed in self.seeds:
            at_least("a seed", seed, 0)
        if not self.encodings or not self.seeds:
            raise ValueError("give at least one encoding and one seed.")

    def tested_lengths(self) -> list[int]:
        """In order."""
        return sorted(self.lengths) or [self.recipe.length * multiple for multiple in MULTIPLES]

    def recipes(self) -> Iterator[tuple[str, int, Recipe]]:
        """Label, seed and recipe of every run; all encodings of a seed before the next seed."""
        for seed in self.seeds:
            for label in self.encodings:
                name, shared, options = read_label(label)
                changes = {"encoding": name, "share": shared or self.recipe.share, "seed": seed}
                if options:
                    changes["encoding_options"] = {**self.recipe.encoding_options, **options}
                yield label, seed, self.recipe.but(**changes)

    def load_corpus(self, progress: bool = False) -> Corpus:
        """The text, from the cache where it is there."""
        options = dict(self.corpus)
        source = options.pop("source", None)
        if "tokenizer" not in options and not is_saved(source):
            options["tokenizer"] = self.recipe.tokenizer
            options["vocab_size"] = self.recipe.vocab_size if self.recipe.tokenizer == "bpe" else None
        return load_corpus(source, progress=progress, **options)

    def folder(self, out: Path, label: str, seed: int) -> Path:
        """Of a run."""
        return out / "runs" / f"{file_name(label)}-{seed}"
