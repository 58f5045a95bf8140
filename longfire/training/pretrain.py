"""A recipe and a corpus → a trained model in a folder. Interrupted runs resume."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import TrainingArguments, default_data_collator

from longfire.model import LongfireForCausalLM
from longfire.training.callbacks import LOSSES, MarkSteps, Watch, read_losses, refuse_not_finite
from longfire.training.recipes import Recipe
from longfire.training.run import (
    DRAFT,
    alone_in,
    carry_out,
    clean_up,
    compiles,
    conclude,
    is_done,
    leftovers,
    track,
    training_arguments,
)
from longfire.training.start import checkpoint_folder, digest, starting_model
from longfire.training.trainer import PretrainTrainer

if TYPE_CHECKING:
    from longfire.data import Corpus, Sequences


def pretrain(
    recipe: Recipe,
    corpus: "Corpus",
    run: Path,
    *,
    tracker: str = "tensorboard",
    progress: bool = True,
    wait: bool = False,
    planned: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Train, and return the folder of the model. A run that is done is not done again.

    Args:
        recipe: what.
        corpus: on what; its train split.
        run: a folder of its own. One that holds another recipe's run is refused.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        progress: a bar, where stderr is a terminal; a line now and then, where it is not.
        wait: where another process trains in the folder, for it to end, instead of an error.
        planned: the run's `identity`, if a plan has computed it and checked the recipe.
        options: for Hugging Face's TrainingArguments, such as `fsdp`.
    """
    run = Path(run)
    if planned is None:
        recipe.check()
    same = identity(recipe, corpus) if planned is None else planned
    if is_done(run, same) and not leftovers(run):
        return run / "model"
    with alone_in(run, wait):
        if is_done(run, same):  # by the process that was waited for, or by one that was killed while it cleaned up
            clean_up(run)
            return run / "model"
        trainer = make_trainer(recipe, corpus, run, tracker, progress, **options)

        def deliver(seconds: float) -> None:
            trainer.save_model(str(run / DRAFT))
            if trainer.is_world_process_zero():
                finish(run, trainer, corpus, seconds)

        return carry_out(trainer, run, same, deliver)


def make_trainer(
    recipe: Recipe, corpus: "Corpus", run: Path, tracker: str, progress: bool, **options: Any
) -> PretrainTrainer:
    """The Trainer of a run."""
    args = training_arguments(recipe, run, tracker, options)
    sequences = training_sequences(recipe, corpus)
    model = starting_model(recipe, corpus)
    graphs = plays_graphs(recipe, args)
    if compiles(recipe, args):
        model.model.compile_layers(graphs=graphs)
    trainer = PretrainTrainer(
        recipe,
        model=model,
        args=args,
        train_dataset=sequences,
        data_collator=default_data_collator,
        callbacks=[
            Watch(run, lambda steps: steps * recipe.batch_size * recipe.length, progress),
            *([MarkSteps()] if graphs else []),
        ],
    )
    track(trainer, tracker, run)
    return trainer


def training_sequences(recipe: Recipe, corpus: "Corpus") -> "Sequences":
    """Of the recipe's length. Refuses a text with fewer of them than a step takes."""
    sequences = corpus.train.sequences(recipe.length)
    if len(sequences) < recipe.batch_size:
        raise ValueError(
            f"the corpus has {len(sequences)} training sequences of {recipe.length} tokens, and a step takes "
            f"{recipe.batch_size}. Give more text, a smaller batch or a shorter length."
        )
    return sequences


def plays_graphs(recipe: Recipe, args: TrainingArguments) -> bool:
    """Whether layers are CUDA graphs. Gradients of several passes would have to outlive them."""
    if recipe.cuda_graphs is None:
        return args.device.type == "cuda" and args.world_size == args.gradient_accumulation_steps == 1
    return recipe.cuda_graphs


def identity(recipe: Recipe, corpus: "Corpus") -> dict[str, Any]:
    """What makes two runs the same: the recipe but for how it is carried out, what it goes on from, and the text."""
    same = recipe.identity()
    source = same.pop("init_from")  # wherever it is
    return {**same, "checkpoint": None if source is None else digest(source), "corpus": corpus.fingerprint}


def finish(run: Path, trainer: PretrainTrainer, corpus: "Corpus", seconds: float) -> None:
    """Put the model in its place and say that all is done."""
    model = cast(LongfireForCausalLM, trainer.model)
    refuse_not_finite(model, "at the end")
    corpus.save_tokenizer(run / DRAFT)
    recipe = trainer.recipe
    source = None if recipe.init_from is None else checkpoint_folder(recipe.init_from)
    corpus.save_description(run / DRAFT, source)
    losses = read_losses(run / LOSSES)
    done = {
        "recipe": asdict(recipe),
        "corpus": corpus.describe(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_seen": recipe.tokens,
        "unique_tokens": min(recipe.tokens, corpus.train.num_tokens),
        "seconds": round(seconds, 2),
        "tokens/s": losses[-1]["tokens/s"] if losses else None,
        "final_loss": losses[-1]["loss"] if losses else None,
    }
    conclude(run, done)
