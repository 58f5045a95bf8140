"""Divide documents into splits by content hash, so that equal documents share a split.

Documents that differ only in whitespace or Unicode form are equal.
"""

import hashlib
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from longfire.data.source import CorpusError

VALIDATION = 0.05
DEV = 0.02
SPLITS = ("train", "dev", "validation")

Ranges = npt.NDArray[np.int64]
"""(N, 2): start and end of texts in a `DocumentFile`."""
Hashes = npt.NDArray[np.uint64]
"""(N,): content hashes of documents."""

INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\ufeff"))
"""Soft hyphen, zero-width space and byte order mark."""


def content_hash(document: bytes) -> int:
    """Hash of a text in Unicode's NFC form, without whitespace and invisible characters."""
    text = document.translate(None, b" \t\n\r\v\f")
    if not text.isascii():
        text = unicodedata.normalize("NFC", "".join(text.decode().translate(INVISIBLE).split())).encode()
    return _hash(text)


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class DocumentFile:
    """Documents in one temporary file, so that a corpus need not fit in memory or be read twice."""

    def __init__(self, path: Path, excluded: Iterable[int] = ()) -> None:
        """`excluded`: content hashes of documents to skip."""
        self.path = path
        self.excluded = frozenset(excluded)
        self.file = path.open("wb", buffering=1 << 20)
        self.hashes = array("Q")
        self.contents = array("Q")
        self.ends = array("q", [0])
        self.text: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def add(self, document: bytes) -> bool:
        """Append a non-empty document; False if it is excluded."""
        content = content_hash(document)
        if content in self.excluded:
            return False
        self.file.write(document)
        self.hashes.append(_hash(document))
        self.contents.append(content)
        self.ends.append(self.ends[-1] + len(document))
        return True

    def close(self) -> None:
        """Finish writing, so that documents can be read."""
        self.file.close()
        if len(self):
            self.text = np.memmap(self.path, np.uint8, "r")

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def ranges(self) -> Ranges:
        ends = np.frombuffer(self.ends, np.int64)
        return np.stack([ends[:-1], ends[1:]], 1)

    def contents_of(self, ranges: Ranges) -> Hashes:
        """Content hashes of the documents that ranges belong to."""
        ends = np.frombuffer(self.ends, np.int64)[1:]
        return np.frombuffer(self.contents, np.uint64)[np.searchsorted(ends, ranges[:, 0], side="right")]

    def read(self, ranges: Ranges) -> Iterator[bytes]:
        for start, end in ranges.tolist():
            yield self.text[start:end].tobytes()

    def __enter__(self) -> "DocumentFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.file.close()
        self.text = np.empty(0, np.uint8)
        self.path.unlink(missing_ok=True)


def divide(documents: DocumentFile, described: str, parts: dict[str, float]) -> tuple[dict[str, Ranges], str]:
    """Ranges of `train` and of each part, and how they were divided.

    A part gets about its share of the documents, but at least one. With fewer different documents than splits, each
    document is cut by position instead.
    """
    hashes = _lowest_of_equal(np.frombuffer(documents.hashes, np.uint64), np.frombuffer(documents.contents, np.uint64))
    different = np.unique(hashes)  # sorted
    if len(different) <= len(parts):
        how = "by position: too few different documents (copies are left out)"
        return _by_position(documents, described, parts), how
    start = 0
    share = 0.0
    found: dict[str, Ranges] = {}
    for left, (name, part) in zip(range(len(parts), 0, -1), parts.items(), strict=True):
        share += part
        target = int(np.searchsorted(different, np.uint64(share * 2.0**64)))
        stop = min(max(target, start + 1), len(different) - left)
        found[name] = documents.ranges[np.isin(hashes, different[start:stop])]
        start = stop
    found["train"] = documents.ranges[np.isin(hashes, different[start:])]
    return found, "by document"


def _lowest_of_equal(hashes: Hashes, contents: Hashes) -> Hashes:
    """For each document, the lowest hash of those with the same content."""
    _, group = np.unique(contents, return_inverse=True)
    least = np.full(len(contents), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(least, group, hashes)
    return least[group]


def _by_position(documents: DocumentFile, described: str, parts: dict[str, float]) -> dict[str, Ranges]:
    shares = {"train": 1.0 - sum(parts.values()), **dict(reversed(parts.items()))}
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in shares}
    seen: set[int] = set()
    for number, (start, end) in enumerate(documents.ranges.tolist()):
        if documents.contents[number] in seen:
            continue  # cut copies would put the same text in several splits
        seen.add(documents.contents[number])
        inner = (start + int(share * (end - start)) for share in accumulate([*shares.values()][:-1]))
        cuts = [start, *(_boundary(documents.text, offset) for offset in inner), end]
        for name, a, b in zip(shares, cuts[:-1], cuts[1:], strict=True):
            if a < b:
                found[name].append((a, b))
    for name, ranges in found.items():
        if not ranges:
            raise CorpusError(
                f"{described} has {len(documents.text)} bytes in {len(documents)} document(s): too short to divide "
                f"into {', '.join(shares)}; nothing is left for {name}. Use more text."
            )
    return {name: np.array(ranges, np.int64) for name, ranges in found.items()}


def _boundary(text: npt.NDArray[np.uint8], offset: int) -> int:
    """The first character boundary at or after an offset."""
    while offset < len(text) and text[offset] & 0xC0 == 0x80:
        offset += 1
    return offset
