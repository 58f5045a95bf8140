"""A recipe and a corpus → a trained model in a folder. Killed and started again, it goes on where it was.

RUN/recipe.json   what is trained, on what
    losses.jsonl  a line for every few steps
    checkpoint-N/ to go on from; the last two, each marked when it is whole
    model/        the trained model with its tokenizer, at the end
    done.json     when all of this is there
"""

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from filelock import FileLock
from transformers import TrainingArguments, default_data_collator, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from longfire.errors import at_least
from longfire.model import LongfireForCausalLM
from longfire.training.callbacks import LOSSES, Watch, read_losses, refuse_not_finite
from longfire.training.checkpoints import discard_incomplete, last_complete, step_of
from longfire.training.recipes import Recipe
from longfire.training.trainer import PretrainTrainer

if TYPE_CHECKING:
    from longfire.data import Corpus

DEVICE_TOKENS = {"cuda": 65536, "cpu": 8192}
"""Of a forward pass, unless the recipe says."""
SHARDED: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": ["LongfireLayer"],
        "state_dict_type": "FULL_STATE_DICT",
    },
}
"""Options that spread a model over all processes, layer by layer (FSDP2)."""
TRACKERS = ("tensorboard", "wandb", "trackio", "none")


def pretrain(
    recipe: Recipe, corpus: "Corpus", run: Path, *, tracker: str = "tensorboard", progress: bool = True, **options: Any
) -> Path:
    """Train, and return the folder of the model. A run that is done is not done again.

    Args:
        recipe: what.
        corpus: on what; its train split.
        run: a folder of its own. One that holds another recipe's run is refused.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        progress: a bar, where stderr is a terminal.
        options: for Hugging Face's TrainingArguments, such as `fsdp`.
    """
    run = Path(run)
    refuse_another(run, recipe, corpus)
    if (run / "done.json").exists():
        return run / "model"
    run.mkdir(parents=True, exist_ok=True)
    with alone_in(run):
        return _pretrain(recipe, corpus, run, tracker, progress, **options)


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    """One command a run: the first process of each holds a lock, which the system takes back if it dies."""
    if int(os.environ.get("RANK", "0")) != 0:
        yield
        return
    lock = FileLock(run / ".lock")
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        raise ValueError(
            f"another process is training in {run}. Wait for it, stop it, or choose another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _pretrain(recipe: Recipe, corpus: "Corpus", run: Path, tracker: str, progress: bool, **options: Any) -> Path:
    trainer = make_trainer(recipe, corpus, run, tracker, progress, **options)
    first = trainer.is_world_process_zero()
    with_others = trainer.accelerator.wait_for_everyone
    if first:
        begin(run, recipe, corpus)
    with_others()
    last = last_complete(run)
    if first:
        for folder in discard_incomplete(run):
            print(f"{folder} was cut off while it was written, and is left out.")
    with_others()
    started = time.time()
    try:
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        trainer.save_model(str(run / ".model"))
        if first:
            finish(run, trainer, corpus, time.time() - started)
    except OSError as error:
        raise _explained(error, run) from error
    except RuntimeError as error:
        if "No space left" in str(error):
            raise _explained(OSError(errno.ENOSPC, str(error)), run) from error
        if "DataLoader worker" in str(error):
            raise ChildProcessError(
                f"a process that reads the data was lost ({error}): often memory ran out. {_kept(run)}. Start again "
                f"with the same command."
            ) from error
        raise
    with_others()
    return run / "model"


def make_trainer(
    recipe: Recipe, corpus: "Corpus", run: Path, tracker: str, progress: bool, **options: Any
) -> PretrainTrainer:
    """The Trainer of a run."""
    args = TrainingArguments(**{**arguments(recipe, run, tracker), **options})
    batch, accumulated = split_batch(recipe, args.world_size, args.device.type)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = batch, accumulated
    sequences = corpus.train.sequences(recipe.length)
    if len(sequences) < recipe.batch:
        raise ValueError(
            f"the corpus has {len(sequences)} training sequences of {recipe.length} tokens, and a step takes "
            f"{recipe.batch}. Give more text, a smaller batch or a shorter length."
        )
    trainer = PretrainTrainer(
        recipe,
        model=new_model(
            recipe, corpus, compiled=args.device.type == "cuda" if recipe.compile is None else recipe.compile
        ),
        args=args,
        train_dataset=sequences,
        data_collator=default_data_collator,
        callbacks=[Watch(run, recipe.batch * recipe.length, progress)],
    )
    if tracker == "tensorboard" and trainer.is_world_process_zero():
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(run / "tensorboard")
        trainer.add_callback(TensorBoardCallback(writer))
    for callback in ("PrinterCallback", "ProgressCallback"):
        for one in [one for one in trainer.callback_handler.callbacks if type(one).__name__ == callback]:
            trainer.remove_callback(one)
    return trainer


def new_model(recipe: Recipe, corpus: "Corpus", compiled: bool) -> LongfireForCausalLM:
    """With starting weights that are the seed's."""
    set_seed(recipe.seed)
    eos = corpus.tokenizer.eos_token_id
    model = LongfireForCausalLM(recipe.config(corpus.vocab_size, eos_token_id=eos, bos_token_id=eos, pad_token_id=eos))
    if recipe.start is not None:
        for encoding in model.model.encodings:
            if hasattr(encoding, "init_as"):
                encoding.init_as(recipe.start)
    if compiled:
        model.model.compile_layers()
    return model


def arguments(recipe: Recipe, run: Path, tracker: str) -> dict[str, Any]:
    """Of Hugging Face's TrainingArguments."""
    if tracker not in TRACKERS:
        raise ValueError(f"the tracker cannot be {tracker!r}. Known: {', '.join(TRACKERS)}.")
    if tracker != "none" and find_spec(tracker) is None:
        raise ModuleNotFoundError(f"the tracker {tracker} is not installed", name=tracker)
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(run),
        "max_steps": recipe.steps,
        "learning_rate": recipe.learning_rate,
        "max_grad_norm": recipe.clip,
        "bf16": recipe.precision == "bfloat16" or (recipe.precision == "auto" and on_gpu),
        "use_cpu": not on_gpu,
        "logging_steps": recipe.log_every,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "save_steps": recipe.checkpoint_every,
        "save_total_limit": 2,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "report_to": "none" if tracker == "tensorboard" else tracker,  # which has a folder here
        "disable_tqdm": True,
        "dataloader_drop_last": True,
        "dataloader_pin_memory": on_gpu,
        "dataloader_num_workers": 2 if on_gpu else 0,
        "ddp_find_unused_parameters": False,
        "log_level": "error",
    }


def split_batch(recipe: Recipe, devices: int, kind: str) -> tuple[int, int]:
    """Sequences of a forward pass on each device, and how many passes make a step."""
    at_least("devices", devices, 1)
    if recipe.batch % devices:
        raise ValueError(
            f"a batch of {recipe.batch} sequences cannot be divided among {devices} processes. Take a batch that is a "
            f"multiple of {devices}."
        )
    own = recipe.batch // devices
    most = max(1, (recipe.device_tokens or DEVICE_TOKENS.get(kind, DEVICE_TOKENS["cpu"])) // recipe.length)
    size = max(size for size in range(1, own + 1) if own % size == 0 and size <= most)
    return size, own // size


def begin(run: Path, recipe: Recipe, corpus: "Corpus") -> None:
    """Write down what is trained."""
    written = run / ".recipe.json"
    written.write_text(json.dumps(identity(recipe, corpus), indent=1) + "\n", encoding="utf-8")
    written.replace(run / "recipe.json")


def refuse_another(run: Path, recipe: Recipe, corpus: "Corpus") -> None:
    """Refuse a folder where something else is trained."""
    file = run / "recipe.json"
    if not file.exists():
        return
    now, before = identity(recipe, corpus), json.loads(file.read_text(encoding="utf-8"))
    if differing := [key for key in now if now[key] != before.get(key)]:
        shown = ", ".join(f"{key}: {before.get(key)!r} there, {now[key]!r} here" for key in differing[:4])
        raise ValueError(f"{run} holds another run ({shown}). Choose another folder, or delete that one.")


def identity(recipe: Recipe, corpus: "Corpus") -> dict[str, Any]:
    """What makes two runs the same: the recipe but for how it is carried out, and the text."""
    how = ("name", "compile", "device_tokens", "checkpoint_every", "log_every")
    same = {key: value for key, value in asdict(recipe).items() if key not in how}
    return json.loads(json.dumps({**same, "corpus": corpus.fingerprint}))  # type: ignore[no-any-return]


def finish(run: Path, trainer: PretrainTrainer, corpus: "Corpus", seconds: float) -> None:
    """Put the model in its place and say that all is done."""
    from longfire.provenance import provenance

    model = cast(LongfireForCausalLM, trainer.model)
    refuse_not_finite(model, "at the end")
    corpus.save_tokenizer(run / ".model")
    (run / ".model" / "corpus.json").write_text(json.dumps(corpus.describe(), indent=1) + "\n", encoding="utf-8")
    (run / ".model" / "training_args.bin").unlink(missing_ok=True)
    if (run / "model").exists():
        shutil.rmtree(run / "model")
    (run / ".model").replace(run / "model")
    recipe = trainer.recipe
    losses = read_losses(run / LOSSES)
    done = {
        "provenance": provenance(),
        "recipe": asdict(recipe),
        "corpus": corpus.describe(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_seen": recipe.tokens,
        "unique_tokens": min(recipe.tokens, corpus.train.num_tokens),
        "seconds": round(seconds, 2),
        "tokens/s": losses[-1]["tokens/s"] if losses else None,
        "final_loss": losses[-1]["loss"] if losses else None,
    }
    written = run / ".done.json"
    written.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    written.replace(run / "done.json")
    for folder in run.glob("checkpoint-*"):
        shutil.rmtree(folder)


def _explained(error: OSError, run: Path) -> OSError:
    """A full disk, in words."""
    if error.errno != errno.ENOSPC:
        return error
    what = f"the disk is full; {_kept(run)}. Make room and start again with the same command"
    return OSError(errno.ENOSPC, what, str(run))


def _kept(run: Path) -> str:
    last = last_complete(run)
    return "there is no checkpoint yet" if last is None else f"the checkpoint after step {step_of(last)} is whole"
