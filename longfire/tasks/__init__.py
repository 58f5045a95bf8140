"""Questions with known answers: SCROLLS, GLUE and SuperGLUE, text to text."""

from longfire.tasks.task import Example, Task

__all__ = ["Example", "Task"]
