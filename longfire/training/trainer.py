"""Hugging Face's Trainer with a recipe's optimiser, schedule and batches."""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import RandomSampler, Sampler
from transformers import Trainer, TrainingArguments

from longfire.encodings import parameter_groups
from longfire.training.base_recipe import BaseRecipe
from longfire.training.callbacks import LOSSES, TrainingMonitor, read_losses
from longfire.validation import at_least, one_of

R = TypeVar("R", bound=BaseRecipe)

TOKENS_PER_DEVICE = {"cuda": 65536, "cpu": 8192}
"""Default tokens per forward pass."""
SHARDED: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": ["LongfireLayer"],
        "state_dict_type": "FULL_STATE_DICT",
    },
}
"""TrainingArguments that shard a model over all processes (FSDP2)."""
TRACKERS = ("tensorboard", "wandb", "trackio", "none")


class RecipeTrainer(Trainer, Generic[R]):
    """AdamW with three parameter groups: matrices, with decay; vectors; and the encoding, at its own learning rate."""

    last_step_is_done = False
    """Set when resuming from the checkpoint after the last step."""

    def __init__(self, recipe: R, monitor: TrainingMonitor, *, callbacks: list[Any], **options: Any) -> None:
        self.recipe, self.monitor = recipe, monitor
        super().__init__(callbacks=[monitor, *callbacks], **options)

    def save_result(self, folder: Path) -> dict[str, Any]:
        """Save the trained model; called on all processes. Returns more entries for done.json."""
        raise NotImplementedError

    def training_summary(self) -> dict[str, Any]:
        """Recipe, parameters, speed and final loss, for done.json."""
        file = self.monitor.run / LOSSES
        losses = read_losses(file) if file.exists() else []  # there is none without steps
        model: Any = self.model
        return {
            "recipe": asdict(self.recipe),
            "parameters": sum(p.numel() for p in model.parameters()),
            "tokens/s": losses[-1]["tokens/s"] if losses else None,
            "final_loss": losses[-1]["loss"] if losses else None,
        }

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Called by Trainer. Trains no epoch after the last step: mid-epoch, Trainer would take one more step."""
        epochs, *others = super().set_initial_training_values(args, dataloader)
        return (0 if self.last_step_is_done else epochs, *others)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Wait for all processes, so that the checkpoint is complete and can be marked.

        Old ones are deleted after that, by step; Trainer would go by the clock.
        """
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        super()._save_checkpoint(*arguments, **options)
        self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write tied weights once: gathered from shards, they no longer look tied."""
        if state_dict is not None:
            tied = getattr(self.model, "all_tied_weights_keys", {})
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """Called by Trainer. Only whole steps per epoch: with gradient accumulation, the rest would be one more."""
        rows, size = cast(Any, self.train_dataset), self.recipe.batch_size
        return RandomSampler(rows, num_samples=max(1, len(rows) // size * size))

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
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
        if self.lr_scheduler is None:
            scheduled: Any = optimizer or self.optimizer
            self.lr_scheduler = LambdaLR(scheduled, self.recipe.lr_ratio)
        return self.lr_scheduler


def training_arguments(
    recipe: BaseRecipe,
    run: Path,
    tracker: str,
    options: dict[str, Any],
    longest: int | None = None,
    ranks_per_row: int = 1,
) -> TrainingArguments:
    """TrainingArguments with the batch split over devices and forward passes.

    Args:
        recipe: the batch and the optimiser.
        run: the run's folder.
        tracker: one of `TRACKERS`.
        options: for TrainingArguments, in place of the defaults here.
        longest: tokens in the longest row. Default: the recipe's.
        ranks_per_row: processes that share each row.
    """
    one_of("the tracker", tracker, TRACKERS)
    if tracker != "none" and find_spec(tracker) is None:
        raise ModuleNotFoundError(f"the tracker {tracker} is not installed", name=tracker)
    on_gpu = torch.cuda.is_available()
    defaults: dict[str, Any] = {
        "output_dir": str(run),
        "max_steps": recipe.steps,
        "learning_rate": recipe.learning_rate,
        "max_grad_norm": recipe.max_grad_norm,
        "bf16": recipe.precision == "bfloat16" or (recipe.precision == "auto" and on_gpu),
        "use_cpu": not on_gpu,
        "logging_steps": recipe.log_every,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "save_steps": recipe.checkpoint_every,
        "save_total_limit": 2,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "report_to": "none" if tracker == "tensorboard" else tracker,  # run_training adds it, in the run's folder
        "disable_tqdm": True,
        "dataloader_drop_last": True,
        "dataloader_pin_memory": on_gpu,
        "accelerator_config": {"non_blocking": on_gpu},  # otherwise each step waits for the one before
        "dataloader_num_workers": 2 if on_gpu else 0,
        "ddp_find_unused_parameters": False,
        "log_level": "error",
    }
    args = TrainingArguments(**{**defaults, **options})
    tokens = (recipe.sequence_length if longest is None else longest) // ranks_per_row
    batch, accumulated = split_batch(recipe, args.world_size // ranks_per_row, args.device.type, tokens)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = batch, accumulated
    return args


def split_batch(recipe: BaseRecipe, devices: int, kind: str, longest: int | None = None) -> tuple[int, int]:
    """Sequences per forward pass on each device, and forward passes per step."""
    at_least("devices", devices, 1)
    if recipe.batch_size % devices:
        raise ValueError(
            f"a batch of {recipe.batch_size} sequences cannot be divided among {devices} processes. Use a multiple of "
            f"{devices}."
        )
    per_device = recipe.batch_size // devices
    tokens = recipe.max_tokens_per_device or TOKENS_PER_DEVICE.get(kind, TOKENS_PER_DEVICE["cpu"])
    limit = max(1, tokens // (recipe.sequence_length if longest is None else longest))
    size = max(size for size in range(1, per_device + 1) if per_device % size == 0 and size <= limit)
    return size, per_device // size


def compiles_layers(recipe: BaseRecipe, args: TrainingArguments) -> bool:
    """Whether to compile layers: the recipe's choice. Default: on a GPU."""
    return args.device.type == "cuda" if recipe.compile is None else recipe.compile
