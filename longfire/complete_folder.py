"""Folders that count as complete: a mark, written last, lists every file with its size and checksums.

Checkpoints, best models and token caches are all marked this way. A folder without a mark, or whose files differ from
it, was cut off or altered.
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
    """A folder is not what was written."""


def mark_complete(folder: Path, content: Any = None, mark: str = MARK) -> None:
    """Mark a folder as complete once all its files are on disk. `content` is stored in the mark."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / mark)
    if not paths:  # writing the mark would recreate a deleted folder
        raise FileNotFoundError(f"{folder} was deleted while it was written. Start again with the same command.")
    for path in paths:
        sync(path)
    files = {path.relative_to(folder).as_posix(): [path.stat().st_size, checksums(path)] for path in paths}
    sealed = json.loads(json.dumps({"content": content, "files": files}))
    write_whole(folder / mark, json.dumps({**sealed, "seal": short_hash(sealed)}))
    for inner in {path.parent for path in paths} | {folder}:
        sync(inner)


def read_mark(folder: Path, mark: str = MARK) -> dict[str, Any]:
    """A complete folder's mark: `content` and `files`, after every file was verified.

    Raises:
        FileNotFoundError: there is no folder.
        IncompleteError: the folder was cut off or altered.
        OSError: something cannot be read, so nothing is known.
    """
    try:
        found = json.loads((folder / mark).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            raise IncompleteError(f"{folder / mark} is missing") from None
        raise
    except ValueError:
        raise IncompleteError(f"{folder / mark} is not what was written") from None
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
    """The mark's content and files; None if it was altered. Earlier releases marked checkpoints with files alone."""
    if not isinstance(found, dict) or not found:
        return None
    if "seal" not in found:
        entries = all(isinstance(entry, list) and len(entry) == 2 for entry in found.values())
        return {"content": None, "files": found} if entries else None
    seal = found.pop("seal")
    return found if seal == short_hash(found) and isinstance(found.get("files"), dict) else None


def checksums(path: Path) -> list[int]:
    """CRC-32 of each block: guards against accidents, at some GB/s per core."""

    def one(start: int) -> int:
        with path.open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(BLOCK))

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, range(0, path.stat().st_size, BLOCK)))


def checksum(path: Path) -> int:
    """CRC-32 of a whole file."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total = zlib.crc32(block, total)
    return total


def short_hash(value: Any) -> str:
    """Hash of anything JSON can represent."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
