"""Which checkpoints of a run are whole: one is marked when all of it is on the disk; only marked ones are loaded."""

import json
import os
import shutil
import zlib
from pathlib import Path

from longfire.storage import write_whole

MARK = "complete.json"


def mark_complete(folder: Path) -> None:
    """Say that a checkpoint is whole: its files, their sizes and sums, once they are on the disk."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != MARK:
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
            found[str(file.relative_to(folder))] = [file.stat().st_size, checksum(file)]
    write_whole(folder / MARK, json.dumps(found))
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint is as it was when it was marked."""
    try:
        found = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return bool(found) and all(
            (folder / name).stat().st_size == size and checksum(folder / name) == expected
            for name, (size, expected) in found.items()
        )
    except (OSError, ValueError):
        return False


def checksum(file: Path) -> int:
    """CRC-32."""
    total = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


def last_complete(run: Path) -> Path | None:
    """The newest whole checkpoint of a run."""
    return next((folder for folder in reversed(checkpoints(run)) if is_complete(folder)), None)


def checkpoints(run: Path, kind: str = "checkpoint") -> list[Path]:
    """Folders `kind-N`, the oldest first, whole or not."""
    folders = [folder for folder in run.glob(f"{kind}-*") if folder.name.rpartition("-")[2].isdigit()]
    return sorted(folders, key=step_of)


def step_of(folder: Path) -> int:
    """After which a checkpoint was written."""
    return int(folder.name.rpartition("-")[2])


def discard_incomplete(run: Path, kind: str = "checkpoint") -> list[Path]:
    """Delete what was cut off while being written, so that it is never taken for a checkpoint."""
    broken = [folder for folder in checkpoints(run, kind) if not is_complete(folder)]
    for folder in broken:
        shutil.rmtree(folder)
    return broken
