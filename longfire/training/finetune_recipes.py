"""Recipes for fine-tuning: the paper's two (Li et al. 2024, appendix), smaller ones, and one for tests.

The paper states a learning rate of 1e-5 and no schedule; here it is constant after a short warm-up.
"""

from dataclasses import dataclass

from longfire.training.base_recipe import BaseRecipe, accept_old_names
from longfire.validation import at_least, hint


@accept_old_names
@dataclass(frozen=True)
class FinetuneRecipe(BaseRecipe):
    """Fine-tuning. Rows may be shorter than `length`."""

    min_lr_ratio: float = 1.0
    """The learning rate after decay, as a fraction of the peak. 1: constant."""
    position_lr_factor: float = 1.0
    """Multiplies the learning rate of the encoding's parameters, which a checkpoint has already learned."""
    dropout: float = 0.1
    attention_dropout: float = 0.1
    evaluate_every: int = 1000
    """Steps between evaluations; the best model is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("evaluate_every", self.evaluate_every, 1)


SCROLLS = FinetuneRecipe("scrolls", length=8192, batch_size=128, steps=25_000, learning_rate=1e-5)
GLUE = FinetuneRecipe("glue", length=1024, batch_size=256, steps=25_000, learning_rate=1e-5)
SCROLLS_SMALL = FinetuneRecipe(
    "scrolls-small",
    length=2048,
    batch_size=32,
    steps=300,
    learning_rate=1e-4,
    warmup_steps=30,
    min_lr_ratio=0.1,
    evaluate_every=100,
    checkpoint_every=100,
)
GLUE_SMALL = FinetuneRecipe(
    "glue-small",
    length=512,
    batch_size=128,
    steps=1500,
    learning_rate=2e-4,
    min_lr_ratio=0.1,
    evaluate_every=250,
    checkpoint_every=500,
)
TINY = FinetuneRecipe(
    "tiny",
    length=128,
    batch_size=8,
    steps=30,
    learning_rate=2e-3,
    warmup_steps=5,
    min_lr_ratio=0.1,
    dropout=0.0,
    attention_dropout=0.0,
    evaluate_every=10,
    checkpoint_every=10,
)

FINETUNE_RECIPES: dict[str, FinetuneRecipe] = {
    recipe.name: recipe for recipe in (SCROLLS, GLUE, SCROLLS_SMALL, GLUE_SMALL, TINY)
}


def finetune_recipe_named(name: str) -> FinetuneRecipe:
    """Look up a fine-tuning recipe by name."""
    if name not in FINETUNE_RECIPES:
        raise ValueError(f"there is no fine-tuning recipe named {name!r}. {hint(name, FINETUNE_RECIPES)}")
    return FINETUNE_RECIPES[name]
