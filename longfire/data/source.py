"""Document sources: their interface, and how unreadable rows are handled."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longfire.data.cache import FileHashes


class CorpusError(ValueError):
    """Unusable text: damaged, without the field, empty, too short."""


@dataclass
class ReadLog:
    """Counts documents that are skipped. A bad one is an error, unless `skip_bad`."""

    skip_bad: bool = False
    skipped: int = 0
    empty: int = 0
    in_validation: int = 0
    reasons: list[str] = field(default_factory=list)

    def bad(self, problem: str, remedy: str) -> None:
        """Report an unreadable document."""
        if not self.skip_bad:
            raise CorpusError(f"{problem} {remedy} Or skip unreadable documents: skip_bad=True (--skip-bad).")
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
    """Files found but not read, as a phrase."""

    def identity(self, hashes: "FileHashes") -> Any:
        """JSON that identifies the documents: equal for the same content in the same order."""
        raise NotImplementedError

    def documents(self, log: ReadLog) -> Iterator[bytes]:
        """The documents as UTF-8."""
        raise NotImplementedError


def text_of(row: Any, field: str, where: str, log: ReadLog) -> bytes | None:
    """The text of a row; None if it has none and is skipped."""
    if not isinstance(row, dict):
        log.bad(f"{where} must be an object with fields, not {type(row).__name__}.", 'Write it as {"text": …}.')
    elif field not in row:
        log.bad(*missing_field(where, field, row))
    elif not isinstance(row[field], str):
        kind = type(row[field]).__name__
        log.bad(f"{where}: the field {field!r} must be text, not {kind}.", "Choose another field, or fix the row.")
    else:
        try:
            text: bytes = row[field].encode()
            return text
        except UnicodeEncodeError as error:
            log.bad(f"{where}: a lone surrogate ({error.object[error.start]!r}).", "Fix the row.")
    return None


def missing_field(where: object, field: str, fields: Any) -> tuple[str, str]:
    """Problem and remedy if a row or table lacks the text field."""
    known = ", ".join(map(repr, fields)) or "none"
    return f"{where} has no field {field!r}; its fields are: {known}.", "Choose the one with the text: field (--field)."
