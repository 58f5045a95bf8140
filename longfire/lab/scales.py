"""Scales of a reproduction: smoke (two minutes on a laptop), small (one GPU) and paper (a cluster)."""

from dataclasses import dataclass, field
from typing import Any

from longfire.lab.downstream.questions import Trial
from longfire.tasks.placeholder import PLACEHOLDER
from longfire.training import FINETUNE_RECIPES, RECIPES, FinetuneRecipe, Recipe
from longfire.validation import hint


@dataclass(frozen=True)
class Scale:
    """Replacements for the paper's recipes, and how models are tested."""

    name: str
    recipes: dict[str, Recipe]
    """Keyed by the name of the paper's recipe."""
    seeds: tuple[int, ...]
    multiples: tuple[float, ...]
    """Test lengths, as multiples of the training length."""
    corpus: str | None
    """Default corpus. None: the Python standard library. Empty: the user must pass one."""
    validation: str | None = None
    """Text to test on, for the default corpus. None: a held-out part of it."""
    also: tuple[tuple[str, str], ...] = ()
    """Default of `--also`, for entries that test on other texts."""
    tokens: int | None = None
    """Tokens to score at each length. None: all."""
    finetuning: dict[str, FinetuneRecipe] = field(default_factory=lambda: FINETUNE_RECIPES)
    """Keyed by suite."""
    questions: int | None = None
    """Test questions per task. None: all."""
    data: str | None = None
    """Default of `--data`."""
    select: str = "dev"
    """Which checkpoint of a fine-tuning run to test."""
    trial: Trial | None = None
    """Limits of a quick trial on tasks."""


PAPERS = {name: RECIPES[name] for name in ("base", "large", "base-512")}


def scaled_down(recipe: Recipe, **large: Any) -> dict[str, Recipe]:
    """Replacements for the paper's base, large and base-512: this recipe, a larger model, a quarter of the length."""
    return {
        "base": recipe,
        "large": recipe.but(name=f"{recipe.name}-large", **large),
        "base-512": recipe.but(name=f"{recipe.name}-{recipe.length // 4}", length=recipe.length // 4),
    }


SMALL = RECIPES["small"].but(init=None, horizon=None, steps=800)
"""FIRE as published."""
SMOKE_TASKS = FINETUNE_RECIPES["tiny"].but(length=512, batch_size=2, steps=2, evaluate_every=2, checkpoint_every=2)
SMOKE = RECIPES["tiny"].but(init=None, horizon=None, steps=60, batch_size=16, checkpoint_every=20)

SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "paper",
            PAPERS,
            seeds=(0,),
            multiples=(0.25, 0.5, 1, 2, 4),
            corpus="hub:c4",
            validation="hub:c4@validation",
            also=(("arxiv", "hub:arxiv@validation"), ("github", "hub:github-validation")),
            data="hub",
            select="validation",
        ),
        Scale(
            "small",
            scaled_down(SMALL, size="base", learning_rate=6e-4),
            seeds=(0, 1, 2),
            multiples=(1, 2, 4, 8, 16),
            corpus="",
            finetuning={suite: FINETUNE_RECIPES[f"{suite}-small"] for suite in ("scrolls", "glue")},
        ),
        Scale(
            "smoke",
            scaled_down(SMOKE, size="tiny", learning_rate=2e-3, steps=40),
            seeds=(0,),
            multiples=(1, 2, 4, 8, 16),
            corpus=None,
            tokens=8192,
            finetuning=dict.fromkeys(("scrolls", "glue"), SMOKE_TASKS),
            questions=2,
            data=PLACEHOLDER,
            trial=Trial(rows=256, max_answer=16),
        ),
    )
}


def scale_named(name: str) -> Scale:
    """Look up a scale; refuse an unknown name with a suggestion."""
    if name not in SCALES:
        raise ValueError(f"there is no scale named {name!r}. {hint(name, SCALES)}")
    return SCALES[name]
