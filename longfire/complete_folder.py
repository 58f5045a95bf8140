"""Mark folders as complete: a file written last lists all others with their sizes and checksums.

Used for checkpoints, best models and token caches. A folder that has no mark or does not match it is incomplete or was
altered.
"""

import hashlib
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from longfire.atomic_io import write_whole

MARK = "complete.json"
BLOCK = 1 << 24
"""Bytes per checksum, so that threads can share a file."""


class IncompleteError(Exception):
    """A folder is incomplete or was altered."""


def mark_complete(folder: Path, content: Any = None, mark: str = MARK) -> None:
    """Mark a folder as complete once all its files are on disk. `content` is stored in the mark."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / mark)
    if not paths:  # writing the mark would recreate a deleted folder
        raise FileNotFoundError(f"{folder} was deleted while it was being written. Run the same command again.")
    for path in paths:
        sync(path)
    files = {path.relative_to(folder).as_posix(): [path.stat().st_size, checksums(path)] for path in paths}
    sealed = json.loads(json.dumps({"content": content, "files": files}))
    write_whole(folder / mark, json.dumps({**sealed, "seal": short_hash(sealed)}))
    for inner in {path.parent for path in paths} | {folder}:
        sync(inner)


def read_mark(folder: Path, mark: str = MARK) -> dict[str, Any]:
    """Verify every file of a complete folder and return its mark: `content` and `files`.

    Raises:
        FileNotFoundError: the folder does not exist.
        IncompleteError: the folder is incomplete or was altered.
        OSError: a file cannot be read, which proves nothing.
    """
    try:
        found = json.loads((folder / mark).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            raise IncompleteError(f"{folder / mark} is missing") from None
        raise
    except ValueError:
        raise IncompleteError(f"{folder / mark} is not valid JSON") from None
    sealed = _sealed(found)
    if sealed is None:
        raise IncompleteError(f"{folder / mark} was altered")
    for name, (size, sums) in sealed["files"].items():
        path = folder / name
        try:
            actual = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise IncompleteError(f"{path} is missing") from None
        if actual != size:
            raise IncompleteError(f"{path} has {actual} bytes, not the {size} that were written")
        if (checksums(path) if isinstance(sums, list) else checksum(path)) != sums:
            raise IncompleteError(f"{path} was altered")
    return sealed


def _sealed(found: Any) -> dict[str, Any] | None:
    """The mark's content and files; None if it was altered. Marks of earlier releases contain the files only."""
    if not isinstance(found, dict) or not found:
        return None
    if "seal" not in found:
        entries = all(isinstance(entry, list) and len(entry) == 2 for entry in found.values())
        return {"content": None, "files": found} if entries else None
    seal = found.pop("seal")
    return found if seal == short_hash(found) and isinstance(found.get("files"), dict) else None


def checksums(path: Path) -> list[int]:
    """CRC-32 of each block: detects accidental damage at a few GB/s per core."""

    def block_checksum(start: int) -> int:
        with path.open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(BLOCK))

    with ThreadPoolExecutor() as threads:
        return list(threads.map(block_checksum, range(0, path.stat().st_size, BLOCK)))


def checksum(path: Path) -> int:
    """CRC-32 of a whole file, as in marks of earlier releases."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total = zlib.crc32(block, total)
    return total


def short_hash(value: Any) -> str:
    """Hash of a JSON-serialisable value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
