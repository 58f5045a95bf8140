"""Training: recipes, and the wiring of Hugging Face's Trainer."""

from longfire.training.finetune import finetune
from longfire.training.finetune_recipes import FINETUNE_RECIPES, FinetuneRecipe, finetune_recipe_named
from longfire.training.pretrain import pretrain
from longfire.training.recipes import RECIPES, Recipe, recipe_named

__all__ = [
    "FINETUNE_RECIPES",
    "RECIPES",
    "FinetuneRecipe",
    "Recipe",
    "finetune",
    "finetune_recipe_named",
    "pretrain",
    "recipe_named",
]
