"""What was found out before, in a file that says what was asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longfire.storage import write_json

Found = dict[str, Any]


def kept(file: Path, asked: Any) -> Found | None:
    """What the file holds, if it was asked the same."""
    if not file.is_file():
        return None
    there = json.loads(file.read_text(encoding="utf-8"))
    return dict(there["found"]) if there["asked"] == json.loads(json.dumps(asked)) else None


def keep(file: Path, asked: Any, found: Found) -> None:
    """For the next time."""
    write_json(file, {"asked": asked, "found": found})


def kept_or_made(file: Path, asked: Any, make: Callable[[], Found]) -> Found:
    """What the file holds; otherwise it is made, and written there."""
    if (found := kept(file, asked)) is None:
        keep(file, asked, found := make())
    return found
