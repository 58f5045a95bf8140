"""Which checkpoints of a run are complete: one is marked when all of it is on the disk; only marked ones are loaded."""

import json
import logging
import os
import shutil
import zlib
from pathlib import Path

from longfire.atomic_io import write_whole

log = logging.getLogger(__name__)

MARK = "complete.json"


def mark_complete(folder: Path) -> None:
    """Mark a checkpoint as complete: its files, their sizes and sums, once they are on the disk."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != MARK:
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
            found[str(file.relative_to(folder))] = [file.stat().st_size, checksum(file)]
    if not found:  # nor is a folder that is gone made anew by its mark
        raise FileNotFoundError(f"{folder} was deleted while it was written. Start again with the same command.")
    write_whole(folder / MARK, json.dumps(found))
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint is as it was when it was marked. One that cannot be read is an OSError: nobody knows."""
    try:
        found = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return bool(found) and all(
            (folder / name).stat().st_size == size and checksum(folder / name) == expected
            for name, (size, expected) in found.items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, AttributeError):
        return False
    except OSError as error:
        remedy = "Nothing was deleted. Start again once it can be read, or delete it to resume from an older one"
        raise OSError(error.errno, f"the checkpoint {folder} cannot be read ({error.strerror}). {remedy}") from error


def checksum(file: Path) -> int:
    """CRC-32."""
    total = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


def last_complete(run: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    return next((folder for folder in reversed(checkpoints(run)) if is_complete(folder)), None)


def checkpoints(run: Path, kind: str = "checkpoint") -> list[Path]:
    """Folders `kind-N`, the oldest first, complete or not."""
    folders = [folder for folder in run.glob(f"{kind}-*") if folder.name.rpartition("-")[2].isdigit()]
    return sorted(folders, key=step_of)


def step_of(folder: Path) -> int:
    """After which a checkpoint was written."""
    return int(folder.name.rpartition("-")[2])


def discard_incomplete(run: Path, kind: str = "checkpoint") -> list[Path]:
    """Delete what was cut off while being written. What cannot be read may be whole: it stays, and is named."""
    broken = []
    for folder in checkpoints(run, kind):
        try:
            if not is_complete(folder):
                broken.append(folder)
        except OSError as error:
            log.warning("%s is left as it is: %s", folder, error.strerror)
    for folder in broken:
        shutil.rmtree(folder)
    return broken


def discard_oldest(run: Path, kept: int) -> None:
    """Delete all but the last so many checkpoints (0: none), by step: a clock may have been set back."""
    for folder in checkpoints(run)[:-kept]:
        shutil.rmtree(folder, ignore_errors=True)  # what stays is tried again after the next checkpoint
