"""Token cache: folders by key, built once, verified on every read, safe with many processes."""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from longfire.atomic_io import write_whole
from longfire.complete_folder import IncompleteError, mark_complete, read_mark, sync

log = logging.getLogger(__name__)

RECORD = "record.json"
"""The file that marks a token folder as complete."""


class TokenCache:
    """Token folders by key."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot create the cache folder {root} ({error.strerror}). Set LONGFIRE_CACHE to another one",
            ) from error

    def get(self, key: str, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any], bool]:
        """The folder of a key, its mark (see `read_mark`), and whether this call built it.

        `build` fills an empty folder and returns the mark's content. It runs in one process at a time; others wait and
        read the result. An incomplete or altered folder is rebuilt.
        """
        folder = self.root / key
        try:
            return folder, read_mark(folder, RECORD), False
        except (FileNotFoundError, IncompleteError):
            pass
        lock = FileLock(self.root / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            log.warning("another process is preparing the same tokens in %s; waiting for it", folder)
            lock.acquire()
        try:
            built = self._build(folder, build)
            return folder, read_mark(folder, RECORD), built
        finally:
            lock.release()

    def _build(self, folder: Path, build: Callable[[Path], dict[str, Any]]) -> bool:
        """Build in a draft folder and move it into place, unless another process did. The caller must hold the lock."""
        try:
            read_mark(folder, RECORD)
            return False
        except FileNotFoundError:
            pass
        except IncompleteError as error:
            log.warning("the cache is damaged (%s) and will be rebuilt", error)
        for abandoned in self.root.glob(f"{folder.name}.making-*"):  # by a killed process
            shutil.rmtree(abandoned, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.making-", dir=self.root))
        draft.chmod(self.root.stat().st_mode)  # as readable as the rest
        try:
            mark_complete(draft, build(draft), RECORD)
            if folder.exists():
                folder.rename(draft / "damaged")  # processes still reading it keep its files
                shutil.rmtree(draft / "damaged")
            draft.replace(folder)
            sync(self.root)
            return True
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                what = f"no space left for tokens in {self.root}. Free some, or set LONGFIRE_CACHE to another folder"
                raise OSError(error.errno, what) from error
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def default_folder() -> Path:
    """$LONGFIRE_CACHE, or ~/.cache/longfire."""
    return Path(os.environ.get("LONGFIRE_CACHE") or "~/.cache/longfire").expanduser()


class FileHashes:
    """Content hashes of files, remembered between runs so that a warm start reads no text.

    The key of a hash is the file's path, inode, size, mtime and ctime. Archives and copies restore size and mtime, but
    no program can set the ctime. Files changed within the last two seconds are not remembered: they could change again
    within the clock's resolution. Other small values can be stored too.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / "notes.json"
        self.known = self._read()
        self.new: dict[str, str] = {}

    def digest(self, path: Path) -> str:
        started, state = time.time_ns(), _file_state(path)
        if state in self.known:
            return self.known[state]
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        if state == _file_state(path) and path.stat().st_ctime_ns < started - 2 * 10**9:
            self.remember(state, found)
        return found

    def remember(self, key: str, value: str) -> None:
        """Store a value; `save` writes it."""
        self.known[key] = self.new[key] = value

    def recall(self, key: str) -> str | None:
        return self.known.get(key)

    def save(self) -> None:
        """Merge new values with those of other processes. Failing to write them is not an error."""
        if not self.new:
            return
        try:
            with FileLock(f"{self.path}.lock"):
                write_whole(self.path, json.dumps({**self._read(), **self.new}, indent=0))
        except OSError as error:
            log.info("cannot write %s (%s)", self.path, error)
        self.new = {}

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _file_state(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()} {stat.st_dev}:{stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
