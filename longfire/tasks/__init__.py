"""Questions with known answers: SCROLLS, GLUE and SuperGLUE as text-to-text tasks, and synthetic tasks of any length.

Task definitions load at once; code that reads and tokenises rows loads on first use.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from longfire.tasks.dev_split import split_train_dev
from longfire.tasks.suites import SUITES, TASKS, Example, Task, task_named
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.tasks.encode import CUE, answer_ids, prompt_ids, training_row, training_rows
    from longfire.tasks.load import load_examples
    from longfire.tasks.synthetic import SYNTHETIC, SyntheticTask, synthetic_task

__all__ = [
    "CUE",
    "SUITES",
    "SYNTHETIC",
    "TASKS",
    "Example",
    "SyntheticTask",
    "Task",
    "answer_ids",
    "load_examples",
    "prompt_ids",
    "split_train_dev",
    "synthetic_task",
    "task_named",
    "training_row",
    "training_rows",
]

_MODULES = {
    **dict.fromkeys(("CUE", "answer_ids", "prompt_ids", "training_row", "training_rows"), "encode"),
    "load_examples": "load",
    **dict.fromkeys(("SYNTHETIC", "SyntheticTask", "synthetic_task"), "synthetic"),
}


def __getattr__(name: str) -> Any:
    if name == "divide":
        message = "longfire.tasks.divide is now split_train_dev; the next release drops the old name."
        warnings.warn(message, FutureWarning, stacklevel=2)
        return split_train_dev
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(f"longfire.tasks.{_MODULES[name]}"), name)
        return value
    raise AttributeError(f"longfire.tasks has no {name!r}. {hint(name, __all__)}")
