"""A recipe, a checkpoint and rows with targets → the best model of a run. Interrupted runs resume."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]
from tqdm import tqdm

from longfire.model import LongfireForCausalLM
from longfire.model.inspection import check_length
from longfire.model.loss import IGNORED
from longfire.training.best_checkpoint import Judging, refuse_no_number
from longfire.training.callbacks import LOSSES, Watch, read_losses, refuse_not_finite
from longfire.training.finetune_recipes import FinetuneRecipe
from longfire.training.rows import InTurn, Padded, Row, checked_lengths, order_of_steps
from longfire.training.run import (
    DRAFT,
    alone_in,
    as_json,
    carry_out,
    clean_up,
    compiles,
    conclude,
    is_done,
    leftovers,
    track,
    training_arguments,
)
from longfire.training.start import checkpoint_folder, digest, loaded, pretrained_by, set_dropout
from longfire.training.trainer import RecipeTrainer

Score = Callable[[LongfireForCausalLM, int], float]
"""A model and its step → how good it is; more is better."""


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
    """Fine-tune, and return the folder of the best model. A run that is done is not done again.

    Args:
        recipe: how.
        checkpoint: its folder, a training run's, or a model, which stays as it is.
        rows: `input_ids`, and `labels` that are −100 on the prompt. At most the recipe's length each.
        run: a folder of its own. One that holds another run is refused.
        tokenizer: of the rows; saved with the model.
        identity: what the rows are of, such as task and prompt, as JSON: another in the same folder is refused.
        dev_rows: where there is no score, the model with the least loss on these is the best.
        score: judges a model every `evaluate_every` steps and at the end. It is called on all processes, in evaluation
            mode without gradients; what the first says counts. Without score and dev_rows the last model is taken.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        progress: a bar, where stderr is a terminal; a line now and then, where it is not.
        options: for Hugging Face's TrainingArguments, such as `fsdp`.
    """
    run = Path(run)
    by = "score" if score is not None else "last" if dev_rows is None else "loss"
    counts = {"rows": len(rows), "dev_rows": None if dev_rows is None else len(dev_rows)}
    same = {**recipe.identity(), "checkpoint": digest(checkpoint), **counts, "chosen_by": by, "on": dict(identity)}
    if is_done(run, same) and not leftovers(run):
        return run / "model"
    model = begun(recipe, checkpoint)
    lengths = checked_lengths(rows, "train", recipe.length, model.config.vocab_size)
    if dev_rows is not None:
        checked_lengths(dev_rows, "judge", recipe.length, model.config.vocab_size)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    with alone_in(run):
        if is_done(run, same):  # by a process that was killed while it cleaned up
            clean_up(run)
            return run / "model"
        args = training_arguments(recipe, run, tracker, options, length=int(lengths.max()))
        trainer = FinetuneTrainer(
            recipe,
            lengths,
            Judging(run, None if by == "last" else recipe.evaluate_every, by),
            score,
            progress,
            model=model,
            args=args,
            train_dataset=rows,
            eval_dataset=dev_rows,
            data_collator=Padded(pad, recipe.length),
        )
        track(trainer, tracker, run)

        def deliver(seconds: float) -> None:
            best = trainer.deliver(run / DRAFT)
            if trainer.is_world_process_zero():
                tokenizer.save_pretrained(run / DRAFT)
                keep_corpus(checkpoint, run / DRAFT)
                began = pretrained_by(checkpoint)
                made = {"pretrained_by": began, "seconds": round(seconds, 2), "identity": as_json(same)}
                finish(run, trainer, {**best, **made})

        return carry_out(trainer, run, same, deliver)


def begun(recipe: FinetuneRecipe, checkpoint: str | Path | LongfireForCausalLM) -> LongfireForCausalLM:
    """The checkpoint's model, with the recipe's dropout. Refused where its positions end too soon."""
    if isinstance(checkpoint, LongfireForCausalLM):
        model = deepcopy(checkpoint)
        model.float()
    else:
        model = loaded(checkpoint_folder(checkpoint))
    check_length(model, recipe.length)
    set_dropout(model, recipe)
    return model


class FinetuneTrainer(RecipeTrainer[FinetuneRecipe]):
    """For rows of differing lengths, with a judge.

    Args:
        recipe: how.
        lengths: of the rows.
        judging: keeps the best.
        score: judges; where it is None, the loss on `eval_dataset` does.
        progress: show bars.
        options: the Trainer's.
    """

    def __init__(
        self,
        recipe: FinetuneRecipe,
        lengths: npt.NDArray[np.int64],
        judging: Judging,
        score: Score | None,
        progress: bool,
        **options: Any,
    ) -> None:
        self.judging, self.score, self.progress = judging, score, progress
        self.order = order_of_steps(lengths, recipe.batch_size, recipe.steps, recipe.seed)
        self.tokens = np.concatenate([[0], lengths[self.order].sum(axis=1).cumsum()])
        self.watch = Watch(judging.run, lambda steps: int(self.tokens[steps]), progress)
        super().__init__(recipe, callbacks=[self.watch, judging], **options)
        if compiles(recipe, self.args):
            cast(Any, self.model).model.compile_layers()

    def _get_train_sampler(self, train_dataset: Any = None) -> InTurn:
        return InTurn(self.order)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Called by Trainer: judge the model, and keep it if it is the best so far."""
        began, step = time.perf_counter(), self.state.global_step
        score: float = broadcast_object_list([self.judged(step)])[0]
        refuse_no_number(score, step, self.judging.by)
        first = self.is_world_process_zero()
        better = broadcast_object_list([first and self.judging.is_better(score)])[0]
        if better:
            self.save_model(str(self.judging.folder(step)))
            self.accelerator.wait_for_everyone()
        if first:
            self.judging.write(step, score)
            if better:
                self.judging.keep(step, score)
            if self.progress:
                so_far = ", the best so far" if better else ""
                tqdm.write(f"step {step}: {self.judging.by} {score:.4g}{so_far}", file=sys.stderr)
        metrics = {f"eval_{self.judging.by}": score}
        self.log(metrics)
        self.watch.leave_out(time.perf_counter() - began)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def judged(self, step: int) -> float:
        """What score or loss says; what it draws at random does not change what training draws."""
        model = cast(LongfireForCausalLM, self.model).eval()
        compiled = compiles(self.recipe, self.args)
        # a graph made for training is not for generation, which has a cache and a new length at every step
        as_written: AbstractContextManager[Any] = (
            torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        )
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.no_grad(), as_written, torch.random.fork_rng(devices), self.accelerator.autocast():
            return float(self.mean_loss() if self.score is None else self.score(model, step))

    def mean_loss(self) -> float:
        """Of all targets of `eval_dataset`."""
        model, rows, args = cast(Any, self.model), cast(Any, self.eval_dataset), self.args
        indices = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
        size = args.per_device_train_batch_size
        batches = [indices[start : start + size] for start in range(0, len(indices), size)]
        total = torch.zeros(2, dtype=torch.float64, device=args.device)
        off = None if self.progress and self.is_world_process_zero() else True
        for start in tqdm(range(0, len(batches), args.world_size), desc="dev", leave=False, disable=off):
            mine = start + args.process_index  # all go along to the end: a sharded model runs on all or on none
            chosen = batches[min(mine, len(batches) - 1)]
            batch = {key: value.to(args.device) for key, value in self.data_collator([rows[i] for i in chosen]).items()}
            loss = model(**batch, num_items_in_batch=1, skip_logits=True).loss
            if mine < len(batches):
                total += torch.stack([loss.double(), (batch["labels"] != IGNORED).sum().double()])
        summed = cast(torch.Tensor, self.accelerator.reduce(total, "sum"))
        return float(summed[0] / summed[1])

    def deliver(self, folder: Path) -> dict[str, Any]:
        """The best model into a folder; its step and score."""
        if self.judging.every is None:
            refuse_not_finite(cast(Any, self.model), "at the end")
            self.save_model(str(folder))
            return {"step": self.state.global_step, "score": None}
        first = self.is_world_process_zero()
        if broadcast_object_list([first and self.judging.best() is None])[0]:  # it was damaged, and training over
            self.evaluate()
        return self.judging.deliver(folder) if first else {}


def keep_corpus(checkpoint: str | Path | LongfireForCausalLM, model: Path) -> None:
    """What the checkpoint was trained on, the fine-tuned model was too."""
    if not isinstance(checkpoint, LongfireForCausalLM):
        for name in ("corpus.json", "corpus.npy"):
            if (file := checkpoint_folder(checkpoint) / name).is_file():
                shutil.copy(file, model / name)


def finish(run: Path, trainer: FinetuneTrainer, found: dict[str, Any]) -> None:
    """Put the model in its place and say that all is done."""
    losses = read_losses(run / LOSSES)
    done = {
        "recipe": asdict(trainer.recipe),
        "chosen_by": trainer.judging.by,
        "parameters": sum(p.numel() for p in cast(Any, trainer.model).parameters()),
        "tokens": int(trainer.tokens[-1]),
        "tokens/s": losses[-1]["tokens/s"] if losses else None,
        "final_loss": losses[-1]["loss"] if losses else None,
        **found,
    }
    conclude(run, done)
