"""Windows of tokens at one length, and which of their tokens to score."""

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longfire.data import TokenSplit


@dataclass(frozen=True)
class Windows:
    """M windows of one length, scored from token `first` on."""

    split: TokenSplit
    length: int
    first: int
    positions: npt.NDArray[np.int64]
    """(M,): the start of each window in the split."""
    documents: npt.NDArray[np.int64]
    """(M,): the document of each window."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def scored(self) -> int:
        """Number of scored tokens per window."""
        return self.length - self.first

    def ids(self, start: int, end: int) -> Tensor:
        """Tokens of windows `start` to `end`: (end − start, n)."""
        windows = self.split.windows(self.positions[start:end], self.length)
        return torch.from_numpy(windows.astype(np.int64, copy=False))

    def digest(self) -> str:
        """Hash of the positions of the scored tokens; equal at all lengths for paired windows."""
        spans = np.stack([self.positions + self.first, self.positions + self.length]).astype("<i8")
        return hashlib.sha256(spans.tobytes()).hexdigest()[:16]

    def ends(self, n: int, scored: int) -> "Windows":
        """The last n tokens of each window, scoring the last `scored` of them."""
        return replace(self, length=n, first=n - scored, positions=self.positions + self.length - n)

    def bins(self) -> list[tuple[int, int]]:
        """Scored positions, split at powers of two: (from, to), `to` exclusive."""
        n = self.length
        inner = [1 << k for k in range(n.bit_length()) if self.first < 1 << k < n]
        return list(pairwise([self.first, *inner, n]))


def find_windows(split: TokenSplit, n: int, tokens: int | None = None, seed: int = 0) -> Windows:
    """All full windows of n tokens, in order, or a random sample of at most `tokens` tokens."""
    positions, documents = split.pieces(n)
    if tokens is not None and len(positions) * n > tokens:
        random = np.random.default_rng([seed, n])
        chosen = np.sort(random.choice(len(positions), size=max(1, tokens // n), replace=False))
        positions, documents = positions[chosen], documents[chosen]
    return Windows(split, n, 1, positions, documents)
