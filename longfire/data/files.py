"""Documents from local files: .txt (one document a file), .jsonl, .jsonl.gz, .jsonl.zst and .parquet (one a row)."""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from longfire.data.intake import CorpusError, Intake, Memory, text_of

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Files:
    """Files in a fixed order; `field` names the text in those that have fields."""

    name: str
    described: str
    paths: tuple[Path, ...]
    field: str

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
    paths = tuple(dict.fromkeys(path for root in found for path in _below(root)))
    first = found[0].resolve()
    name = first.name.split(".")[0] or first.name
    more = f" and {len(given) - 1} more" if len(given) > 1 else ""
    return Files(name, f"{given[0]}{more}", paths, field)


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
    return [root for one in given for root in _matches(one)]


def _listed(source: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [source] if isinstance(source, str | Path) or not isinstance(source, Iterable) else list(source)


def kind(path: Path) -> str:
    """Which of the READERS a file is for."""
    for ending in READERS:
        if path.name.lower().endswith(ending):
            return ending
    raise CorpusError(f"{path} is of no kind that can be read. Known: {', '.join(READERS)}.")


def _matches(given: str | Path) -> list[Path]:
    path = Path(given).expanduser()
    if path.exists():
        return [path]
    if has_magic(str(path)):
        if found := sorted(glob(str(path), recursive=True)):  # noqa: PTH207 (pathlib's refuses absolute patterns)
            return [Path(one) for one in found]
        raise FileNotFoundError(f"no file matches {given}. Check the pattern.")
    raise FileNotFoundError(
        f"there is no file or folder {given}. Check the path; a dataset of the Hugging Face hub is written hub:NAME."
    )


def _below(root: Path) -> list[Path]:
    if not root.is_dir():
        kind(root)  # a file that was named must be of a known kind; others in a folder are passed over
        return [root]
    there = sorted(path for path in root.rglob("*") if path.is_file() and not _hidden(path.relative_to(root)))
    known = [path for path in there if path.name.lower().endswith(tuple(READERS))]
    if not there:
        raise CorpusError(
            f"the folder {root} is empty (hidden files do not count). Give one with text: {', '.join(READERS)}."
        )
    if not known:
        kinds = ", ".join(sorted({path.suffix or path.name for path in there})[:8])
        raise CorpusError(f"the folder {root} holds no file of a known kind ({', '.join(READERS)}), but {kinds}.")
    return known


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_text(path: Path, field: str, intake: Intake) -> Iterator[bytes]:
    """The whole file as one document."""
    text = path.read_bytes().removeprefix(BOM)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        intake.bad(
            f"{path}, line {line}: not UTF-8 (byte 0x{text[error.start]:02x} at {error.start}).",
            f"Convert it, for example: iconv -f latin1 -t utf-8 {path.name}.",
        )
    else:
        yield text


def read_jsonl(path: Path, field: str, intake: Intake) -> Iterator[bytes]:
    """One document a line."""
    for where, row in read_rows(path, intake):
        if (text := text_of(row, field, where, intake)) is not None:
            yield text


def read_rows(
    path: Path, intake: Intake, lines: AbstractContextManager[Iterable[bytes]] | None = None
) -> Iterator[tuple[str, Any]]:
    """What each line of a .jsonl file holds, and where it is. `lines`: of a file that is within another one."""
    number = 0
    try:
        with _opened(path) if lines is None else lines as opened:
            for number, line in enumerate(opened, 1):
                if line.strip():
                    where = f"{path}, line {number}"
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


def _opened(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.lower().endswith(".zst"):
        return io.BufferedReader(_Zstandard(path), 1 << 20)
    return path.open("rb", buffering=1 << 20)


class _Zstandard(io.RawIOBase):
    """A .zst file's content; unlike the library's own reader, a file that is cut off is an error."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self.new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self.failed = zstandard.ZstdError
        self.file = path.open("rb")
        self.frame = self.new()
        self.packed = self.content = b""
        self.fresh = True  # nothing of this frame was read yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.content:
            if not self.packed and not (chunk := self.file.read(1 << 17)):
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
            self.content = self.frame.decompress(packed)
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
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".jsonl.zst": read_jsonl,
    ".parquet": read_parquet,
}
