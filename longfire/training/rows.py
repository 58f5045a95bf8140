"""Rows of tokens, each of its own length: checked, put in an order, and padded into batches."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Sampler

from longfire.model.loss import IGNORED

Row = Mapping[str, Sequence[int]]
"""`input_ids`, and as many `labels`: −100 where a token is not to be learned."""
MULTIPLE = 64
"""Batches are padded to a multiple of this, so that a compiler or a kernel sees few lengths."""
MOST_POOLED = 50
"""Rows of like length are looked for among so many batches."""


def checked_lengths(rows: Sequence[Row], what: str, most: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """The length of each row; an error where one cannot be trained on."""
    if not len(rows):
        raise ValueError(f"there are no rows to {what} on.")
    return np.array([_checked(row, f"row {i} to {what} on", most, vocab_size) for i, row in enumerate(rows)])


def _checked(row: Row, which: str, most: int, vocab_size: int) -> int:
    if missing := [key for key in ("input_ids", "labels") if key not in row]:
        raise ValueError(f"{which} has no {missing[0]!r}; it has {', '.join(row)}.")
    ids, labels = np.asarray(row["input_ids"]), np.asarray(row["labels"])
    if ids.shape != labels.shape or ids.ndim != 1:
        raise ValueError(f"{which} has input_ids {ids.shape} and labels {labels.shape}: one label a token is needed.")
    if len(ids) > most:
        raise ValueError(f"{which} has {len(ids)} tokens, and the recipe's length is {most}. Cut it, or take more.")
    if not (labels[1:] != IGNORED).any():
        raise ValueError(f"{which} has nothing to learn: {len(ids)} tokens, and all labels after the first {IGNORED}.")
    if ids.min() < 0 or ids.max() >= vocab_size:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"{which} has the token {wrong}, and the model knows 0…{vocab_size - 1}: another tokenizer's?")
    return len(ids)


def order_of_steps(lengths: npt.NDArray[np.int64], batch: int, steps: int, seed: int) -> npt.NDArray[np.int64]:
    """Which rows make each step, (steps, batch): all in turn, each time shuffled, rows of like length together.

    Rows are sorted by length among the batches of a pool, at most a quarter of them all, and the batches shuffled. All
    is known from the beginning, so that a run that goes on sees what it would have seen.
    """
    random = np.random.default_rng(seed)
    needed, n = steps * batch, len(lengths)
    turns = np.concatenate([random.permutation(n) for _ in range(math.ceil(needed / n))])[:needed]
    pool = batch * min(max(n // (4 * batch), 1), MOST_POOLED)
    found = []
    for start in range(0, needed, pool):
        some = turns[start : start + pool]
        some = some[np.argsort(-lengths[some], kind="stable")]
        found.append(random.permutation(some.reshape(-1, batch)))
    return np.concatenate(found)


class InTurn(Sampler[int]):
    """Gives the rows of an order, to the end of the run."""

    def __init__(self, order: npt.NDArray[np.int64]) -> None:
        self.order = order

    def __len__(self) -> int:
        return self.order.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.ravel().tolist())


class Padded:
    """Rows → a batch, padded on the right to the longest, rounded up.

    There is no attention mask: attention is causal and padding comes last, so no token sees any of it; and its own
    outputs have no label. Without a mask the engines take their fastest path.
    """

    def __init__(self, pad: int, most: int) -> None:
        self.pad, self.most = pad, most

    def __call__(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        T = min(math.ceil(longest / MULTIPLE) * MULTIPLE, self.most)
        ids, labels = torch.full((len(rows), T), self.pad), torch.full((len(rows), T), IGNORED)
        for i, row in enumerate(rows):
            ids[i, : len(row["input_ids"])] = torch.as_tensor(row["input_ids"])
            labels[i, : len(row["labels"])] = torch.as_tensor(row["labels"])
        labels[:, 0] = IGNORED  # nothing comes before it; Trainer would not always leave it out of its count
        return {"input_ids": ids, "labels": labels}
