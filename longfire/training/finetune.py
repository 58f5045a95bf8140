"""Fine-tune a checkpoint on rows with targets, and keep the best model."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]
from tqdm import tqdm

from longfire.model import LongfireForCausalLM
from longfire.model.loading import find_checkpoint
from longfire.model.loss import IGNORED
from longfire.training.best_checkpoint import BestCheckpoint, refuse_non_finite_score
from longfire.training.callbacks import TrainingMonitor, refuse_non_finite_weights
from longfire.training.finetune_recipes import FinetuneRecipe
from longfire.training.initial_model import digest, finetuning_model, pretrained_by
from longfire.training.rows import PaddingCollator, Row, batch_order, checked_lengths
from longfire.training.run import as_json, run_training
from longfire.training.trainer import RecipeTrainer, compiles_layers, training_arguments

Score = Callable[[LongfireForCausalLM, int], float]
"""(model, step) → its score; higher is better."""


def finetune(
    recipe: FinetuneRecipe,
    checkpoint: str | Path | LongfireForCausalLM,
    rows: Sequence[Row],
    run: Path,
    *,
    tokenizer: Any,
    identity: Mapping[str, Any],
    dev_rows: Sequence[Row] | None = None,
    score: Score | None = None,
    tracker: str = "tensorboard",
    progress: bool = True,
    **options: Any,
) -> Path:
    """Fine-tune, and return the folder of the best model. Finished runs are skipped, interrupted ones resume.

    Args:
        recipe: how to train.
        checkpoint: a checkpoint folder, a training run's folder, or a model, which is not changed.
        rows: `input_ids`, and `labels` that are −100 on the prompt. Each at most the recipe's length.
        run: the run's folder. One that contains a different run is refused.
        tokenizer: the rows' tokenizer, saved with the model.
        identity: JSON that identifies the rows, such as task and prompt. Part of the run's identity.
        dev_rows: without a score, the model with the lowest loss on these is kept.
        score: called every `evaluate_every` steps and at the end, on all processes, in evaluation mode without
            gradients; the first process's result counts. Without score and dev_rows, the last model is kept.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        progress: show a bar on a terminal, lines elsewhere.
        options: for Hugging Face's TrainingArguments, such as `fsdp`.
    """
    run = Path(run)
    chosen_by = "score" if score is not None else "last" if dev_rows is None else "loss"
    counts = {"rows": len(rows), "dev_rows": None if dev_rows is None else len(dev_rows)}
    source = {"checkpoint": digest(checkpoint), **counts, "chosen_by": chosen_by, "on": dict(identity)}
    run_identity = {**recipe.identity(), **source}

    def add_files(model: Path) -> dict[str, Any]:
        tokenizer.save_pretrained(model)
        copy_corpus_description(checkpoint, model)
        return {"pretrained_by": pretrained_by(checkpoint), "identity": as_json(run_identity)}

    def make_trainer() -> FinetuneTrainer:
        model = finetuning_model(recipe, checkpoint)
        lengths = checked_lengths(rows, "train", recipe.length, model.config.vocab_size)
        if dev_rows is not None:
            checked_lengths(dev_rows, "evaluate", recipe.length, model.config.vocab_size)
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        args = training_arguments(recipe, run, tracker, options, longest=int(lengths.max()))
        every = None if chosen_by == "last" else recipe.evaluate_every
        return FinetuneTrainer(
            recipe,
            lengths,
            BestCheckpoint(run, every, chosen_by),
            score,
            progress,
            add_files,
            model=model,
            args=args,
            train_dataset=rows,
            eval_dataset=dev_rows,
            data_collator=PaddingCollator(pad, recipe.length),
        )

    return run_training(run, run_identity, make_trainer, tracker=tracker)


class FinetuneTrainer(RecipeTrainer[FinetuneRecipe]):
    """Trains on rows of different lengths, and keeps the best model.

    Without a score, the best model has the lowest loss on `eval_dataset`. `add_files` adds files to the model's folder
    and returns entries for done.json.
    """

    def __init__(
        self,
        recipe: FinetuneRecipe,
        lengths: npt.NDArray[np.int64],
        best: BestCheckpoint,
        score: Score | None,
        progress: bool,
        add_files: Callable[[Path], dict[str, Any]],
        **options: Any,
    ) -> None:
        self.best, self.score, self.progress, self.add_files = best, score, progress, add_files
        self.order = batch_order(lengths, recipe.batch_size, recipe.steps, recipe.seed)
        self.tokens = np.concatenate([[0], lengths[self.order].sum(axis=1).cumsum()])
        monitor = TrainingMonitor(best.run, lambda steps: int(self.tokens[steps]), progress)
        super().__init__(recipe, monitor, callbacks=[best], **options)
        if compiles_layers(recipe, self.args):
            cast(Any, self.model).model.compile_layers()

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The rows of the whole run, in a fixed order."""
        return self.order.ravel().tolist()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Called by Trainer: evaluate the model, and keep it if it is the best so far."""
        began, step = time.perf_counter(), self.state.global_step
        score: float = broadcast_object_list([self._evaluate_model(step)])[0]
        refuse_non_finite_score(score, step, self.best.metric)
        first = self.is_world_process_zero()
        better = broadcast_object_list([first and self.best.is_better(score)])[0]
        if better:
            self.save_model(str(self.best.folder(step)))
            self.accelerator.wait_for_everyone()
        if first:
            self.best.record(step, score)
            if better:
                self.best.keep(step, score)
            if self.progress:
                best = ", the best so far" if better else ""
                tqdm.write(f"step {step}: {self.best.metric} {score:.4g}{best}", file=sys.stderr)
        metrics = {f"eval_{self.best.metric}": score}
        self.log(metrics)
        self.monitor.exclude_time(time.perf_counter() - began)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _evaluate_model(self, step: int) -> float:
        """The model's score, or its loss. Random numbers drawn here do not affect training."""
        model = cast(LongfireForCausalLM, self.model).eval()
        # graphs compiled for training do not fit generation, which has a cache and a new length at every step
        eager: Any = (
            torch.compiler.set_stance("force_eager") if compiles_layers(self.recipe, self.args) else nullcontext()
        )
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.no_grad(), eager, torch.random.fork_rng(devices), self.accelerator.autocast():
            return float(self._mean_loss() if self.score is None else self.score(model, step))

    def _mean_loss(self) -> float:
        """Mean loss per target token of `eval_dataset`."""
        model, rows, args = cast(Any, self.model), cast(Any, self.eval_dataset), self.args
        indices = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
        size = args.per_device_train_batch_size
        batches = [indices[start : start + size] for start in range(0, len(indices), size)]
        total = torch.zeros(2, dtype=torch.float64, device=args.device)
        off = None if self.progress and self.is_world_process_zero() else True
        for start in tqdm(range(0, len(batches), args.world_size), desc="dev", leave=False, disable=off):
            mine = start + args.process_index  # all processes run every round: a sharded model needs them all
            chosen = batches[min(mine, len(batches) - 1)]
            batch = {key: value.to(args.device) for key, value in self.data_collator([rows[i] for i in chosen]).items()}
            loss = model(**batch, num_items_in_batch=1, skip_logits=True).loss
            if mine < len(batches):
                total += torch.stack([loss.double(), (batch["labels"] != IGNORED).sum().double()])
        summed = cast(torch.Tensor, self.accelerator.reduce(total, "sum"))
        return float(summed[0] / summed[1])

    def save_result(self, folder: Path) -> dict[str, Any]:
        first = self.is_world_process_zero()
        if self.best.every is None:
            refuse_non_finite_weights(cast(Any, self.model), "at the end")
            self.save_model(str(folder))
            best = {"step": self.state.global_step, "score": None}
        else:
            if broadcast_object_list([first and self.best.best() is None])[0]:  # damaged since training ended
                self.evaluate()
            best = self.best.copy_best(folder) if first else {}
        if not first:
            return {}
        return {
            "chosen_by": self.best.metric,
            "tokens": int(self.tokens[-1]),
            **best,
            **self.add_files(folder),
        }


def copy_corpus_description(checkpoint: str | Path | LongfireForCausalLM, model: Path) -> None:
    """Copy the description of the checkpoint's training text to the fine-tuned model."""
    if not isinstance(checkpoint, LongfireForCausalLM):
        for name in ("corpus.json", "corpus.npy"):
            if (file := find_checkpoint(checkpoint) / name).is_file():
                shutil.copy(file, model / name)
