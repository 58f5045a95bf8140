"""Sources of documents: what one provides, and how rows that cannot be read are handled."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longfire.data.cache import FileHashes


class CorpusError(ValueError):
    """Text that cannot be used: damaged, without the field, empty, too short."""


@dataclass
class ReadLog:
    """Counts what is left out while a source is read. A bad row is an error, or is skipped and counted."""

    skip_bad: bool = False
    skipped: int = 0
    empty: int = 0
    in_validation: int = 0
    reasons: list[str] = field(default_factory=list)

    def bad(self, problem: str, remedy: str) -> None:
        """Report a document that cannot be read."""
        if not self.skip_bad:
            raise CorpusError(f"{problem} {remedy} Or skip what cannot be read: skip_bad=True (--skip-bad).")
        self.skipped += 1
        if len(self.reasons) < 3:
            self.reasons.append(problem)


class DocumentSource:
    """Documents from somewhere, in a fixed order."""

    name: str
    """For tables and plots."""
    described: str
    """Where it is, for messages and records."""
    passed_over: str = ""
    """What is there but not read, in a phrase."""

    def identity(self, hashes: "FileHashes") -> Any:
        """What the documents depend on, as JSON: the same content in the same order gives the same."""
        raise NotImplementedError

    def documents(self, log: ReadLog) -> Iterator[bytes]:
        """The documents as UTF-8."""
        raise NotImplementedError


def text_of(row: Any, field: str, where: str, log: ReadLog) -> bytes | None:
    """The text in a table's row; None if it has none and is skipped."""
    if not isinstance(row, dict):
        log.bad(f"{where} is not an object with fields but {type(row).__name__}.", 'Write it as {"text": …}.')
    elif field not in row:
        log.bad(*missing_field(where, field, row))
    elif not isinstance(row[field], str):
        kind = type(row[field]).__name__
        log.bad(f"{where}: the field {field!r} holds {kind}, not text.", "Name the field with the text, or fix it.")
    else:
        try:
            text: bytes = row[field].encode()
            return text
        except UnicodeEncodeError as error:
            log.bad(f"{where}: half a character ({error.object[error.start]!r}).", "Fix it.")
    return None


def missing_field(where: object, field: str, fields: Any) -> tuple[str, str]:
    """Problem and remedy when a row or table does not have the field with the text."""
    known = ", ".join(map(repr, fields)) or "none"
    return f"{where} has no field {field!r}; its fields are: {known}.", "Name the one with the text: field (--field)."
