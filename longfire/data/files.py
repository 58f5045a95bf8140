"""Local files as a source: paths, patterns with *, and folders."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.data.readers import READERS, kind_of
from longfire.data.source import CorpusError, DocumentSource, ReadLog

if TYPE_CHECKING:
    from longfire.data.cache import FileHashes


@dataclass(frozen=True)
class Files(DocumentSource):
    """Files in a fixed order; `field` contains the text in tables."""

    name: str
    described: str
    paths: tuple[Path, ...]
    field: str
    passed_over: str = ""

    def identity(self, hashes: "FileHashes") -> Any:
        """The files' kinds and contents, in order. Their names do not matter."""
        return [[kind_of(path), hashes.digest(path)] for path in self.paths] + [self.field]

    def documents(self, log: ReadLog) -> Iterator[bytes]:
        for path in self.paths:
            yield from READERS[kind_of(path)](path, self.field, log)


def find_files(source: str | Path | Sequence[str | Path], field: str) -> Files:
    """Find files by a path, a pattern with *, a folder (everything below it, sorted), or a list of these."""
    sources, roots = _as_list(source), existing_paths(source)
    paths: dict[str, Path] = {}  # each file once, even if several links lead to it
    unread: list[Path] = []
    for root in roots:
        readable, others = _below(root)
        unread += others
        for path in readable:
            paths.setdefault(os.path.realpath(path), path)
    first = roots[0].resolve()
    name = first.name.split(".")[0] or first.name
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return Files(name, f"{sources[0]}{more}", tuple(paths.values()), field, _summary(unread))


def existing_paths(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files and folders of a source. Refuses those that do not exist; does not look into folders."""
    sources = _as_list(source)
    if not sources:
        raise CorpusError("the list of sources is empty. Pass at least one path.")
    for one in sources:
        if not isinstance(one, str | Path) or not str(one).strip():
            raise TypeError(f"a source must be a path or a list of paths, not {one!r} ({type(one).__name__}).")
        if str(one).startswith("hub:"):
            raise CorpusError(f"{one} cannot be combined with other sources: a hub dataset must be the only source.")
    found = [root for one in sources for root in _matches(one)]
    for root in found:
        if not root.is_dir():
            refuse_irregular(root)
    return found


def refuse_irregular(path: Path) -> None:
    """Refuse a pipe or a device: opening one may block forever, and text is read more than once."""
    if not path.is_file():
        raise CorpusError(
            f"{path} is a pipe or a device, not a regular file, and text is read more than once. Write it to a file "
            f"first (COMMAND > text.txt)."
        )


def _as_list(source: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [source] if isinstance(source, str | Path) or not isinstance(source, Iterable) else list(source)


def _matches(source: str | Path) -> list[Path]:
    """The path itself, or what it matches as a shell pattern, except that `**` follows no links."""
    path = Path(source).expanduser()
    if path.exists():
        return [path]
    if not has_magic(str(path)):
        raise FileNotFoundError(
            f"there is no file or folder {source}. Check the path; for a hub dataset, write hub:NAME."
        )
    fixed = next(parent for parent in path.parents if not has_magic(str(parent)))
    pattern = path.relative_to(fixed)
    found = [one for one in fixed.glob(str(pattern)) if _hidden(pattern) or not _hidden(one.relative_to(fixed))]
    if not found:
        raise FileNotFoundError(f"no file matches {source}. Check the pattern.")
    return sorted(found, key=str)


def _below(root: Path) -> tuple[list[Path], list[Path]]:
    """Readable files at or below a path, and the other files there. Refuses links that leave the folder."""
    if not root.is_dir():
        kind_of(root)  # raises for unknown types, which in a folder are skipped
        return [root], []
    visible = sorted(path for path in root.rglob("*") if not _hidden(path.relative_to(root)))
    files = [path for path in visible if path.is_symlink() or not path.is_dir()]
    readable = [path for path in files if path.name.lower().endswith(tuple(READERS)) and path.is_file()]
    if not files:
        raise CorpusError(
            f"the folder {root} is empty (hidden files do not count). Pass one with text: {', '.join(READERS)}."
        )
    if not readable:
        kinds = ", ".join(sorted({path.suffix or path.name for path in files})[:8])
        raise CorpusError(f"the folder {root} has no file of a known type ({', '.join(READERS)}), only {kinds}.")
    for path in readable:
        if path.is_symlink() and not _stays_within(path, root):
            raise CorpusError(
                f"{path} is a link out of the folder {root}, to {os.path.realpath(path)}. To include that "
                f"text, name the files instead of the folder ('{root}/**/*{kind_of(path)}'); otherwise delete the link."
            )
    others = set(files).difference(readable)
    return readable, [path for path in files if path in others and not (path.is_dir() and _stays_within(path, root))]


def _summary(unread: Sequence[Path]) -> str:
    """`3 files not read (.pdf 2, .docx 1), such as a/b.pdf`, or nothing."""
    if not unread:
        return ""
    kinds = Counter(path.suffix.lower() or path.name for path in unread).most_common()
    listed = ", ".join(f"{name} {times}" for name, times in kinds[:8]) + (", …" if len(kinds) > 8 else "")
    return f"{len(unread)} file{'s' * (len(unread) > 1)} not read ({listed}), such as {unread[0]}"


def _stays_within(link: Path, root: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(root))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
