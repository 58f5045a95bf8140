"""What a source of documents promises, and what is noted while one is read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class CorpusError(ValueError):
    """Text that cannot be used as it is: damaged, without the field, empty, too short."""


@dataclass
class Intake:
    """What is noted while a source is read: bad lines and rows are errors, or counted where `skip_bad` says so."""

    skip_bad: bool = False
    skipped: int = 0
    empty: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)

    def bad(self, what: str, remedy: str) -> None:
        """One document that cannot be read."""
        if not self.skip_bad:
            raise CorpusError(f"{what} {remedy} Or leave out what cannot be read: skip_bad=True (--skip-bad).")
        self.skipped += 1
        if len(self.reasons) < 3:
            self.reasons.append(what)


class Memory(Protocol):
    """What a source may ask while it says what it holds."""

    def digest(self, path: Path) -> str:
        """A file's content as a short string."""

    def remember(self, what: str, value: str) -> None:
        """Keep a value for another time."""

    def recall(self, what: str) -> str | None:
        """The value that was kept, if one was."""


class Source(Protocol):
    """Documents from somewhere."""

    @property
    def name(self) -> str:
        """For tables and plots."""

    @property
    def described(self) -> str:
        """Where it is, for messages and records."""

    @property
    def passed_over(self) -> str:
        """What is there and not read, in a phrase; "" if nothing is."""

    def identity(self, memory: Memory) -> Any:
        """What the documents depend on, as JSON: the same content in the same order gives the same."""

    def documents(self, intake: Intake) -> Iterator[bytes]:
        """The documents as UTF-8, in a fixed order."""


def text_of(row: Any, field: str, where: str, intake: Intake) -> bytes | None:
    """The text in a row of a table; None where there is none and that is to be skipped."""
    if not isinstance(row, dict):
        intake.bad(f"{where} is not an object with fields but {type(row).__name__}.", 'Write it as {"text": …}.')
    elif field not in row:
        there = ", ".join(map(repr, row)) or "none"
        intake.bad(
            f"{where} has no field {field!r}; the fields there are: {there}.",
            "Give the one with the text as field (--field).",
        )
    elif not isinstance(row[field], str):
        kind = type(row[field]).__name__
        intake.bad(
            f"{where}: the field {field!r} holds no text but {kind}.", "Give the field with the text, or mend it."
        )
    else:
        try:
            text: bytes = row[field].encode()
        except UnicodeEncodeError as error:
            intake.bad(f"{where}: half a character ({error.object[error.start]!r}).", "Mend it.")
        else:
            return text
    return None
