"""What all training runs share: a folder of their own, one command at a time, and resuming.

RUN/recipe.json   what is trained, on what
    losses.jsonl  a line for every few steps
    checkpoint-N/ to resume from; the last two, each marked when it is complete
    model/        the trained model with its tokenizer, at the end
    done.json     when all of this is there
"""

import errno
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback

from longfire.atomic_io import read_json, write_json
from longfire.training.callbacks import Watch
from longfire.training.checkpoints import checkpoints, discard_incomplete, last_complete, step_of
from longfire.training.interruption import Interruption
from longfire.training.recipes import AnyRecipe, translate_fields
from longfire.training.start import digest
from longfire.training.trainer import RecipeTrainer
from longfire.validation import at_least, describe_differences, differences

log = logging.getLogger(__name__)

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
DRAFT = ".model"
"""The folder of the trained model until it is complete."""
FULL = ("No space left", "Disk quota exceeded", "inline_container")
"""In what libraries say when a disk is full; the last is of PyTorch's zip files."""


@contextmanager
def alone_in(run: Path, wait: bool = False) -> Iterator[None]:
    """One command a run: the first process of each holds a lock, which the system takes back if it dies.

    Another command waits for it, or is refused.
    """
    run.mkdir(parents=True, exist_ok=True)
    if int(os.environ.get("RANK", "0")) != 0:
        yield
        return
    lock = FileLock(run / ".lock")
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        if not wait:
            raise ValueError(
                f"another process is training in {run}. Wait for it, stop it, or choose another folder."
            ) from None
        log.warning("another process is training in %s; waiting for it", run)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def as_json(identity: Mapping[str, Any]) -> dict[str, Any]:
    """As it is read back from a file."""
    return json.loads(json.dumps(dict(identity)))  # type: ignore[no-any-return]


def differing(run: Path, identity: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a folder's run has other than this one: by name, the value there and the value here."""
    there = translate_fields(read_json(run / "recipe.json"))
    return differences(there, as_json(identity)) if there else {}


def refuse_another(run: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder where something else is trained."""
    if other := differing(run, identity):
        raise ValueError(
            f"{run} holds another run ({describe_differences(other)}). Choose another folder, or delete that one."
        )


def is_done(run: Path, identity: Mapping[str, Any]) -> bool:
    """Whether all is trained. Refuses a folder where something else is."""
    refuse_another(run, identity)
    return bool(read_json(run / "done.json"))


def leftovers(run: Path) -> list[Path]:
    """What a run no longer needs once it is done; still there where it was killed while it cleaned up."""
    return [folder for folder in (run / DRAFT, *checkpoints(run), *checkpoints(run, "best")) if folder.exists()]


def clean_up(run: Path) -> None:
    """Delete what a run that is done no longer needs, on the first process alone."""
    for folder in leftovers(run) if int(os.environ.get("RANK", "0")) == 0 else ():
        shutil.rmtree(folder)


def training_arguments(
    recipe: AnyRecipe, run: Path, tracker: str, options: dict[str, Any], length: int | None = None
) -> TrainingArguments:
    """Hugging Face's, with the batch divided among devices and passes. `length`: of the longest row."""
    args = TrainingArguments(**{**arguments(recipe, run, tracker), **options})
    batch, accumulated = split_batch(recipe, args.world_size, args.device.type, length)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = batch, accumulated
    return args


def arguments(recipe: AnyRecipe, run: Path, tracker: str) -> dict[str, Any]:
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
        "report_to": "none" if tracker == "tensorboard" else tracker,  # which has a folder here
        "disable_tqdm": True,
        "dataloader_drop_last": True,
        "dataloader_pin_memory": on_gpu,
        "accelerator_config": {"non_blocking": on_gpu},  # or each step waits until the one before it is done
        "dataloader_num_workers": 2 if on_gpu else 0,
        "ddp_find_unused_parameters": False,
        "log_level": "error",
    }


def split_batch(recipe: AnyRecipe, devices: int, kind: str, length: int | None = None) -> tuple[int, int]:
    """Sequences of a forward pass on each device, and how many passes make a step."""
    at_least("devices", devices, 1)
    if recipe.batch_size % devices:
        raise ValueError(
            f"a batch of {recipe.batch_size} sequences cannot be divided among {devices} processes. Take a "
            f"multiple of {devices}."
        )
    own = recipe.batch_size // devices
    tokens = recipe.max_tokens_per_device or DEVICE_TOKENS.get(kind, DEVICE_TOKENS["cpu"])
    most = max(1, tokens // (recipe.length if length is None else length))
    size = max(size for size in range(1, own + 1) if own % size == 0 and size <= most)
    return size, own // size


def compiles(recipe: AnyRecipe, args: TrainingArguments) -> bool:
    """Whether layers are to be compiled."""
    return args.device.type == "cuda" if recipe.compile is None else recipe.compile


def track(trainer: RecipeTrainer[Any], tracker: str, run: Path) -> None:
    """TensorBoard in the run's folder, and none of the Trainer's own printing."""
    if tracker == "tensorboard" and trainer.is_world_process_zero():
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(run / "tensorboard")
        trainer.add_callback(TensorBoardCallback(writer))
    for callback in ("PrinterCallback", "ProgressCallback"):
        for one in [one for one in trainer.callback_handler.callbacks if type(one).__name__ == callback]:
            trainer.remove_callback(one)


def carry_out(
    trainer: RecipeTrainer[Any], run: Path, identity: Mapping[str, Any], deliver: Callable[[float], None]
) -> Path:
    """Train to the end, from the last complete checkpoint if there is one. Returns the model's folder.

    The first Ctrl-C or SIGTERM ends it after a step, with a checkpoint (`Interruption`).

    Args:
        trainer: of the run.
        run: its folder.
        identity: what is trained, as `refuse_another` compares it.
        deliver: called on all processes with the seconds it took, to put the model in its place.
    """
    first = trainer.is_world_process_zero()
    with_others = trainer.accelerator.wait_for_everyone
    if first:
        write_json(run / "recipe.json", as_json(identity))
    with_others()
    last = last_complete(run)
    if first:
        for folder in discard_incomplete(run):
            print(f"{folder} was cut off while it was written, and is left out.", file=sys.stderr)
        shutil.rmtree(run / DRAFT, ignore_errors=True)
    with_others()
    trainer.last_step_is_done = last is not None and step_of(last) >= trainer.recipe.steps
    started = time.time()
    try:
        with Interruption() as interruption:
            trainer.add_callback(interruption)
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        deliver(time.time() - started)
    except Exception as error:
        if (told := _in_words(error, run)) is None:
            raise
        raise told from error
    finally:
        for one in trainer.callback_handler.callbacks:
            if isinstance(one, Watch):  # it is told of no other end than the last step
                one.close()
    with_others()
    return run / "model"


def conclude(run: Path, done: Mapping[str, Any]) -> None:
    """Put the model from its draft in its place, say that all is done, and delete what it could resume from."""
    from longfire.provenance import provenance

    (run / DRAFT / "training_args.bin").unlink(missing_ok=True)
    if (run / "model").exists():
        shutil.rmtree(run / "model")
    (run / DRAFT).replace(run / "model")
    write_json(run / "done.json", {"provenance": provenance(), **done, "digest": digest(run / "model")})
    clean_up(run)


def _in_words(error: Exception, run: Path) -> Exception | None:
    """A full disk, or a reader of the data that was lost. None: another error, which speaks for itself."""
    said = str(error)
    in_rust = re.search(r"\(os error (\d+)\)", said)  # of safetensors and tokenizers, whose errors are no OSErrors
    code = error.errno if isinstance(error, OSError) else in_rust and int(in_rust[1])
    if code in (errno.ENOSPC, errno.EDQUOT) or any(sign in said for sign in FULL):
        what = f"the disk is full; {what_is_kept(run)}. Make room and start again with the same command"
        return OSError(errno.ENOSPC, what, str(run))
    if in_rust and not isinstance(error, OSError):
        return OSError(code, f"{said}; {what_is_kept(run)}", str(run))
    if isinstance(error, RuntimeError) and "DataLoader worker" in said:
        return ChildProcessError(
            f"a process that reads the data was lost ({error}): often memory ran out. {what_is_kept(run)}. Start again "
            f"with the same command."
        )
    return None


def what_is_kept(run: Path) -> str:
    """For whoever asks where a run that ended early would resume."""
    try:
        last = last_complete(run)
    except OSError as error:
        return str(error.strerror)
    return "there is no checkpoint yet" if last is None else f"the checkpoint after step {step_of(last)} is complete"
