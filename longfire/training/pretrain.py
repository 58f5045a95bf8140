"""Pretrain a model from a recipe, on a corpus or a synthetic task."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import TrainingArguments, default_data_collator

from longfire.model.loading import find_checkpoint
from longfire.tasks.synthetic import PAD
from longfire.training.callbacks import MarkCudaGraphSteps, TrainingMonitor, refuse_non_finite_weights
from longfire.training.context_parallel import assign_rows, check_context_parallel, check_processes, own_share
from longfire.training.initial_model import digest, pretraining_model
from longfire.training.recipes import Recipe
from longfire.training.rows import PaddingCollator
from longfire.training.run import run_training
from longfire.training.task_data import TaskData
from longfire.training.trainer import RecipeTrainer, compiles_layers, training_arguments

if TYPE_CHECKING:
    from longfire.data import Corpus, Sequences
    from longfire.tasks.synthetic import Rows


def pretrain(
    recipe: Recipe,
    corpus: "Corpus | TaskData",
    run: Path,
    *,
    tracker: str = "tensorboard",
    progress: bool = True,
    wait: bool = False,
    planned: Mapping[str, Any] | None = None,
    context_parallel: int = 1,
    **options: Any,
) -> Path:
    """Train a model and return its folder. Finished runs are skipped, interrupted ones resume.

    Args:
        recipe: what to train.
        corpus: what to train on. Of a corpus only the train split is used.
        run: the run's folder. One that contains a different run is refused.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        progress: show a bar on a terminal, lines elsewhere.
        wait: if another process is training in the folder, wait for it instead of raising an error.
        planned: the run's `identity`, if a plan has already computed it.
        context_parallel: ranks that share each sequence; must divide the number of processes. The result does not
            depend on it.
        options: for Hugging Face's TrainingArguments, such as `fsdp`.
    """
    run = Path(run)
    check_context_parallel(recipe, context_parallel)
    check_processes(context_parallel)

    def make_trainer() -> PretrainTrainer:
        args = training_arguments(recipe, run, tracker, options, ranks_per_row=context_parallel)
        return PretrainTrainer(recipe, corpus, run, args, progress, context_parallel)

    run_identity = identity(recipe, corpus) if planned is None else planned
    return run_training(run, run_identity, make_trainer, tracker=tracker, wait=wait)


def identity(recipe: Recipe, corpus: "Corpus | TaskData") -> dict[str, Any]:
    """What identifies a run: its recipe, the weights it continues from, and its text."""
    fields = recipe.identity()
    source = fields.pop("init_from")  # identified by its weights, not its path
    return {**fields, "checkpoint": None if source is None else digest(source), "corpus": corpus.fingerprint}


def training_sequences(recipe: Recipe, corpus: "Corpus | TaskData") -> "Sequences | Rows":
    """Training sequences of the recipe's length. Refuses a corpus with too few for one step.

    Rows of a task are generated as they are read, and each is read once.
    """
    if recipe.task != (corpus.name if isinstance(corpus, TaskData) else None):
        raise ValueError(f"the recipe's task is {recipe.task!r}, but the training data is {corpus.name!r}.")
    if isinstance(corpus, TaskData):
        task = corpus.task
        return task.rows(recipe.steps * recipe.batch_size, task.lengths(recipe.length), recipe.seed)
    return text_sequences(corpus, recipe.length, recipe.batch_size, segments=recipe.packing is not None)


def task_collator(recipe: Recipe) -> PaddingCollator:
    """Pads all rows of a task to one length, so that compiled graphs see a single shape."""
    length = recipe.sequence_length
    return PaddingCollator(PAD, length, multiple=length, masked=recipe.random_positions is not None)


def text_sequences(corpus: "Corpus", length: int, batch_size: int, *, segments: bool = False) -> "Sequences":
    """Training sequences of one length. Refuses a corpus with too few for one step."""
    sequences = corpus.train.sequences(length, segments=segments)
    if len(sequences) < batch_size:
        raise ValueError(
            f"the corpus has {len(sequences)} training sequences of {length} tokens, but a step needs {batch_size}. "
            f"Use more text, a smaller batch or a shorter length."
        )
    return sequences


def uses_cuda_graphs(recipe: Recipe, args: TrainingArguments) -> bool:
    """Whether layers run as CUDA graphs. Default: on one GPU without accumulation: no gradient outlives its pass."""
    if recipe.cuda_graphs is None:
        return args.device.type == "cuda" and args.world_size == args.gradient_accumulation_steps == 1
    return recipe.cuda_graphs


def compiles_pretraining(recipe: Recipe, args: TrainingArguments) -> bool:
    """Whether to compile layers: the recipe's choice. Default: on a GPU, unless documents are packed.

    A compiled graph cannot read where documents begin, so its attention plans for as many as may fit.
    """
    return compiles_layers(recipe, args) and (recipe.compile or recipe.packing is None)


class PretrainTrainer(RecipeTrainer[Recipe]):
    """Trains on sequences of one length."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: "Corpus | TaskData",
        run: Path,
        args: TrainingArguments,
        progress: bool,
        context_parallel: int = 1,
    ) -> None:
        self.corpus, self.context_parallel = corpus, context_parallel
        self.sequence_group = dist.new_subgroups(context_parallel)[0] if context_parallel > 1 else None
        sequences = training_sequences(recipe, corpus)
        model = pretraining_model(recipe, corpus)
        graphs = uses_cuda_graphs(recipe, args)
        if compiles_pretraining(recipe, args) and self.sequence_group is None:
            model.model.compile_layers(graphs=graphs)
        super().__init__(
            recipe,
            TrainingMonitor(run, lambda steps: steps * recipe.batch_size * recipe.sequence_length, progress),
            callbacks=[MarkCudaGraphSteps()] if graphs else [],
            model=model,
            args=args,
            train_dataset=sequences,
            data_collator=default_data_collator if recipe.task is None else task_collator(recipe),
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """Text in random order; a task's rows as they are generated."""
        rows: Any = self.train_dataset
        return super()._get_train_sampler() if self.recipe.task is None else SequentialSampler(rows)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Ranks that share sequences read the same rows."""
        loader: DataLoader[Any] = super().get_train_dataloader()
        if self.sequence_group is not None:
            assign_rows(loader, self.context_parallel)
        return loader

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], Any]:
        """The batches of a step, and the number of labels in them, over all processes; each row is counted once."""
        batches, labels = super().get_batch_samples(*arguments)
        return batches, labels if labels is None else labels // self.context_parallel

    def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        """The loss of this rank's share of the rows; Trainer scales it by the number of processes, and DDP averages."""
        inputs = inputs if self.sequence_group is None else own_share(inputs, self.sequence_group)
        return super().compute_loss(model, inputs, *arguments, **options)

    def save_result(self, folder: Path) -> dict[str, Any]:
        self.save_model(str(folder))
        if not self.is_world_process_zero():
            return {}
        refuse_non_finite_weights(cast(Any, self.model), "at the end")
        recipe, corpus = self.recipe, self.corpus
        corpus.tokenizer.save_pretrained(folder)
        corpus.save_description(folder, None if recipe.init_from is None else find_checkpoint(recipe.init_from))
        return {
            "corpus": corpus.describe(),
            "tokens_seen": recipe.tokens,
            "unique_tokens": recipe.tokens
            if isinstance(corpus, TaskData)
            else min(recipe.tokens, corpus.train.num_tokens),
        }
