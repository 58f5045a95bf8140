"""A trial of tasks that shall be short: few rows are read, answers end early, and what has no room is left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from longfire.tasks import Example, Task, prompt_ids, training_rows

MOST = 1 << 62
"""Room that no prompt fills."""


@dataclass(frozen=True)
class Brief:
    """How short."""

    rows: int
    """Questions of a split of a task that are read: the first."""
    max_answer: int
    """Tokens of an answer, at most."""

    def task(self, task: Task) -> Task:
        """With answers that end early."""
        return replace(task, max_answer=min(task.max_answer, self.max_answer))


@dataclass(frozen=True)
class Room:
    """Tokens that there are for a question, the cue and its answer, none of which is ever cut."""

    tokenizers: Sequence[Any]
    length: int

    def to_train(self, task: Task, examples: list[Example], least: int) -> list[Example]:
        """Those that have room with their own answers, and with one that is generated: they may come to judge by."""
        kept = [one for one in examples if self._learned(one) and self._asked(task, one)]
        return self._enough(kept, least, f"{len(examples)} rows of {task.name} to train on")

    def to_test(self, task: Task, examples: list[Example]) -> list[Example]:
        """Those that have room with an answer that is generated."""
        kept = [one for one in examples if self._asked(task, one)]
        return self._enough(kept, 1, f"{len(examples)} rows of {task.name} to test on")

    def _enough(self, kept: list[Example], least: int, of: str) -> list[Example]:
        if len(kept) < least:
            raise NoRoomError(
                f"{len(kept)} of the {of} have room in {self.length:,} tokens, and {least} must. Give shorter "
                f"questions and answers, or take a larger scale."
            )
        return kept

    def _learned(self, example: Example) -> bool:
        rows = [row for by in self.tokenizers for row in training_rows([bare(example)], by, MOST)]
        return all(len(row["input_ids"]) <= self.length for row in rows)

    def _asked(self, task: Task, example: Example) -> bool:
        prompts = [prompt_ids(bare(example), by, MOST) for by in self.tokenizers]
        return all(len(prompt) + task.max_answer <= self.length for prompt in prompts)


class NoRoomError(ValueError):
    """A task has too few rows that have room."""


def bare(example: Example) -> Example:
    """Without its document, which is cut where need be."""
    return replace(example, document="")
