"""Train a retrofitted model further, wholly or with LoRA, until it has recovered.

RUN/model/    the model, with merged adapters, in the precision that the original was saved in
    adapter/  with LoRA, the adapters, for `peft.PeftModel.from_pretrained(retrofit(original, …), RUN/adapter)`
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import TrainerCallback, default_data_collator

from longfire.encodings import position_parameters
from longfire.training.base_recipe import BaseRecipe, translate_fields
from longfire.training.callbacks import TrainingMonitor, refuse_non_finite_weights
from longfire.training.pretrain import text_sequences
from longfire.training.trainer import RecipeTrainer, training_arguments
from longfire.validation import at_least

if TYPE_CHECKING:
    from longfire.data import Corpus

UNUSED = ("compile", "dropout", "attention_dropout")
ALPHA = 2
"""LoRA's α, relative to its rank."""


@dataclass(frozen=True)
class RetrofitRecipe(BaseRecipe):
    """Recovery after a retrofit. Without steps, the model is only converted."""

    min_steps: ClassVar[int] = 0
    lora_rank: int = 0
    """Rank of LoRA's adapters on all linear layers; the encoding is trained as a whole. 0: train all parameters."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory, a third slower."""

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.length

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("lora_rank", self.lora_rank, 0)
        if changed := [name for name in UNUSED if getattr(self, name)]:
            raise ValueError(f"a retrofit has no {', '.join(changed)}: the model's own configuration decides. Omit it.")
        if self.lora_rank and find_spec("peft") is None:
            raise ModuleNotFoundError("LoRA needs PEFT", name="peft")


FULL = RetrofitRecipe(
    "retrofit",
    length=2048,
    batch_size=32,
    steps=1000,
    learning_rate=3e-4,
    checkpoint_every=250,
    position_lr_factor=30.0,
)
LORA = FULL.but(name="retrofit-lora", lora_rank=16, learning_rate=1e-3, position_lr_factor=10.0)


def recovery_recipe(training_length: int, lora: bool = False, **changes: Any) -> RetrofitRecipe:
    """The recipe for a model, with some fields changed. Defaults: at most its training length; a tenth is warm-up."""
    base = LORA if lora else FULL
    changes.setdefault("length", min(base.length, training_length))
    recipe = base.but(**changes)
    return recipe if "warmup_steps" in translate_fields(changes) else recipe.but(warmup_steps=recipe.steps // 10)


def add_lora(model: Any, rank: int) -> Any:
    """The model with LoRA on all its linear layers, and a trainable copy of its encoding."""
    from peft import LoraConfig, get_peft_model

    whole = ["position_encoding"] if position_parameters(model) else None
    lora = LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules="all-linear", modules_to_save=whole)
    return get_peft_model(model, lora)


class AtSteps(TrainerCallback):
    """Calls a function after some of the steps."""

    def __init__(self, steps: Sequence[int], act: Callable[[int], object]) -> None:
        self.steps, self.act = frozenset(steps), act

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step in self.steps:
            self.act(state.global_step)


class RecoveryTrainer(RecipeTrainer[RetrofitRecipe]):
    """Trains a retrofitted model on sequences of one length.

    Args:
        recipe: how to train.
        model: the retrofitted model, with adapters if the recipe has them.
        corpus: the text, in the model's tokens.
        source: the original's folder or name.
        dtype: of the saved weights, except for the encoding's.
        run: the run's folder.
        progress: show a bar on a terminal, lines elsewhere.
        measure: called with the model and the step after each of `measure_at`.
        measure_at: steps.
    """

    def __init__(
        self,
        recipe: RetrofitRecipe,
        model: Any,
        corpus: "Corpus",
        *,
        source: Path,
        dtype: torch.dtype,
        run: Path,
        progress: bool,
        measure: Callable[[Any, int], object],
        measure_at: Sequence[int],
    ) -> None:
        self.corpus, self.source, self.dtype, self.measure = corpus, source, dtype, measure
        options = {"max_steps": max(1, recipe.steps), "gradient_checkpointing": recipe.gradient_checkpointing}
        super().__init__(
            recipe,
            TrainingMonitor(run, lambda steps: steps * recipe.tokens_per_step, progress and recipe.steps > 0),
            callbacks=[AtSteps(measure_at, self._measure)],
            model=model,
            args=training_arguments(recipe, run, "none", options),
            train_dataset=text_sequences(corpus, recipe.length, recipe.batch_size if recipe.steps else 1),
            data_collator=default_data_collator,
        )

    def _measure(self, step: int) -> None:
        """Measure the model as it is now, adapters included; not counted as training time."""
        began = time.perf_counter()
        model: Any = self.model
        with self.accelerator.autocast():
            self.measure(model.get_base_model() if self.recipe.lora_rank else model, step)
        self.monitor.exclude_time(time.perf_counter() - began)

    def save_result(self, folder: Path) -> dict[str, Any]:
        model: Any = self.model
        refuse_non_finite_weights(model, "at the end")
        if self.recipe.lora_rank:
            model.save_pretrained(self.monitor.run / "adapter")
            model = model.merge_and_unload()
        model.to(self.dtype).save_pretrained(folder)
        self.corpus.tokenizer.save_pretrained(folder)
        self.corpus.save_description(folder, self.source)
        return {"corpus": self.corpus.describe(), "tokens_seen": self.recipe.tokens}
