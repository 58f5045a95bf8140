"""Training: recipes, and the wiring of Hugging Face's Trainer."""

from longfire.training.pretrain import pretrain
from longfire.training.recipes import RECIPES, Recipe, recipe_named

__all__ = ["RECIPES", "Recipe", "pretrain", "recipe_named"]
