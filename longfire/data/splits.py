"""Which document goes into which split: by the hash of its text, so that equal documents are never in two.

Documents are equal that differ in whitespace or Unicode form alone: a final newline makes no other document.
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

from longfire.data.intake import CorpusError

VALIDATION = 0.05
DEV = 0.02
SPLITS = ("train", "dev", "validation")

Ranges = npt.NDArray[np.int64]
"""(N, 2): where texts begin and end in a heap."""


Hashes = npt.NDArray[np.uint64]
"""(N,): of what documents say; see `content_hash`."""


INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\ufeff"))
"""Soft hyphen, zero-width space and byte order mark."""


def content_hash(document: bytes) -> int:
    """Of a text in Unicode's form NFC, without whitespace and characters that nobody sees."""
    text = document.translate(None, b" \t\n\r\v\f")
    if not text.isascii():
        text = unicodedata.normalize("NFC", "".join(text.decode().translate(INVISIBLE).split())).encode()
    return _hash(text)


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class TextHeap:
    """Documents written one after the other to a file, so that a corpus need not fit in memory nor be read twice."""

    def __init__(self, path: Path, refused: Iterable[int] = ()) -> None:
        self.path = path
        self.refused = frozenset(refused)
        self.file = path.open("wb", buffering=1 << 20)
        self.hashes = array("Q")
        self.contents = array("Q")
        self.ends = array("q", [0])
        self.text: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def add(self, document: bytes) -> bool:
        """One document, not empty; False if the hash of its content is among the refused."""
        content = content_hash(document)
        if content in self.refused:
            return False
        self.file.write(document)
        self.hashes.append(_hash(document))
        self.contents.append(content)
        self.ends.append(self.ends[-1] + len(document))
        return True

    def close(self) -> None:
        """No more documents; they can be read now."""
        self.file.close()
        if len(self):
            self.text = np.memmap(self.path, np.uint8, "r")

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def ranges(self) -> Ranges:
        """Of all documents."""
        ends = np.frombuffer(self.ends, np.int64)
        return np.stack([ends[:-1], ends[1:]], 1)

    def contents_of(self, ranges: Ranges) -> Hashes:
        """Of the documents that ranges are, or are cut from."""
        ends = np.frombuffer(self.ends, np.int64)[1:]
        return np.frombuffer(self.contents, np.uint64)[np.searchsorted(ends, ranges[:, 0], side="right")]

    def read(self, ranges: Ranges) -> Iterator[bytes]:
        """The texts of some ranges."""
        for start, end in ranges.tolist():
            yield self.text[start:end].tobytes()

    def __enter__(self) -> "TextHeap":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.file.close()
        self.text = np.empty(0, np.uint8)
        self.path.unlink(missing_ok=True)


def divide(heap: TextHeap, described: str, parts: dict[str, float]) -> tuple[dict[str, Ranges], str]:
    """Ranges of `train` and of each part, which gets about its share of the documents but at least one; and how.

    With fewer different documents than splits, each is cut by position instead.
    """
    hashes = _least_of_equal(np.frombuffer(heap.hashes, np.uint64), np.frombuffer(heap.contents, np.uint64))
    different = np.unique(hashes)  # sorted
    if len(different) <= len(parts):
        return _by_position(heap, described, parts), "by position: too few different documents (copies are left out)"
    taken = 0
    share = 0.0
    found: dict[str, Ranges] = {}
    for left, (name, part) in zip(range(len(parts), 0, -1), parts.items(), strict=True):
        share += part
        wanted = int(np.searchsorted(different, np.uint64(share * 2.0**64)))
        upto = min(max(wanted, taken + 1), len(different) - left)
        found[name] = heap.ranges[np.isin(hashes, different[taken:upto])]
        taken = upto
    found["train"] = heap.ranges[np.isin(hashes, different[taken:])]
    return found, "by document"


def _least_of_equal(hashes: Hashes, contents: Hashes) -> Hashes:
    """For each document the least hash of those with its content: its own, where no other has it."""
    _, group = np.unique(contents, return_inverse=True)
    least = np.full(len(contents), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(least, group, hashes)
    return least[group]


def _by_position(heap: TextHeap, described: str, parts: dict[str, float]) -> dict[str, Ranges]:
    shares = {"train": 1.0 - sum(parts.values()), **dict(reversed(parts.items()))}
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in shares}
    seen: set[int] = set()
    for number, (start, end) in enumerate(heap.ranges.tolist()):
        if heap.contents[number] in seen:
            continue  # cut copies would put the same text in several splits
        seen.add(heap.contents[number])
        cuts = [start, *(_boundary(heap.text, start + int(share * (end - start))) for share in _running(shares)), end]
        for name, a, b in zip(shares, cuts[:-1], cuts[1:], strict=True):
            if a < b:
                found[name].append((a, b))
    for name, ranges in found.items():
        if not ranges:
            raise CorpusError(
                f"{described} has {len(heap.text)} bytes in {len(heap)} document(s): too short to be divided into "
                f"{', '.join(shares)}; nothing is left for {name}. Give more text."
            )
    return {name: np.array(ranges, np.int64) for name, ranges in found.items()}


def _running(shares: dict[str, float]) -> list[float]:
    return list(accumulate(shares.values()))[:-1]


def _boundary(text: npt.NDArray[np.uint8], place: int) -> int:
    """The place, or the next one where a character begins."""
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place += 1
    return place
