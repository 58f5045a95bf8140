"""Atomic file writes: a reader sees the old content or the new, never half a file."""

import fcntl
import json
import os
import re
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file atomically, creating its folder if needed. Text is written as UTF-8.

    The draft has an unguessable name in the same folder and is never opened through a symbolic link. If `path` is a
    link, the link is replaced, not its target.
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
    """Create a draft, open and locked. The lock dies with its process, so an unlocked draft is abandoned."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):  # some network file systems have no locks: abandoned drafts stay
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return draft, handle
        os.close(handle)  # another writer removed it before it was locked


def _remove_abandoned_drafts(path: Path) -> None:
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")
    for draft in [Path(entry.path) for entry in os.scandir(path.parent) if name.fullmatch(entry.name)]:
        with suppress(OSError):  # locked, or already gone
            handle = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)  # NFS locks only writable files
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()
            finally:
                os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file atomically."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} if the file does not exist. A damaged file raises a ValueError that names it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        reason = f"it begins with {str(content)[:20]!r}"
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        reason = str(error)
    raise ValueError(
        f"{path} is damaged: it is not a JSON object ({reason}). Restore it from a backup, or delete it to recreate it."
    )


def refuse_unwritable(folder: Path) -> None:
    """Refuse an output folder that cannot be created or written to, without creating it."""
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}. Choose another with --out FOLDER.") from error
