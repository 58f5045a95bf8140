"""Folders of files made once: written whole or not at all, checked whenever they are read, safe for many processes."""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from longfire.atomic_io import write_whole

log = logging.getLogger(__name__)

RECORD = "record.json"
BLOCK = 1 << 24  # bytes under one checksum: threads share the blocks of a file


class DamagedError(Exception):
    """A cached folder is not what was written."""


def default_folder() -> Path:
    """$LONGFIRE_CACHE, or .cache/longfire in the home folder."""
    return Path(os.environ.get("LONGFIRE_CACHE") or "~/.cache/longfire").expanduser()


class Cache:
    """Folders under keys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                error.errno, f"the cache folder {root} cannot be made ({error.strerror}). Set LONGFIRE_CACHE to another"
            ) from error

    def get(self, key: str, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any], bool]:
        """The folder of a key, its record (see `read_record`), and whether it was built now.

        `build` fills an empty folder and returns the record's content. It runs in one process at a time; the others
        wait and read what it made. A folder that was cut off or altered is built again.
        """
        folder = self.root / key
        try:
            return folder, read_record(folder), False
        except (FileNotFoundError, DamagedError):
            pass
        lock = FileLock(self.root / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            log.warning("another process is preparing the same tokens in %s; waiting for it", folder)
            lock.acquire()
        try:
            return self._get_alone(folder, build)
        finally:
            lock.release()

    def _get_alone(self, folder: Path, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any], bool]:
        try:
            return folder, read_record(folder), False
        except FileNotFoundError:
            pass
        except DamagedError as error:
            log.warning("the cache is damaged (%s); it is built again", error)
        for left in self.root.glob(f"{folder.name}.making-*"):  # by a process that was killed: the lock is ours now
            shutil.rmtree(left, ignore_errors=True)
        making = Path(tempfile.mkdtemp(prefix=f"{folder.name}.making-", dir=self.root))
        making.chmod(self.root.stat().st_mode)  # as readable as the rest
        try:
            write_record(making, build(making))
            if folder.exists():
                folder.rename(making / "damaged")  # whoever still reads it keeps its files
                shutil.rmtree(making / "damaged")
            making.replace(folder)
            _sync(self.root)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                what = f"no space left for tokens in {self.root}. Free some, or set LONGFIRE_CACHE to another folder"
                raise OSError(error.errno, what) from error
            raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return folder, read_record(folder), True


def write_record(folder: Path, content: dict[str, Any]) -> None:
    """Seal a folder: sizes and checksums of all its files, on the disk before this returns."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        _sync(path)
    files = {path.relative_to(folder).as_posix(): [path.stat().st_size, checksums(path)] for path in paths}
    sealed = {"content": content, "files": files}
    (folder / RECORD).write_text(json.dumps({**sealed, "seal": _seal(sealed)}, indent=1))
    _sync(folder / RECORD)
    for inner in {path.parent for path in paths} | {folder}:
        _sync(inner)


def read_record(folder: Path) -> dict[str, Any]:
    """A sealed folder's record (`content`, `files`: their sizes and checksums), after all its files were checked."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        seal = record.pop("seal")
    except FileNotFoundError:
        if folder.exists():
            raise DamagedError(f"{folder / RECORD} is missing") from None
        raise
    except (ValueError, KeyError, AttributeError):
        raise DamagedError(f"{folder / RECORD} is not what was written") from None
    if seal != _seal(record):
        raise DamagedError(f"{folder / RECORD} was altered")
    for name, (size, sums) in record["files"].items():
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{path} is missing")
        if path.stat().st_size != size:
            raise DamagedError(f"{path} has {path.stat().st_size} bytes, not the {size} that were written")
        if checksums(path) != sums:
            raise DamagedError(f"{path} was altered")
    return dict(record)


def checksums(path: Path) -> list[int]:
    """CRC-32 of each block of a file: against accidents, and fast (some GB/s a core)."""
    size = path.stat().st_size
    if size == 0:
        return []
    data = np.memmap(path, np.uint8, "r")
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda start: zlib.crc32(data[start : start + BLOCK].data), range(0, size, BLOCK)))


def short_hash(value: Any) -> str:
    """Of anything JSON can write."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _identified(path: Path) -> str:
    """A file as it is now: no program can change its content and leave all of this as it was."""
    stat = path.stat()
    return f"{path.resolve()} {stat.st_dev}:{stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


class Notes:
    """Small values kept beside the cache: above all the hashes of files, so that a warm start reads none of them.

    The hash is remembered under all that a stat says of the file. Size and mtime alone are not enough: archives and
    copies restore both. No program can set the ctime. A file touched within the last two seconds is not remembered,
    since it could change again within the clock's resolution.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / "notes.json"
        self.known = self._read()
        self.new: dict[str, str] = {}

    def digest(self, path: Path) -> str:
        """The hash of a file's content."""
        started, what = time.time_ns(), _identified(path)
        if what in self.known:
            return self.known[what]
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        if what == _identified(path) and path.stat().st_ctime_ns < started - 2 * 10**9:
            self.remember(what, found)
        return found

    def remember(self, what: str, value: str) -> None:
        """Keep a value; `save` writes it."""
        self.known[what] = self.new[what] = value

    def recall(self, what: str) -> str | None:
        """The value that was kept, if one was."""
        return self.known.get(what)

    def save(self) -> None:
        """Add what is new to what other processes have written; where nothing can be written, it is found out again."""
        if not self.new:
            return
        try:
            with FileLock(f"{self.path}.lock"):
                merged = {**self._read(), **self.new}
                write_whole(self.path, json.dumps(merged, indent=0))
        except OSError as error:
            log.info("no notes were kept in %s (%s)", self.path, error)
        self.new = {}

    def _read(self) -> dict[str, str]:
        try:
            read = json.loads(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return read if isinstance(read, dict) else {}


def _seal(value: Any) -> str:
    return short_hash(json.loads(json.dumps(value)))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
