"""A comparison as requested: encodings × seeds, trained short and tested long. Checked without reading any text."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longfire.data.corpus import local_paths, single
from longfire.encodings import ENCODINGS
from longfire.encodings.labels import canonical_label, check_label, label_file_name, parse_label, run_folder
from longfire.encodings.registry import has_starts, option_names
from longfire.lab import DEFAULT_ENCODINGS, DEFAULT_SEEDS
from longfire.model.extension import EXTENSIONS
from longfire.training import Recipe
from longfire.validation import at_least

MULTIPLES = (1, 2, 4, 8, 16)
"""Default test lengths, as multiples of the training length."""
EXTENSION_SOURCE = "rope"
"""RoPE-PI and YaRN extend the model that this encoding trained with the same seed."""
EXTENSION_FACTOR = 4
"""How far they extend it, unless the label says (`yarn:target_length=N`)."""
EXTENSION_STEPS = 20
"""They are tuned at the new length for one step in so many, at a tenth of the learning rate."""


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One encoding with one seed."""

    label: str
    seed: int
    recipe: Recipe
    folder: Path
    identity: dict[str, Any] | None = None
    """What makes two runs the same. None: not computed, or an extension whose source is not trained yet."""

    @property
    def is_extension(self) -> bool:
        """Whether it extends another run's model."""
        return self.recipe.extend_to is not None


@dataclass(frozen=True)
class Comparison:
    """What to compare. Creating one checks everything that can be checked without the text."""

    recipe: Recipe
    encodings: tuple[str, ...] = DEFAULT_ENCODINGS
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    lengths: tuple[int, ...] = ()
    """Test lengths. Empty: 1, 2, 4, 8 and 16 times the training length."""
    protocol: str = "paper"
    tokens: int | None = None
    """Tokens to score at each length. None: the whole split."""
    split: str = "validation"
    """"validation", or "dev" while tuning."""
    corpus: tuple[tuple[str, Any], ...] = ()
    """Options of `longfire.data.load_corpus`."""
    also: tuple[tuple[str, str], ...] = ()
    """Names and sources of other texts to test on, in full."""

    def __post_init__(self) -> None:
        for label in self.encodings:
            check_label(label)
        object.__setattr__(self, "encodings", tuple(map(canonical_label, self.encodings)))
        if not self.encodings or not self.seeds:
            raise ValueError("give at least one encoding and one seed.")
        seeds = [f"seed {seed}" for seed in self.seeds]
        for names in (map(label_file_name, self.encodings), seeds, [name for name, _ in self.also]):
            if repeated := [name for name, times in Counter(names).items() if times > 1]:
                raise ValueError(f"{', '.join(repeated)}: given more than once.")
        for length in self.lengths:
            at_least("a test length", length, 2)
        if self.tokens is not None:
            at_least("tokens to test on", self.tokens, 1)
        self._check_models()
        self._check_texts()

    def _check_models(self) -> None:
        """Refuse options that no model can have, and two labels of the same model."""
        runs = self.runs()
        for run in runs:
            if run.is_extension and EXTENSION_SOURCE not in self.encodings:
                raise ValueError(f"{run.label} extends the model of {EXTENSION_SOURCE}: add {EXTENSION_SOURCE} too.")
        known: dict[str, dict[str, Any]] = {}
        for run in runs[: len(self.encodings)]:  # the first seed's
            recipe = run.recipe
            try:
                _without_source(recipe, self.recipe.length).config(1)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{run.label}: {error}") from error
            model = _effective_identity(recipe)
            if twin := next((label for label, other in known.items() if other == model), None):
                raise ValueError(
                    f"{twin} and {run.label} are the same model in the recipe {self.recipe.name}: "
                    f"{recipe.position_encoding()}. Leave one out{_published_hint(recipe)}."
                )
            known[run.label] = model

    def _check_texts(self) -> None:
        """Refuse another text that is not there, or that is, contains or lies within the training text."""
        trained = dict(self.corpus).get("source")
        for name, source in self.also:
            try:
                paths = local_paths(source)
            except (ValueError, OSError) as error:
                raise ValueError(f"--also {name}={source}: {error}") from error
            if overlap := "is" if source == single(trained) else _overlap(paths, local_paths(trained)):
                raise ValueError(
                    f"--also {name}={source}: this {overlap} the training text. Give a text that is not trained on, or "
                    f"leave it out: the held-out part of the corpus is tested on anyway."
                )

    def tested_lengths(self) -> list[int]:
        """Test lengths, shortest first."""
        return sorted({*self.lengths}) or [self.recipe.length * multiple for multiple in MULTIPLES]

    def runs(self, out: Path = Path()) -> list[PlannedRun]:
        """Every run with its recipe and its folder in `out`; all encodings of a seed before the next seed."""
        return [
            PlannedRun(label, seed, self._recipe(label, seed, out), run_folder(out / "runs", label, seed))
            for seed in self.seeds
            for label in self.encodings
        ]

    def recipes(self) -> list[tuple[str, int, Recipe]]:
        """An older name for `runs`, until the next release."""
        warnings.warn("Comparison.recipes() is now runs(); the next release drops it.", FutureWarning, stacklevel=2)
        return [(run.label, run.seed, run.recipe) for run in self.runs()]

    def _recipe(self, label: str, seed: int, out: Path) -> Recipe:
        name, _, options = parse_label(label)
        if name not in EXTENSIONS or "trained_length" in options:
            return self.recipe.with_encoding(label, seed=seed)
        recipe = self.recipe
        target = options.pop("target_length", EXTENSION_FACTOR * recipe.length)
        at_least("target_length", target, 1)
        steps = max(1, recipe.steps // EXTENSION_STEPS)
        return recipe.but(
            encoding=name,
            encoding_options={**recipe.encoding_options, **options},
            seed=seed,
            init_from=str(run_folder(out / "runs", EXTENSION_SOURCE, seed)),
            extend_to=target,
            length=target,
            batch_size=max(1, recipe.batch_size * recipe.length // target),  # as many tokens per step as before
            steps=steps,
            learning_rate=recipe.learning_rate / 10,
            warmup_steps=steps // 10,
            decay_steps=None,
            min_lr_ratio=1.0,
        )


def _without_source(recipe: Recipe, trained_length: int) -> Recipe:
    """A recipe that can be checked before the model it extends exists."""
    if recipe.extend_to is None:
        return recipe
    stretch = {"trained_length": trained_length, "target_length": recipe.extend_to}
    return recipe.but(encoding_options={**recipe.encoding_options, **stretch}, init_from=None, extend_to=None)


def _overlap(others: Sequence[Path], trained: Sequence[Path]) -> str | None:
    """How paths relate to those that are trained on, with links resolved; None if they are disjoint."""
    for other, own in ((other.resolve(), own.resolve()) for other in others for own in trained):
        if other.is_relative_to(own):
            return "is" if other == own else "lies within"
        if own.is_relative_to(other):
            return "contains"
    return None


def _effective_identity(recipe: Recipe) -> dict[str, Any]:
    """Equal for recipes that train the same model, whether an option is given or left at its default."""
    defaults = {name: option.default for name, option in option_names(ENCODINGS[recipe.encoding]).items()}
    same = {key: value for key, value in recipe.identity().items() if key != "encoding_options"}
    return {**same, "position_encoding": {**defaults, **recipe.position_encoding()}}


def _published_hint(recipe: Recipe) -> str:
    """How to get FIRE as in the paper, where the recipe changes it."""
    own = has_starts(ENCODINGS[recipe.encoding])
    changed = [f"{name}=None" for name in ("horizon", "init") if own and getattr(recipe, name) is not None]
    return f"; for FIRE as published add --set {' '.join(changed)}" if changed else ""
