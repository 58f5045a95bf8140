"""The tokens of a split, and sequences of one length cut from them."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from longfire.data.source import CorpusError
from longfire.data.splits import Hashes
from longfire.validation import at_least

IGNORED = -100
"""The label of padding, which has no loss."""


@dataclass(frozen=True, eq=False)
class TokenSplit:
    """Concatenated tokens of documents: document d is `tokens[starts[d]:starts[d + 1]]`.

    Each document ends with the token `end`. `bytes` is the size of the text, for bits per byte (0 if unknown).
    `contents` are the documents' content hashes; tokens saved by an older version have none.
    """

    name: str
    tokens: npt.NDArray[Any] = field(repr=False)
    starts: npt.NDArray[np.int64] = field(repr=False)
    bytes: int
    end: int
    contents: Hashes | None = field(default=None, repr=False)

    @property
    def num_tokens(self) -> int:
        return int(self.starts[-1])

    @property
    def num_documents(self) -> int:
        return len(self.starts) - 1

    def without(self, left_out: npt.NDArray[np.bool_]) -> "TokenSplit":
        """A copy without some documents, in memory. Its size in bytes is unknown."""
        kept = ~left_out
        lengths = np.diff(self.starts)
        return replace(
            self,
            tokens=self.tokens[np.repeat(kept, lengths)],
            starts=np.concatenate([[0], np.cumsum(lengths[kept])]),
            contents=None if self.contents is None else self.contents[kept],
            bytes=0,
        )

    def sequences(self, length: int, segments: bool = False) -> "Sequences":
        """Training sequences of one length. With `segments`, documents that share one are kept apart."""
        return Sequences(self, length, segments)

    def pieces(self, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Start and document of each piece of `length` tokens. Raises if there are none."""
        at_least("length", length, 1)
        positions, documents = _whole_pieces(self.starts, length)
        if len(positions) == 0:
            longest = int(np.diff(self.starts).max())
            count = f"{self.num_documents:,} document{'s' * (self.num_documents != 1)}"
            raise CorpusError(
                f"no document of the {self.name} split ({count}) has {length} tokens; the longest has {longest}. Use "
                f"shorter lengths, or text with longer documents (--corpus, or --validation to test on)."
            )
        return positions, documents

    def windows(self, positions: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """The `length` tokens from each position on: (M, length)."""
        out = np.empty((len(positions), length), np.int64)
        for row, position in zip(out, positions, strict=True):
            row[:] = self.tokens[position : position + length]
        return out

    def __getstate__(self) -> dict[str, Any]:
        """A memory-mapped file is pickled as its path."""
        state = dict(self.__dict__)
        if isinstance(self.tokens, np.memmap):
            state["tokens"] = (self.tokens.filename, self.tokens.dtype)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["tokens"], tuple):
            path, dtype = state["tokens"]
            state["tokens"] = np.memmap(path, dtype, "r")
        self.__dict__.update(state)


class Sequences(Dataset[dict[str, Tensor]]):
    """Every token of a split once, in sequences of one length.

    Documents are cut into pieces of that length. First come the whole pieces, then the remainders (short documents and
    the ends of long ones), packed in order; a remainder may continue in the next sequence. The last sequence is padded
    with the end-of-document token, labelled -100.

    With `segments`, sequences have position ids that start at 0 in each document or piece of one, so that attention
    keeps documents apart, and the first token of a document, which nothing before it predicts, has no label.
    """

    def __init__(self, split: TokenSplit, length: int, segments: bool = False) -> None:
        at_least("length", length, 1)
        if split.num_tokens < length:
            raise CorpusError(
                f"the {split.name} split has {split.num_tokens} tokens, fewer than one sequence of {length}. "
                "Use more text or a shorter length."
            )
        self.split = split
        self.length = length
        self.segments = segments
        self.whole, _ = _whole_pieces(split.starts, length)
        remainders = np.diff(split.starts) % length
        kept = np.flatnonzero(remainders)
        self.packed_starts = split.starts[1:][kept] - remainders[kept]  # where each remainder starts in the tokens
        self.packed_ends = np.cumsum(remainders[kept])  # and where it ends among all remainders

    def __len__(self) -> int:
        return len(self.whole) + -(-self.num_packed // self.length)

    @property
    def num_packed(self) -> int:
        """Tokens in remainders."""
        return int(self.packed_ends[-1]) if len(self.packed_ends) else 0

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} sequences.")
        index %= len(self)
        if index < len(self.whole):
            found, positions = self.whole[index] + np.arange(self.length), np.arange(self.length)
        else:
            found, positions = self._packed(index - len(self.whole))
        missing = self.length - len(found)
        tokens = self.split.tokens[found].astype(np.int64)
        inputs, labels = (np.pad(tokens, (0, missing), constant_values=value) for value in (self.split.end, IGNORED))
        row = {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}
        if self.segments:
            positions = np.concatenate([positions, np.arange(missing)])
            labels[1:][positions[1:] == 0] = IGNORED
            row["position_ids"] = torch.from_numpy(positions)
        return row

    def _packed(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Indices of a packed sequence's tokens, and their positions, which start at 0 with each document."""
        first = number * self.length
        indices = np.arange(first, min(first + self.length, self.num_packed))
        document = np.searchsorted(self.packed_ends, indices, side="right")
        starts = np.where(document > 0, self.packed_ends[document - 1], 0)
        return self.packed_starts[document] + indices - starts, indices - np.maximum(starts, first)


def _whole_pieces(starts: npt.NDArray[np.int64], length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    counts = np.diff(starts) // length
    documents = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its document
    return starts[documents] + number * length, documents
