"""Cache of results: each file stores a result with the request that produced it, so that nothing is measured twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, write_json

Result = dict[str, Any]


def load_result(file: Path, asked: Any) -> Result | None:
    """The cached result, or None if the file is missing, damaged, or answers another request."""
    try:
        content = read_json(file)
    except ValueError:  # damaged: measure again
        return None
    same = "found" in content and content.get("asked") == json.loads(json.dumps(asked))
    return dict(content["found"]) if same else None


def save_result(file: Path, asked: Any, result: Result) -> None:
    """Store a result with its request."""
    write_json(file, {"asked": asked, "found": result})


def cached_result(file: Path, asked: Any, measure: Callable[[], Result]) -> Result:
    """The cached result, measured and stored first if necessary."""
    if (result := load_result(file, asked)) is None:
        save_result(file, asked, result := measure())
    return result
