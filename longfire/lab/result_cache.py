"""Results kept in a file together with the question they answer, so that the same question is not measured twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, write_json

Result = dict[str, Any]


def load_result(file: Path, asked: Any) -> Result | None:
    """The result in the file, if it answers the same question."""
    try:
        content = read_json(file)
    except ValueError:  # damaged: measure again
        return None
    same = "found" in content and content.get("asked") == json.loads(json.dumps(asked))
    return dict(content["found"]) if same else None


def save_result(file: Path, asked: Any, result: Result) -> None:
    """Keep a result with its question."""
    write_json(file, {"asked": asked, "found": result})


def cached_result(file: Path, asked: Any, measure: Callable[[], Result]) -> Result:
    """The result in the file; otherwise measured now and kept there."""
    if (result := load_result(file, asked)) is None:
        save_result(file, asked, result := measure())
    return result
