"""A training run's folder: one process at a time, resumed if interrupted, skipped if finished.

RUN/recipe.json   the run's identity: what is trained, on what
    losses.jsonl  one line every few steps
    checkpoint-N/ to resume from; the last two, each marked when complete
    model/        the trained model with its tokenizer, at the end
    done.json     written last
"""

import errno
import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformers.integrations.integration_utils import TensorBoardCallback

from longfire.atomic_io import read_json, write_json
from longfire.training.base_recipe import translate_fields
from longfire.training.checkpoints import checkpoints, describe_last, discard_incomplete, last_complete, step_of
from longfire.training.initial_model import digest
from longfire.training.interruption import Interruption
from longfire.training.processes import is_first
from longfire.training.trainer import RecipeTrainer
from longfire.validation import describe_differences, differences

log = logging.getLogger(__name__)

DRAFT = ".model"
"""The trained model's folder until it is complete."""
DISK_FULL = ("No space left", "Disk quota exceeded", "inline_container")
"""Parts of libraries' messages about a full disk; the last is from PyTorch's zip files."""


def run_training(
    run: Path,
    identity: Mapping[str, Any],
    make_trainer: Callable[[], RecipeTrainer[Any]],
    *,
    tracker: str = "none",
    wait: bool = False,
) -> Path:
    """Train to the end and return the model's folder. Finished runs are skipped, interrupted ones resume.

    Args:
        run: the run's folder. One that contains a run with a different identity is refused.
        identity: what identifies the run.
        make_trainer: called unless the run is finished, before the folder is locked, so that it can refuse.
        tracker: "tensorboard" writes into the folder; the Trainer handles others.
        wait: if another process is training in the folder, wait for it instead of raising an error.
    """
    trainer = None if is_done(run, identity) else make_trainer()
    if trainer is None and not _leftovers(run):
        return run / "model"
    with _lock(run, wait):
        if trainer is None or is_done(run, identity):
            _clean_up(run)
        else:
            _track(trainer, tracker, run)
            _train(trainer, run, identity)
    return run / "model"


def as_json(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping as it would be read back from a JSON file."""
    return json.loads(json.dumps(dict(identity)))  # type: ignore[no-any-return]


def differing(run: Path, identity: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """How the run in a folder differs from this one: name → (its value, ours). Empty for a new folder."""
    recorded = translate_fields(read_json(run / "recipe.json"))
    return differences(recorded, as_json(identity)) if recorded else {}


def is_done(run: Path, identity: Mapping[str, Any]) -> bool:
    """Whether the run is finished. Refuses a folder with a different run."""
    if other := differing(run, identity):
        raise ValueError(
            f"{run} already contains a different run ({describe_differences(other)}). Choose another folder, or "
            f"delete it."
        )
    return bool(read_json(run / "done.json"))


@contextmanager
def _lock(run: Path, wait: bool) -> Iterator[None]:
    """One command per run: its first process locks the folder; the system releases the lock if it dies."""
    run.mkdir(parents=True, exist_ok=True)
    if not is_first():
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


def _leftovers(run: Path) -> list[Path]:
    """Folders that a finished run no longer needs, left behind if it was killed while cleaning up."""
    return [folder for folder in (run / DRAFT, *checkpoints(run), *checkpoints(run, "best")) if folder.exists()]


def _clean_up(run: Path) -> None:
    for folder in _leftovers(run) if is_first() else ():
        shutil.rmtree(folder)


def _track(trainer: RecipeTrainer[Any], tracker: str, run: Path) -> None:
    """Add TensorBoard in the run's folder, and drop the Trainer's own printing."""
    if tracker == "tensorboard" and trainer.is_world_process_zero():
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(run / "tensorboard")
        trainer.add_callback(TensorBoardCallback(writer))
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in ("PrinterCallback", "ProgressCallback"):
            trainer.remove_callback(callback)


def _train(trainer: RecipeTrainer[Any], run: Path, identity: Mapping[str, Any]) -> None:
    """Train from the last complete checkpoint, save the model, and mark the run as done."""
    first, synchronise = trainer.is_world_process_zero(), trainer.accelerator.wait_for_everyone
    if first:
        write_json(run / "recipe.json", as_json(identity))
    synchronise()
    last = last_complete(run)
    if first:
        for folder in discard_incomplete(run):
            print(f"deleted {folder}: the checkpoint was incomplete.", file=sys.stderr)
        shutil.rmtree(run / DRAFT, ignore_errors=True)
    synchronise()
    trainer.last_step_is_done = (0 if last is None else step_of(last)) >= trainer.recipe.steps
    started = time.time()
    try:
        with Interruption() as interruption:
            trainer.add_callback(interruption)
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        done = {**trainer.training_summary(), "seconds": round(time.time() - started, 2)}
        done |= trainer.save_result(run / DRAFT)
        if first:
            _finish(run, done)
    except Exception as error:
        if (explained := _explain(error, run)) is None:
            raise
        raise explained from error
    finally:
        trainer.monitor.close()
    synchronise()


def _finish(run: Path, done: Mapping[str, Any]) -> None:
    """Move the model into place, write done.json, and delete the checkpoints."""
    from longfire.provenance import provenance

    (run / DRAFT / "training_args.bin").unlink(missing_ok=True)
    if (run / "model").exists():
        shutil.rmtree(run / "model")
    (run / DRAFT).replace(run / "model")
    write_json(run / "done.json", {"provenance": provenance(), **done, "digest": digest(run / "model")})
    _clean_up(run)


def _explain(error: Exception, run: Path) -> Exception | None:
    """A clearer error for a full disk or a killed data loader. None: raise the error as it is."""
    message = str(error)
    from_rust = re.search(r"\(os error (\d+)\)", message)  # safetensors and tokenizers do not raise OSErrors
    code = error.errno if isinstance(error, OSError) else from_rust and int(from_rust[1])
    if code in (errno.ENOSPC, errno.EDQUOT) or any(part in message for part in DISK_FULL):
        what = f"the disk is full; {describe_last(run)}. Free some space and run the same command again"
        return OSError(errno.ENOSPC, what, str(run))
    if from_rust and not isinstance(error, OSError):
        return OSError(code, f"{message}; {describe_last(run)}", str(run))
    if isinstance(error, RuntimeError) and "DataLoader worker" in message:
        return ChildProcessError(
            f"a data loader process died ({error}), often because memory ran out; {describe_last(run)}. Run the "
            f"same command again."
        )
    return None
