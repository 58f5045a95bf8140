"""Atomic file writes: a reader sees the old content or the new, never a part of it."""

import fcntl
import json
import os
import re
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def refuse_unwritable(folder: Path) -> None:
    """Before anything is done for it: refuse one that cannot be made or written to. It is not made yet."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"nothing can be written to the folder {folder} ({error.strerror}). Give another: --out FOLDER"
        ) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file atomically; a text is UTF-8. Its folder is made if need be.

    The draft lies beside the file under a name that cannot be guessed, and is never opened through a link. Where the
    path itself is a symbolic link, the link is replaced and what it points to stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_drafts(path)
    draft, handle = _new_draft(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _new_draft(path: Path) -> tuple[Path, int]:
    """An empty file, open and locked: the lock, which ends with its process, says that somebody is writing."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):  # some network file systems have no locks: there abandoned drafts stay
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return draft, handle
        os.close(handle)  # another writer took it for abandoned before it was locked


def _remove_abandoned_drafts(path: Path) -> None:
    """Those of this file whose writers were killed."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")
    for draft in [Path(entry.path) for entry in os.scandir(path.parent) if name.fullmatch(entry.name)]:
        with suppress(OSError):  # locked, or gone by now
            handle = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)  # NFS locks what is open for writing
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()
            finally:
                os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """The same, as JSON."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Of a file that may be missing: nothing, then. One that is damaged is named."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(found, dict):
        raise _damaged(path, f"it begins with {str(found)[:20]!r}")
    return found


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(
        f"{path} is damaged: it should be a JSON object ({how}). Put it back from a copy, or delete it, and what it "
        f"says is made anew."
    )
