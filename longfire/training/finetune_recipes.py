"""How to fine-tune: the paper's two recipes (Li et al. 2024, appendix), smaller ones, and one for tests.

The paper states a learning rate of 1e-5 and no schedule: it is taken as constant after a short warm-up.
"""

from dataclasses import dataclass

from longfire.training.recipes import AnyRecipe, accept_old_names
from longfire.validation import at_least, hint


@accept_old_names
@dataclass(frozen=True)
class FinetuneRecipe(AnyRecipe):
    """Fine-tuning. Rows have a length of their own each; `length` is the most."""

    min_lr_ratio: float = 1.0
    """The share of the learning rate that is left at the end of `decay_steps`. 1: it stays as it is."""
    position_lr_factor: float = 1.0
    """What the learning rate of the encoding's own parameters is multiplied by: in a checkpoint they have learned."""
    dropout: float = 0.1
    attention_dropout: float = 0.1
    evaluate_every: int = 1000
    """Steps after which the model is judged, and kept if it is the best so far."""

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
"""By name."""


def finetune_recipe_named(name: str) -> FinetuneRecipe:
    """A recipe, or an error that says which there are."""
    if name not in FINETUNE_RECIPES:
        raise ValueError(f"there is no fine-tuning recipe named {name!r}. {hint(name, FINETUNE_RECIPES)}")
    return FINETUNE_RECIPES[name]
