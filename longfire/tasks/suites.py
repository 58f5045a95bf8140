"""All tasks by name, and the paper's two suites of them."""

from longfire.tasks.glue import GLUE
from longfire.tasks.scrolls import SCROLLS, SQUALITY
from longfire.tasks.task import Task
from longfire.validation import hint

TASKS: dict[str, Task] = {task.name: task for task in (*SCROLLS, SQUALITY, *GLUE)}
SUITES: dict[str, tuple[str, ...]] = {
    "scrolls": tuple(task.name for task in SCROLLS),
    "glue": tuple(task.name for task in GLUE),
}
"""Names of the tasks of each table of the paper, in its order."""


def task_named(name: str) -> Task:
    """The task with this name."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}. {hint(name, TASKS)}")
    return TASKS[name]
