"""What was found out before, in a file that says what was asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, write_json

Found = dict[str, Any]


def kept(file: Path, asked: Any) -> Found | None:
    """What the file holds, if it was asked the same."""
    try:
        there = read_json(file)
    except ValueError:  # it is found out again
        return None
    same = "found" in there and there.get("asked") == json.loads(json.dumps(asked))
    return dict(there["found"]) if same else None


def keep(file: Path, asked: Any, found: Found) -> None:
    """For the next time."""
    write_json(file, {"asked": asked, "found": found})


def kept_or_made(file: Path, asked: Any, make: Callable[[], Found]) -> Found:
    """What the file holds; otherwise it is made, and written there."""
    if (found := kept(file, asked)) is None:
        keep(file, asked, found := make())
    return found
