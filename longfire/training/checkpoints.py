"""A run's checkpoints: numbered folders, loaded only if complete."""

import logging
import shutil
from pathlib import Path

from longfire.complete_folder import IncompleteError, read_mark

log = logging.getLogger(__name__)


def checkpoints(run: Path, kind: str = "checkpoint") -> list[Path]:
    """Folders `kind-N`, oldest first, complete or not."""
    folders = [folder for folder in run.glob(f"{kind}-*") if folder.name.rpartition("-")[2].isdigit()]
    return sorted(folders, key=step_of)


def step_of(folder: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(folder.name.rpartition("-")[2])


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint is unchanged since it was marked. Raises OSError if it cannot be read."""
    try:
        read_mark(folder)
    except (FileNotFoundError, NotADirectoryError, IncompleteError):
        return False
    except OSError as error:
        remedy = "Nothing was deleted. Try again once it can be read, or delete it to resume from an older one"
        raise OSError(error.errno, f"the checkpoint {folder} cannot be read ({error.strerror}). {remedy}") from error
    return True


def last_complete(run: Path) -> Path | None:
    """A run's newest complete checkpoint."""
    return next((folder for folder in reversed(checkpoints(run)) if is_complete(folder)), None)


def describe_last(run: Path) -> str:
    """Where an interrupted run would resume, as a phrase for messages."""
    try:
        last = last_complete(run)
    except OSError as error:
        return str(error.strerror)
    return "there is no checkpoint yet" if last is None else f"the checkpoint after step {step_of(last)} is complete"


def discard_incomplete(run: Path, kind: str = "checkpoint") -> list[Path]:
    """Delete incomplete checkpoints and return their paths. Unreadable ones may be complete, so they stay."""
    broken = []
    for folder in checkpoints(run, kind):
        try:
            if not is_complete(folder):
                broken.append(folder)
        except OSError as error:
            log.warning("keeping %s: %s", folder, error.strerror)
    for folder in broken:
        shutil.rmtree(folder)
    return broken


def discard_oldest(run: Path, keep: int) -> None:
    """Delete all but the last `keep` checkpoints (0: keep all), by step: the clock may have been set back."""
    for folder in checkpoints(run)[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)  # leftovers are deleted after the next checkpoint
