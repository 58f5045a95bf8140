"""Text that needs no download: sources and documentation topics of the running Python's standard library."""

import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longfire.data.intake import CorpusError, Intake, Memory

LIMIT = 8_000_000
"""Bytes of text at most: tokenised within seconds. CPython 3.11 has 8.6 million after the exclusions."""
LEFT_OUT = {
    *("test", "tests", "site-packages", "dist-packages"),
    *("encodings", "pydoc_data", "lib2to3", "idlelib", "turtledemo", "ensurepip", "distutils", "__phello__"),
}
"""Folders of tables, generated files, near-copies of other files, what some versions lack, and other people's code."""


class StandardLibrary:
    """The running Python's own sources and documentation: one document a file or topic."""

    def __init__(self) -> None:
        self.name = f"python-{platform.python_version()}"
        self.described = f"the standard library of Python {platform.python_version()}"
        self.passed_over = ""

    def identity(self, memory: Memory) -> Any:
        """The documents themselves: they are few."""
        whole = hashlib.blake2b(digest_size=16)
        for document in self.documents(Intake()):
            whole.update(len(document).to_bytes(8, "little") + document)
        return whole.hexdigest()

    def documents(self, intake: Intake) -> Iterator[bytes]:
        """Topics first, then files by name."""
        topics = documentation()
        yield from topics
        yield from sources(LIMIT - sum(map(len, topics)))


def sources(limit: int) -> list[bytes]:
    """The library's modules, by name; chosen by their names' hash if there are more than `limit` bytes of them."""
    root = Path(sysconfig.get_path("stdlib"))
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py") if not _left_out(path, root)}
    chosen: dict[str, bytes] = {}
    for name in sorted(found, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        text = found[name].read_bytes()
        if len(text) <= limit and _is_utf8(text):
            chosen[name] = text
            limit -= len(text)
    if not chosen:
        raise CorpusError(
            f"this Python carries no sources of its standard library ({root}). Give a source of your own."
        )
    return [chosen[name] for name in sorted(chosen)]


def documentation() -> list[bytes]:
    """The topics of `help()`, without those that are a part of another one."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    lines = {name: {line.strip() for line in text.splitlines() if len(line) > 40} for name, text in topics.items()}
    within = {
        name
        for name in topics
        if any(lines[name] <= lines[other] and (lines[name] < lines[other] or other < name) for other in topics)
    }
    return [topics[name].encode() for name in sorted(topics) if name not in within]


def _left_out(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return bool(LEFT_OUT & set(parts)) or any(part.startswith(("config-", "_sysconfigdata")) for part in parts)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
