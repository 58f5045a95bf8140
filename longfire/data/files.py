"""Documents from local files: one a file of text (.txt, .md, …), one a row of .jsonl (.gz, .zst) and .parquet."""

import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

from longfire.data.intake import CorpusError, Intake, Memory, text_of

BOM = b"\xef\xbb\xbf"
LONGEST = 1 << 26
"""Bytes of a line at most: a small compressed file may hold a line that no memory suffices for."""
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has, in whatever encoding but UTF-16 and UTF-32."""


class Lines(Protocol):
    """A file that is read line by line."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or its first `size` bytes; b"" at the end."""


@dataclass(frozen=True)
class Files:
    """Files in a fixed order; `field` names the text in those that have fields."""

    name: str
    described: str
    paths: tuple[Path, ...]
    field: str
    others: tuple[Path, ...] = ()
    """What the folders hold besides, and is not read."""

    @property
    def passed_over(self) -> str:
        """Those others by kind, and the first by name: `3 files not read (.pdf 2, .docx 1), such as a/b.pdf`."""
        if not self.others:
            return ""
        kinds = Counter(path.suffix.lower() or path.name for path in self.others).most_common()
        listed = ", ".join(f"{name} {times}" for name, times in kinds[:8]) + (", …" if len(kinds) > 8 else "")
        return f"{len(self.others)} file{'s' * (len(self.others) > 1)} not read ({listed}), such as {self.others[0]}"

    def identity(self, memory: Memory) -> Any:
        """The files' contents and kinds, in order; their names play no part."""
        return [[kind(path), memory.digest(path)] for path in self.paths] + [self.field]

    def documents(self, intake: Intake) -> Iterator[bytes]:
        """Document after document."""
        for path in self.paths:
            yield from READERS[kind(path)](path, self.field, intake)


def find_files(source: str | Path | Sequence[str | Path], field: str) -> Files:
    """The files that a path, a pattern with *, a folder (all below it, sorted) or a list of these stands for."""
    given = _listed(source)
    found = roots(source)
    paths: dict[str, Path] = {}  # each file once, whatever links lead to it
    others: list[Path] = []
    for root in found:
        known, unknown = _below(root)
        others += unknown
        for path in known:
            paths.setdefault(os.path.realpath(path), path)
    first = found[0].resolve()
    name = first.name.split(".")[0] or first.name
    more = f" and {len(given) - 1} more" if len(given) > 1 else ""
    return Files(name, f"{given[0]}{more}", tuple(paths.values()), field, tuple(others))


def roots(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files and folders that a source names, each of them there; folders are not looked into."""
    given = _listed(source)
    if not given:
        raise CorpusError("the list of sources is empty. Give at least one path.")
    for one in given:
        if not isinstance(one, str | Path) or not str(one).strip():
            raise TypeError(f"a source is a path or a list of paths, not {one!r} ({type(one).__name__}).")
        if str(one).startswith("hub:"):
            raise CorpusError(f"{one} is in a list with others; a dataset of the hub must be the only source.")
    found = [root for one in given for root in _matches(one)]
    for root in found:
        if not root.is_dir():
            refuse_irregular(root)
    return found


def refuse_irregular(path: Path) -> None:
    """Refuse a pipe or a device: to open one may wait forever, and text is read more than once."""
    if not path.is_file():
        raise CorpusError(
            f"{path} is a pipe or a device, not a regular file, and text is read more than once. Write it to a file "
            f"first (COMMAND > text.txt), and give that."
        )


def _listed(source: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [source] if isinstance(source, str | Path) or not isinstance(source, Iterable) else list(source)


def kind(path: Path) -> str:
    """Which of the READERS a file is for."""
    for ending in READERS:
        if path.name.lower().endswith(ending):
            return ending
    raise CorpusError(
        f"{path} is of no kind that can be read. Known: {', '.join(READERS)}. If it is plain text, rename it to .txt."
    )


def _matches(given: str | Path) -> list[Path]:
    path = Path(given).expanduser()
    if path.exists():
        return [path]
    if has_magic(str(path)):
        if found := _matching(path):
            return found
        raise FileNotFoundError(f"no file matches {given}. Check the pattern.")
    raise FileNotFoundError(
        f"there is no file or folder {given}. Check the path; a dataset of the Hugging Face hub is written hub:NAME."
    )


def _matching(pattern: Path) -> list[Path]:
    """As a shell would, but that `**` follows no links: they may lead in circles."""
    fixed = next(parent for parent in pattern.parents if not has_magic(str(parent)))
    rest = pattern.relative_to(fixed)
    found = [path for path in fixed.glob(str(rest)) if _hidden(rest) or not _hidden(path.relative_to(fixed))]
    return sorted(found, key=str)


def _below(root: Path) -> tuple[list[Path], list[Path]]:
    """The files to read at or below a path, and what else is there. Links within a folder may not lead out of it."""
    if not root.is_dir():
        kind(root)  # a file that was named must be of a known kind; others in a folder are passed over
        return [root], []
    visible = sorted(path for path in root.rglob("*") if not _hidden(path.relative_to(root)))
    there = [path for path in visible if path.is_symlink() or not path.is_dir()]
    known = [path for path in there if path.name.lower().endswith(tuple(READERS)) and path.is_file()]
    if not there:
        raise CorpusError(
            f"the folder {root} is empty (hidden files do not count). Give one with text: {', '.join(READERS)}."
        )
    if not known:
        kinds = ", ".join(sorted({path.suffix or path.name for path in there})[:8])
        raise CorpusError(f"the folder {root} holds no file of a known kind ({', '.join(READERS)}), but {kinds}.")
    for path in known:
        if path.is_symlink() and not _leads_within(path, root):
            raise CorpusError(
                f"{path} is a link that leads out of the folder {root}, to {os.path.realpath(path)}. If that text is "
                f"meant, name the files instead of the folder ('{root}/**/*{kind(path)}'); if not, delete the link."
            )
    unread = set(there).difference(known)
    return known, [path for path in there if path in unread and not (path.is_dir() and _leads_within(path, root))]


def _leads_within(link: Path, root: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(root))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_text(path: Path, field: str, intake: Intake) -> Iterator[bytes]:
    """The whole file as one document."""
    text = path.read_bytes().removeprefix(BOM)
    if (wrong := _not_text(path, text)) is None:
        yield text
    else:
        intake.bad(*wrong)


def _not_text(path: Path, text: bytes) -> tuple[str, str] | None:
    """What is wrong with it, and the remedy; None if it is UTF-8."""
    head = text[:8000]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return f"{path} is UTF-16, not UTF-8.", f"Convert it: iconv -f utf-16 -t utf-8 {path.name}."
    if b"\0" in head:
        return _binary(path)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if CONTROL.search(head):
            return _binary(path)
        line = text.count(b"\n", 0, error.start) + 1
        return (
            f"{path}, line {line}: not UTF-8 (byte 0x{text[error.start]:02x} at {error.start}).",
            f"Convert it, for example: iconv -f latin1 -t utf-8 {path.name}.",
        )
    return None


def _binary(what: Path | str) -> tuple[str, str]:
    return f"{what} is binary, not text.", "Take it out, or give the text that it holds."


def read_jsonl(path: Path, field: str, intake: Intake) -> Iterator[bytes]:
    """One document a line."""
    for where, row in read_rows(path, intake):
        if (text := text_of(row, field, where, intake)) is not None:
            yield text


def read_rows(
    path: Path, intake: Intake, lines: AbstractContextManager[Lines] | None = None
) -> Iterator[tuple[str, Any]]:
    """What each line of a .jsonl file holds, and where it is. `lines`: of a file that is within another one."""
    number = 0
    try:
        with _opened(path) if lines is None else lines as opened:
            while line := opened.readline(LONGEST + 1):
                number += 1
                where = f"{path}, line {number}"
                if len(line) > LONGEST:
                    intake.bad(f"{where} has more than {LONGEST:,} bytes.", "Divide it into shorter ones.")
                    while line and not line.endswith(b"\n"):
                        line = opened.readline(LONGEST)
                elif line.strip():
                    yield from ((where, row) for row in _from_line(line, where, intake))
    except (EOFError, OSError, zlib.error, BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's or the system's, not the content's
        intake.bad(f"{path} is damaged or cut off after line {number} ({error}).", "Copy or download it again.")


def _from_line(line: bytes, where: str, intake: Intake) -> Iterator[Any]:
    """What the line holds; nothing where that cannot be read and is to be skipped."""
    try:
        row = json.loads(line.strip().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        if CONTROL.search(line[:8000]):
            intake.bad(*_binary(where))
        else:
            intake.bad(f"{where}: not UTF-8 (byte 0x{error.object[error.start]:02x}).", "Convert the file to UTF-8.")
    except (json.JSONDecodeError, RecursionError) as error:
        why = (
            f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        )
        intake.bad(f"{where} is not JSON ({why}): {_shown(line)}.", "Mend the line.")
    else:
        yield row


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _opened(path: Path) -> AbstractContextManager[Lines]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.lower().endswith(".zst"):
        return io.BufferedReader(_Zstandard(path), 1 << 20)
    return path.open("rb", buffering=1 << 20)


PACKED = 1 << 10  # bytes unpacked at once: to 32 MiB at most, since four of them may stand for 128 KiB


class _Zstandard(io.RawIOBase):
    """A .zst file's content; unlike the library's own reader, a file that is cut off is an error."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self.new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self.failed = zstandard.ZstdError
        self.file = path.open("rb")
        self.frame = self.new()
        self.packed, self.content = b"", memoryview(b"")
        self.fresh = True  # nothing of this frame was read yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.content:
            if not self.packed and not (chunk := self.file.read(PACKED)):
                if not self.fresh:
                    raise EOFError("the file ends within a frame")
                return 0
            self._decompress(self.packed or chunk)
        taken = min(len(buffer), len(self.content))
        buffer[:taken] = self.content[:taken]
        self.content = self.content[taken:]
        return taken

    def _decompress(self, packed: bytes) -> None:
        try:
            self.content = memoryview(self.frame.decompress(packed))
        except self.failed as error:
            raise EOFError(str(error)) from error
        self.packed, self.fresh = b"", False
        if self.frame.eof:
            self.packed, self.frame, self.fresh = self.frame.unused_data, self.new(), True

    def close(self) -> None:
        self.file.close()
        super().close()


def read_parquet(path: Path, field: str, intake: Intake) -> Iterator[bytes]:
    """One document a row."""
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            columns = table.schema_arrow.names
            if field not in columns:
                there = ", ".join(map(repr, columns))
                what = f"{path} has no field {field!r}; the fields there are: {there}."
                return intake.bad(what, "Give the one with the text as field (--field).")
            for batch in table.iter_batches(256, columns=[field]):
                for one in batch.to_pylist():
                    row += 1
                    if (text := text_of(one, field, f"{path}, row {row}", intake)) is not None:
                        yield text
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        intake.bad(f"{path} is damaged after row {row} ({error}).", "Copy or download it again.")


READERS: dict[str, Callable[[Path, str, Intake], Iterator[bytes]]] = {
    **dict.fromkeys((".txt", ".md", ".py", ".rst", ".tex"), read_text),
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".jsonl.zst": read_jsonl,
    ".parquet": read_parquet,
}
