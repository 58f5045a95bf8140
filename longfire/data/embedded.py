"""Text that needs no download: the running Python's standard library, its sources and `help()` topics."""

import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.data.source import CorpusError, DocumentSource, ReadLog

if TYPE_CHECKING:
    from longfire.data.cache import FileHashes

LIMIT = 8_000_000
"""Maximum bytes, tokenised within seconds. CPython 3.11 has 8.6 million after the exclusions."""
EXCLUDED = {
    *("test", "tests", "site-packages", "dist-packages"),
    *("encodings", "pydoc_data", "lib2to3", "idlelib", "turtledemo", "ensurepip", "distutils", "__phello__"),
}
"""Folders of tables, generated files, near-duplicates, third-party code, and modules that some versions lack."""


class StandardLibrary(DocumentSource):
    """One document per source file and per help topic."""

    def __init__(self) -> None:
        self.name = f"python-{platform.python_version()}"
        self.described = f"the standard library of Python {platform.python_version()}"

    def identity(self, hashes: "FileHashes") -> Any:
        """A hash of all documents: they are few."""
        whole = hashlib.blake2b(digest_size=16)
        for document in self.documents(ReadLog()):
            whole.update(len(document).to_bytes(8, "little") + document)
        return whole.hexdigest()

    def documents(self, log: ReadLog) -> Iterator[bytes]:
        """Topics first, then files by name."""
        topics = help_topics()
        yield from topics
        yield from source_files(LIMIT - sum(map(len, topics)))


def source_files(limit: int) -> list[bytes]:
    """The library's modules, sorted by name; those with the lowest name hashes if they exceed `limit` bytes."""
    root = Path(sysconfig.get_path("stdlib"))
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py") if not _is_excluded(path, root)}
    chosen: dict[str, bytes] = {}
    for name in sorted(found, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        text = found[name].read_bytes()
        if len(text) <= limit and _is_utf8(text):
            chosen[name] = text
            limit -= len(text)
    if not chosen:
        raise CorpusError(f"this Python has no standard library sources in {root}. Pass a corpus.")
    return [chosen[name] for name in sorted(chosen)]


def help_topics() -> list[bytes]:
    """The topics of `help()`, without those contained in another one."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    lines = {name: {line.strip() for line in text.splitlines() if len(line) > 40} for name, text in topics.items()}
    contained = {
        name
        for name in topics
        if any(lines[name] <= lines[other] and (lines[name] < lines[other] or other < name) for other in topics)
    }
    return [topics[name].encode() for name in sorted(topics) if name not in contained]


def _is_excluded(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return bool(EXCLUDED & set(parts)) or any(part.startswith(("config-", "_sysconfigdata")) for part in parts)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
