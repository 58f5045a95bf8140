"""File readers: one document per text file (.txt, .md, …), line of .jsonl (.gz, .zst) or row of .parquet."""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

from longfire.data.source import CorpusError, ReadLog, missing_field, text_of

BOM = b"\xef\xbb\xbf"
MAX_LINE = 1 << 26
"""In bytes: a small compressed file could contain a line too long for memory."""
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that never occur in text, except in UTF-16 and UTF-32."""


class LineReader(Protocol):
    """A file that is read line by line."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or its first `size` bytes; b"" at the end."""


def kind_of(path: Path) -> str:
    """The key in READERS for a file."""
    for ending in READERS:
        if path.name.lower().endswith(ending):
            return ending
    raise CorpusError(
        f"{path} has an unknown file type. Known: {', '.join(READERS)}. If it is plain text, rename it to .txt."
    )


def read_text(path: Path, field: str, log: ReadLog) -> Iterator[bytes]:
    """The whole file as one document."""
    text = path.read_bytes().removeprefix(BOM)
    problem = _not_utf8(path, text)
    if problem is None:
        yield text
    else:
        log.bad(*problem)


def _not_utf8(path: Path, text: bytes) -> tuple[str, str] | None:
    """Problem and remedy if the text is not UTF-8."""
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


def _binary(where: Path | str) -> tuple[str, str]:
    return f"{where} is binary, not text.", "Remove it, or extract its text."


def read_jsonl(path: Path, field: str, log: ReadLog) -> Iterator[bytes]:
    """One document per line."""
    for where, row in read_rows(path, log):
        if (text := text_of(row, field, where, log)) is not None:
            yield text


def read_rows(
    path: Path, log: ReadLog, lines: AbstractContextManager[LineReader] | None = None
) -> Iterator[tuple[str, Any]]:
    """Location and value of each line of a .jsonl file. `lines`: an open file, such as one inside an archive."""
    number = 0
    try:
        with _open_lines(path) if lines is None else lines as opened:
            while line := opened.readline(MAX_LINE + 1):
                number += 1
                where = f"{path}, line {number}"
                if len(line) > MAX_LINE:
                    log.bad(f"{where} has more than {MAX_LINE:,} bytes.", "Split it into shorter lines.")
                    while line and not line.endswith(b"\n"):
                        line = opened.readline(MAX_LINE)
                elif line.strip():
                    yield from ((where, row) for row in _parse_line(line, where, log))
    except (EOFError, OSError, zlib.error, BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk failed; the content may be fine
        log.bad(f"{path} is damaged or truncated after line {number} ({error}).", "Copy or download it again.")


def _parse_line(line: bytes, where: str, log: ReadLog) -> Iterator[Any]:
    """The line's value; nothing if it is unreadable and skipped."""
    try:
        yield json.loads(line.strip().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        if CONTROL.search(line[:8000]):
            log.bad(*_binary(where))
        else:
            log.bad(f"{where}: not UTF-8 (byte 0x{error.object[error.start]:02x}).", "Convert the file to UTF-8.")
    except (json.JSONDecodeError, RecursionError) as error:
        why = "nested too deeply"
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} at character {error.pos}"
        text = line.decode(errors="replace").strip()
        shown = repr(text if len(text) <= 60 else f"{text[:60]}…")
        log.bad(f"{where} is not JSON ({why}): {shown}.", "Fix the line.")


def _open_lines(path: Path) -> AbstractContextManager[LineReader]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.lower().endswith(".zst"):
        return io.BufferedReader(_ZstdReader(path), 1 << 20)
    return path.open("rb", buffering=1 << 20)


ZSTD_CHUNK = 1 << 10
"""Bytes decompressed at once, to at most 32 MiB: four of them may stand for 128 KiB."""


class _ZstdReader(io.RawIOBase):
    """Decompresses a .zst file. Unlike the library's own reader, a truncated file is an error."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self.new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self.error = zstandard.ZstdError
        self.file = path.open("rb")
        self.frame = self.new_frame()
        self.packed, self.content = b"", memoryview(b"")
        self.at_frame_start = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.content:
            if not self.packed and not (chunk := self.file.read(ZSTD_CHUNK)):
                if not self.at_frame_start:
                    raise EOFError("the file ends within a frame")
                return 0
            self._decompress(self.packed or chunk)
        count = min(len(buffer), len(self.content))
        buffer[:count] = self.content[:count]
        self.content = self.content[count:]
        return count

    def _decompress(self, packed: bytes) -> None:
        try:
            self.content = memoryview(self.frame.decompress(packed))
        except self.error as error:
            raise EOFError(str(error)) from error
        self.packed, self.at_frame_start = b"", False
        if self.frame.eof:
            self.packed, self.frame, self.at_frame_start = self.frame.unused_data, self.new_frame(), True

    def close(self) -> None:
        self.file.close()
        super().close()


def read_parquet(path: Path, field: str, log: ReadLog) -> Iterator[bytes]:
    """One document per row."""
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            columns = table.schema_arrow.names
            if field not in columns:
                return log.bad(*missing_field(path, field, columns))
            for batch in table.iter_batches(256, columns=[field]):
                for one in batch.to_pylist():
                    row += 1
                    if (text := text_of(one, field, f"{path}, row {row}", log)) is not None:
                        yield text
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        log.bad(f"{path} is damaged after row {row} ({error}).", "Copy or download it again.")


READERS: dict[str, Callable[[Path, str, ReadLog], Iterator[bytes]]] = {
    **dict.fromkeys((".txt", ".md", ".py", ".rst", ".tex"), read_text),
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".jsonl.zst": read_jsonl,
    ".parquet": read_parquet,
}
