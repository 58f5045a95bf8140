"""What is compared: encodings × seeds, trained short and tested long."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from longfire.data import Corpus, is_saved, load_corpus
from longfire.data.corpus import local_paths, single
from longfire.encodings import ENCODINGS
from longfire.encodings.labels import canonical_label, check_label, label_file_name, parse_label, run_folder
from longfire.encodings.registry import has_starts, option_names
from longfire.model.extension import STRETCHED
from longfire.training import Recipe
from longfire.validation import at_least

DEFAULT = ("fire", "alibi", "kerple_log", "rope", "nope")
MULTIPLES = (1, 2, 4, 8, 16)
SOURCE = "rope"
"""What RoPE-PI and YaRN are made of: this encoding's run of the same seed."""
STRETCH = 4
"""Times the training length: how far they are extended, unless a label says (`yarn:target_length=N`)."""
TUNING = 20
"""They are trained on at that length, for one step in so many, at a tenth of the learning rate."""


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
        object.__setattr__(self, "encodings", tuple(canonical_label(label) for label in self.encodings))
        seeds = [f"seed {seed}" for seed in self.seeds]
        for names in ([label_file_name(label) for label in self.encodings], seeds, [name for name, _ in self.also]):
            if twice := [name for name, times in Counter(names).items() if times > 1]:
                raise ValueError(f"{', '.join(twice)}: asked for more than once.")
        for seed in self.seeds:
            self.recipe.but(seed=seed)  # which refuses what is none
        for length in self.lengths:
            at_least("a length to test at", length, 2)
        if self.tokens is not None:
            at_least("tokens to test on", self.tokens, 1)
        if not self.encodings or not self.seeds:
            raise ValueError("give at least one encoding and one seed.")
        made = [label for label in self.encodings if is_extension(label)]
        if made and SOURCE not in self.encodings:
            raise ValueError(f"{made[0]} is made of the model with {SOURCE!r}, which is not asked for. Add {SOURCE}.")
        self._check_models()
        self._check_texts()

    def _check_models(self) -> None:
        """Refuse options that no model can have, and two labels of the same model."""
        known: dict[str, dict[str, Any]] = {}
        for label, _, recipe in islice(self.recipes(), len(self.encodings)):  # those of one seed
            built = recipe
            if recipe.extend_to is not None:  # of a model that is not there yet, whose length is known
                stretch = {"trained_length": self.recipe.length, "target_length": recipe.extend_to}
                options = {**recipe.encoding_options, **stretch}
                built = recipe.but(encoding_options=options, init_from=None, extend_to=None)
            try:
                built.config(1)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{label}: {error}") from error
            same = what_is_trained(recipe)
            if twin := next((other for other, trained in known.items() if trained == same), None):
                raise ValueError(
                    f"{twin} and {label} are the same model by the recipe {self.recipe.name}: "
                    f"{recipe.position_encoding()}. Leave one out{as_published(recipe)}."
                )
            known[label] = same

    def _check_texts(self) -> None:
        """Refuse another text that is, holds or lies within what is trained on."""
        trained = dict(self.corpus).get("source")
        for name, source in self.also:
            if overlap := "is" if source == single(trained) else _overlap(local_paths(source), local_paths(trained)):
                raise ValueError(
                    f"{name} ({source}), a text of --also, {overlap} what is trained on. Give a text of which nothing "
                    f"is, or leave it out: a part of the corpus itself is held out, and tested on anyway."
                )

    def tested_lengths(self) -> list[int]:
        """In order."""
        return sorted({*self.lengths}) or [self.recipe.length * multiple for multiple in MULTIPLES]

    def recipes(self) -> Iterator[tuple[str, int, Recipe]]:
        """Label, seed and recipe of every run; all encodings of a seed before the next seed."""
        for seed in self.seeds:
            for label in self.encodings:
                if is_extension(label):
                    name, _, options = parse_label(label)
                    yield label, seed, self._extension(name, seed, options)
                    continue
                yield label, seed, self.recipe.with_encoding(label, seed=seed)

    def _extension(self, name: str, seed: int, options: dict[str, Any]) -> Recipe:
        """As many tokens in a step as before, in longer sequences. What it goes on from lies beside it."""
        recipe = self.recipe
        target = options.pop("target_length", STRETCH * recipe.length)
        at_least("target_length", target, 1)
        steps = max(1, recipe.steps // TUNING)
        return recipe.but(
            encoding=name,
            encoding_options={**recipe.encoding_options, **options},
            seed=seed,
            init_from=str(self.folder(Path(), SOURCE, seed)),
            extend_to=target,
            length=target,
            batch_size=max(1, recipe.batch_size * recipe.length // target),
            steps=steps,
            learning_rate=recipe.learning_rate / 10,
            warmup_steps=steps // 10,
            decay_steps=None,
            min_lr_ratio=1.0,
        )

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
        return run_folder(out / "runs", label, seed)


def is_extension(label: str) -> bool:
    """Whether it is made of a model with RoPE, and not trained from scratch (with a `trained_length` of its own)."""
    name, _, options = parse_label(label)
    return name in STRETCHED and "trained_length" not in options


def _overlap(others: Sequence[Path], trained: Sequence[Path]) -> str | None:
    """How some paths lie to those that are trained on, wherever links lead; None if they have nothing in common."""
    for other, own in ((other.resolve(), own.resolve()) for other in others for own in trained):
        if other.is_relative_to(own):
            return "is" if other == own else "lies within"
        if own.is_relative_to(other):
            return "holds"
    return None


def what_is_trained(recipe: Recipe) -> dict[str, Any]:
    """The same for recipes by which the same is trained: with the encoding's options as they come out."""
    options = {name: option.default for name, option in option_names(ENCODINGS[recipe.encoding]).items()}
    same = {key: value for key, value in recipe.identity().items() if key != "encoding_options"}
    return {**same, "position_encoding": {**options, **recipe.position_encoding()}}


def as_published(recipe: Recipe) -> str:
    """How to have FIRE as in the paper, where the recipe has it otherwise."""
    own = has_starts(ENCODINGS[recipe.encoding])
    changed = [f"{name}=None" for name in ("horizon", "init") if own and getattr(recipe, name) is not None]
    return f"; for FIRE as published add --set {' '.join(changed)}" if changed else ""
