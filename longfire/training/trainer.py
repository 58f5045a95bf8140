"""Hugging Face's Trainer with the recipe's optimiser and schedule. Everything else is its own."""

from typing import Any, Generic, TypeVar

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import RandomSampler
from transformers import Trainer

from longfire.encodings import parameter_groups
from longfire.training.recipes import AnyRecipe, Recipe

R = TypeVar("R", bound=AnyRecipe)


class RecipeTrainer(Trainer, Generic[R]):
    """AdamW in three groups: matrices, which decay; vectors; and the encoding's own parameters, at their own rate."""

    last_step_is_done = False
    """Whether what is resumed from is the checkpoint after the last step."""

    def __init__(self, recipe: R, **options: Any) -> None:
        self.recipe = recipe
        super().__init__(**options)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Called by Trainer, which would train one more step of an epoch that had not ended at the last one."""
        epochs, *others = super().set_initial_training_values(args, dataloader)
        return (0 if self.last_step_is_done else epochs, *others)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Whole when this returns, on all processes: it is then marked.

        Old ones are not deleted here, where the Trainer would go by the clock, but once this one is marked.
        """
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        super()._save_checkpoint(*arguments, **options)
        self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Weights that are one are written once; gathered from shards, they no longer look it."""
        if state_dict is not None:
            tied = getattr(self.model, "all_tied_weights_keys", {})
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Called by Trainer."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            recipe = self.recipe
            groups = parameter_groups(
                trained,
                lr=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                position_lr=recipe.learning_rate * recipe.position_lr_factor,
            )
            fused = all(p.device.type in ("cuda", "cpu") for group in groups for p in group["params"])
            self.optimizer = torch.optim.AdamW(groups, betas=recipe.betas, eps=1e-8, fused=fused)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Called by Trainer."""
        if self.lr_scheduler is None:
            scheduled: Any = optimizer or self.optimizer
            self.lr_scheduler = LambdaLR(scheduled, self.recipe.rate)
        return self.lr_scheduler


class PretrainTrainer(RecipeTrainer[Recipe]):
    """For sequences of one length."""

    def _get_train_sampler(self, train_dataset: Any = None) -> RandomSampler:
        """Whole steps in every epoch: what is left over would be one of its own where batches are accumulated."""
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        return RandomSampler(dataset, num_samples=len(dataset) // self.recipe.batch_size * self.recipe.batch_size)
