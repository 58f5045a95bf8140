"""The tasks there are, for a page: where each comes from, what a row's text is, and what counts as an answer."""

from longfire.report.table import markdown_table
from longfire.tasks import TASKS, Task

FORMS = {
    "question": "question, blank line, document",
    "options": "question, four options (A) … (D), blank line, document",
    "document": "document",
}


def tasks_markdown() -> str:
    """A row for each."""
    rows = [
        [f"`{task.name}`", " ".join(filter(None, task.hub)), _text(task), _answers(task), str(task.max_answer)]
        for task in TASKS.values()
    ]
    return markdown_table(["", "on the Hugging Face hub", "text of a row", "answers", "tokens"], rows, left=4)


def _text(task: Task) -> str:
    text = FORMS.get(task.form, f"`{task.template}`")
    return f"{text}; `{task.document}` may be cut" if task.document else text


def _answers(task: Task) -> str:
    return ", ".join(f"`{choice}`" for choice in task.choices) or "free"
