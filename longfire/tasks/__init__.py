"""Questions with known answers: SCROLLS, GLUE and SuperGLUE, text to text.

What the tasks are is known at once; what reads and tokenises them is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longfire.tasks.dev_split import divide
from longfire.tasks.suites import SUITES, TASKS, task_named
from longfire.tasks.task import Example, Task
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.tasks.encode import CUE, answer_ids, prompt_ids, training_row, training_rows
    from longfire.tasks.load import load_examples

__all__ = [
    "CUE",
    "SUITES",
    "TASKS",
    "Example",
    "Task",
    "answer_ids",
    "divide",
    "load_examples",
    "prompt_ids",
    "task_named",
    "training_row",
    "training_rows",
]

_HOME = {
    **dict.fromkeys(("CUE", "answer_ids", "prompt_ids", "training_row", "training_rows"), "encode"),
    "load_examples": "load",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = globals()[name] = getattr(import_module(f"longfire.tasks.{_HOME[name]}"), name)
        return value
    raise AttributeError(f"longfire.tasks has no {name!r}. {hint(name, __all__)}")
