"""A requested comparison (encodings × seeds, trained short and tested long), checked without reading any text."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longfire.data.corpus import local_paths, single
from longfire.encodings import ENCODINGS
from longfire.encodings.labels import (
    canonical_label,
    check_label,
    label_file_name,
    label_title,
    parse_label,
    run_folder,
)
from longfire.encodings.positions import check_range
from longfire.encodings.registry import has_starts, option_names
from longfire.lab import DEFAULT_ENCODINGS, DEFAULT_SEEDS
from longfire.model.extension import EXTENSIONS
from longfire.tasks.synthetic import SyntheticTask, synthetic_task
from longfire.training import Recipe
from longfire.validation import at_least

MULTIPLES = (1, 2, 4, 8, 16)
"""Default test lengths on text, as multiples of the training length."""
TASK_MULTIPLES = (1, 1.5, 2, 3, 4)
"""Default test lengths on a synthetic task."""
EXTENSION_SOURCE = "rope"
"""RoPE-PI and YaRN extend this encoding's model of the same seed."""
EXTENSION_FACTOR = 4
"""Default target length, as a multiple of the training length (`yarn:target_length=N` overrides it)."""
EXTENSION_STEPS = 20
"""An extension is tuned for 1/20 of the training steps, at a tenth of the learning rate."""


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One encoding with one seed."""

    label: str
    seed: int
    recipe: Recipe
    folder: Path
    identity: dict[str, Any] | None = None
    """Equal for runs that train the same model. None: not computed, or an extension of a model not trained yet."""

    @property
    def title(self) -> str:
        """The encoding's display name, which tells how FIRE differs from the paper's."""
        encoding, trained = self.recipe.position_encoding(), self.recipe.sequence_length
        return label_title(self.label, init=self.recipe.init, horizon=encoding.get("horizon"), trained=trained)

    @property
    def is_extension(self) -> bool:
        """Whether the run extends another run's model."""
        return self.recipe.extend_to is not None


@dataclass(frozen=True)
class Comparison:
    """What to compare. The constructor checks everything that can be checked without the text."""

    recipe: Recipe
    encodings: tuple[str, ...] = DEFAULT_ENCODINGS
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    lengths: tuple[int, ...] = ()
    """Test lengths. Empty: multiples of the training length, up to 16 on text and up to 4 on a synthetic task."""
    protocol: str = "paper"
    tokens: int | None = None
    """Tokens to score at each length. None: the whole split."""
    questions: int = 512
    """Questions to score at each length, if the recipe has a synthetic task."""
    split: str = "validation"
    """"validation", or "dev" for tuning."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `longfire.data.load_corpus`."""
    also: tuple[tuple[str, str], ...] = ()
    """Names and sources of other texts to test on; all splits are used."""

    def __post_init__(self) -> None:
        for label in self.encodings:
            check_label(label)
        object.__setattr__(self, "encodings", tuple(map(canonical_label, self.encodings)))
        object.__setattr__(self, "corpus", dict(self.corpus))  # pairs of name and value will do
        if not self.encodings or not self.seeds:
            raise ValueError("a comparison needs at least one encoding and one seed.")
        seeds = [f"seed {seed}" for seed in self.seeds]
        for names in (map(label_file_name, self.encodings), seeds, [name for name, _ in self.also]):
            if repeated := [name for name, times in Counter(names).items() if times > 1]:
                raise ValueError(f"{', '.join(repeated)}: listed more than once.")
        for length in self.lengths:
            at_least("a test length", length, 1 if self.task else 2)
        if self.tokens is not None:
            at_least("tokens to test on", self.tokens, 1)
        at_least("questions", self.questions, 1)
        self._check_task()
        if self.recipe.random_positions is not None:
            check_range(max(map(self.tokens_at, self.tested_lengths())), self.recipe.random_positions)
        self._check_models()
        self._check_texts()

    @property
    def task(self) -> SyntheticTask | None:
        """The synthetic task to compare on. None: text."""
        return None if self.recipe.task is None else synthetic_task(self.recipe.task)

    def _check_task(self) -> None:
        """With a synthetic task, refuse its impossible lengths, and options that only text has."""
        if self.task is None:
            return
        for length in self.lengths:
            self.task.check_length(length)
        text_only = {"corpus": self.corpus, "also": self.also, "tokens": self.tokens}
        if unusable := [name for name, value in text_only.items() if value]:
            raise ValueError(f"the task {self.task.name} generates its data, without text: omit {', '.join(unusable)}.")
        if extensions := [label for label in self.encodings if parse_label(label)[0] in EXTENSIONS]:
            raise ValueError(f"{', '.join(extensions)}: extensions of RoPE are compared on text only. Leave them out.")

    def _check_models(self) -> None:
        """Refuse invalid options, and two labels for the same model."""
        runs = self.runs()
        for run in runs:
            if run.is_extension and EXTENSION_SOURCE not in self.encodings:
                raise ValueError(f"{run.label} extends the {EXTENSION_SOURCE} model: compare {EXTENSION_SOURCE} too.")
        models: dict[str, dict[str, Any]] = {}
        for run in runs[: len(self.encodings)]:  # the first seed's
            recipe = run.recipe
            try:
                _without_source(recipe, self.recipe.length).config(1)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{run.label}: {error}") from error
            model = _effective_identity(recipe)
            if twin := next((label for label, other in models.items() if other == model), None):
                raise ValueError(
                    f"{twin} and {run.label} are the same model in the recipe {self.recipe.name}: "
                    f"{recipe.position_encoding()}. Leave one out{_published_hint(recipe)}."
                )
            models[run.label] = model

    def _check_texts(self) -> None:
        """Refuse other texts that are missing or overlap with the training text."""
        training_source = self.corpus.get("source")
        for name, source in self.also:
            try:
                paths = local_paths(source)
            except (ValueError, OSError) as error:
                raise ValueError(f"--also {name}={source}: {error}") from error
            if overlap := "is" if source == single(training_source) else _overlap(paths, local_paths(training_source)):
                raise ValueError(
                    f"--also {name}={source}: this {overlap} the training text. Pass a text that is not trained on, or "
                    f"drop --also: the held-out part of the corpus is always tested."
                )

    def tested_lengths(self) -> list[int]:
        """Test lengths, shortest first."""
        if self.lengths:
            return sorted({*self.lengths})
        if self.task is None:
            return [self.recipe.length * multiple for multiple in MULTIPLES]
        return sorted({self.task.nearest_length(self.recipe.length * multiple) for multiple in TASK_MULTIPLES})

    def tokens_at(self, length: int) -> int:
        """Tokens in a sequence of a test length."""
        return length if self.task is None else self.task.sequence_length(length)

    def runs(self, out: Path = Path()) -> list[PlannedRun]:
        """Every run with its recipe and folder, seed by seed."""
        return [
            PlannedRun(label, seed, self._recipe(label, seed, out), run_folder(out / "runs", label, seed))
            for seed in self.seeds
            for label in self.encodings
        ]

    def recipes(self) -> list[tuple[str, int, Recipe]]:
        """Deprecated name for `runs`, dropped in the next release."""
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
            batch_size=max(1, recipe.batch_size * recipe.length // target),  # the same tokens per step
            steps=steps,
            learning_rate=recipe.learning_rate / 10,
            warmup_steps=steps // 10,
            decay_steps=None,
            min_lr_ratio=1.0,
        )


def _without_source(recipe: Recipe, trained_length: int) -> Recipe:
    """The recipe in a form that can be checked before the model it extends exists."""
    if recipe.extend_to is None:
        return recipe
    extension = {"trained_length": trained_length, "target_length": recipe.extend_to}
    return recipe.but(encoding_options={**recipe.encoding_options, **extension}, init_from=None, extend_to=None)


def _overlap(others: Sequence[Path], training: Sequence[Path]) -> str | None:
    """How paths overlap with the training paths, with links resolved; None if they are disjoint."""
    for other, trained in ((other.resolve(), trained.resolve()) for other in others for trained in training):
        if other.is_relative_to(trained):
            return "is" if other == trained else "lies within"
        if trained.is_relative_to(other):
            return "contains"
    return None


def _effective_identity(recipe: Recipe) -> dict[str, Any]:
    """Equal for recipes that train the same model, whether options are explicit or left at their defaults."""
    defaults = {name: option.default for name, option in option_names(ENCODINGS[recipe.encoding]).items()}
    identity = {key: value for key, value in recipe.identity().items() if key != "encoding_options"}
    return {**identity, "position_encoding": {**defaults, **recipe.position_encoding()}}


def _published_hint(recipe: Recipe) -> str:
    """How to get the paper's FIRE if the recipe changes it."""
    is_fire = has_starts(ENCODINGS[recipe.encoding])
    changed = [f"{name}=None" for name in ("horizon", "init") if is_fire and getattr(recipe, name) is not None]
    return f"; for FIRE as published, add --set {' '.join(changed)}" if changed else ""
