"""Files that are whole: whoever looks sees the old content or the new, never a part, whatever happens meanwhile."""

import json
import os
import tempfile
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
    """Write a file at once. Its folder is made if need be; a text is UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """The same, as JSON."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Of a file that may be missing: nothing, then. One that is damaged is named."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
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
