"""How large a reproduction is: the paper's (a cluster), small (one GPU), smoke (a laptop, two minutes)."""

from dataclasses import dataclass, field
from typing import Any

from longfire.lab.downstream.questions import Trial
from longfire.tasks.placeholder import PLACEHOLDER
from longfire.training import FINETUNE_RECIPES, RECIPES, FinetuneRecipe, Recipe
from longfire.validation import hint


@dataclass(frozen=True)
class Scale:
    """What stands for the paper's recipes, and how it is tested."""

    name: str
    recipes: dict[str, Recipe]
    """By the name of the paper's."""
    seeds: tuple[int, ...]
    multiples: tuple[float, ...]
    """Of the training length, to test at."""
    corpus: str | None
    """None: the embedded one. Empty: it must be given."""
    validation: str | None = None
    """Text to test on, unless given with the corpus. None: a part of that."""
    also: tuple[tuple[str, str], ...] = ()
    """Other texts to test on, where an entry asks for them."""
    tokens: int | None = None
    """To test on at each length. None: all."""
    finetuning: dict[str, FinetuneRecipe] = field(default_factory=lambda: FINETUNE_RECIPES)
    """By suite."""
    questions: int | None = None
    """To test on, of a task. None: all."""
    data: str | None = None
    """Of tasks' rows, unless given. None: they must be given."""
    select: str = "dev"
    """Which model of a fine-tuning run is tested."""
    trial: Trial | None = None
    """How short fine-tuning and tests on tasks are, if they are a trial."""


PAPERS = {name: RECIPES[name] for name in ("base", "large", "base-512")}


def in_place_of_the_papers(recipe: Recipe, **large: Any) -> dict[str, Recipe]:
    """For base models this recipe; for large ones with these changes; for those trained at 512 a quarter as long."""
    return {
        "base": recipe,
        "large": recipe.but(name=f"{recipe.name}-large", **large),
        "base-512": recipe.but(name=f"{recipe.name}-{recipe.length // 4}", length=recipe.length // 4),
    }


SMALL = RECIPES["small"].but(init=None, horizon=None, steps=800)
"""FIRE as published; encodings learn at ten times the model's rate."""
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
            in_place_of_the_papers(SMALL, size="base", learning_rate=6e-4),
            seeds=(0, 1, 2),
            multiples=(1, 2, 4, 8, 16),
            corpus="",
            finetuning={suite: FINETUNE_RECIPES[f"{suite}-small"] for suite in ("scrolls", "glue")},
        ),
        Scale(
            "smoke",
            in_place_of_the_papers(SMOKE, size="tiny", learning_rate=2e-3, steps=40),
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
    """A scale, or an error that says which there are."""
    if name not in SCALES:
        raise ValueError(f"there is no scale named {name!r}. {hint(name, SCALES)}")
    return SCALES[name]
