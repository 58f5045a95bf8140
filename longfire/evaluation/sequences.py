"""What a model reads of a split at one length, and which of its tokens are scored."""

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Split(Protocol):
    """What is needed of a corpus's split, such as `longfire.data.TokenSplit`."""

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """Of all documents."""

    @property
    def num_tokens(self) -> int:
        """How many these are."""

    @property
    def bytes(self) -> int:
        """Of the text, for bits per byte; 0 if unknown."""

    def pieces(self, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where whole pieces of documents begin, in order, and of which document each is; a ValueError if none is."""

    def windows(self, positions: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """The tokens from each position on: (M, length)."""


@dataclass(frozen=True)
class Sequences:
    """What is read at one length, and what of it is scored."""

    split: Split
    length: int
    first: int
    """The first position that is scored; from there on all are."""
    positions: npt.NDArray[np.int64]
    """(M,): where each begins in the split."""
    documents: npt.NDArray[np.int64]
    """(M,): which document each is of."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def scored(self) -> int:
        """Tokens of each that count."""
        return self.length - self.first

    def ids(self, start: int, end: int) -> Tensor:
        """Tokens of some of them: (end − start, n)."""
        windows = self.split.windows(self.positions[start:end], self.length)
        return torch.from_numpy(windows.astype(np.int64, copy=False))

    def digest(self) -> str:
        """Of the places in the split of all that is scored: the same at all lengths if they are paired."""
        places = np.stack([self.positions + self.first, self.positions + self.length]).astype("<i8")
        return hashlib.sha256(places.tobytes()).hexdigest()[:16]

    def ends(self, n: int, scored: int) -> "Sequences":
        """The last n tokens of each, of which the last `scored` count."""
        return replace(self, length=n, first=n - scored, positions=self.positions + self.length - n)

    def bins(self) -> list[tuple[int, int]]:
        """Scored positions, from (included) to (not included), between powers of two."""
        n = self.length
        inner = [1 << k for k in range(n.bit_length()) if self.first < 1 << k < n]
        edges = [self.first, *inner, n]
        return list(pairwise(edges))


def find_sequences(split: Split, n: int, tokens: int | None = None, seed: int = 0) -> Sequences:
    """The pieces of n tokens, in order: all of them, or some, drawn, that have at most `tokens` tokens together."""
    positions, documents = split.pieces(n)
    if tokens is not None and len(positions) * n > tokens:
        random = np.random.default_rng([seed, n])
        chosen = np.sort(random.choice(len(positions), size=max(1, tokens // n), replace=False))
        positions, documents = positions[chosen], documents[chosen]
    return Sequences(split, n, 1, positions, documents)
