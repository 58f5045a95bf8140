"""Check, order and pad fine-tuning rows of different lengths."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longfire.model.loss import IGNORED

Row = Mapping[str, Sequence[int]]
"""`input_ids`, and as many `labels`: −100 for tokens without a loss."""
PAD_MULTIPLE = 64
"""Batches are padded to a multiple of this, so that compilers and kernels see few lengths."""
MAX_POOL = 50
"""Rows of similar length are grouped within at most this many batches."""


def checked_lengths(rows: Sequence[Row], purpose: str, longest: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """The length of each row. Refuses rows that cannot be trained on."""
    if not len(rows):
        raise ValueError(f"there are no rows to {purpose} on.")
    return np.array(
        [_checked_length(row, f"row {i} to {purpose} on", longest, vocab_size) for i, row in enumerate(rows)]
    )


def _checked_length(row: Row, which: str, longest: int, vocab_size: int) -> int:
    if missing := [key for key in ("input_ids", "labels") if key not in row]:
        raise ValueError(f"{which} has no {missing[0]!r}; it has {', '.join(row)}.")
    ids, labels = np.asarray(row["input_ids"]), np.asarray(row["labels"])
    if ids.shape != labels.shape or ids.ndim != 1:
        raise ValueError(f"{which} has input_ids {ids.shape} and labels {labels.shape}; each token needs one label.")
    if len(ids) > longest:
        raise ValueError(
            f"{which} has {len(ids)} tokens, above the recipe's length of {longest}. Truncate it or raise length."
        )
    if not (labels[1:] != IGNORED).any():
        raise ValueError(
            f"{which} has nothing to learn: {len(ids)} tokens, and all labels after the first are {IGNORED}."
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"{which} contains token {wrong}, outside 0…{vocab_size - 1}. Is it from another tokenizer?")
    return len(ids)


def batch_order(lengths: npt.NDArray[np.int64], batch_size: int, steps: int, seed: int) -> npt.NDArray[np.int64]:
    """The rows of every step, (steps, batch_size): epochs in random order, rows of similar length together.

    Rows are sorted by length within pools of batches, at most a quarter of all rows, and the batches shuffled. The
    whole order is fixed in advance, so a resumed run sees the same rows.
    """
    random = np.random.default_rng(seed)
    needed, n = steps * batch_size, len(lengths)
    epochs = np.concatenate([random.permutation(n) for _ in range(math.ceil(needed / n))])[:needed]
    pool_size = batch_size * min(max(n // (4 * batch_size), 1), MAX_POOL)
    batches = []
    for start in range(0, needed, pool_size):
        pool = epochs[start : start + pool_size]
        pool = pool[np.argsort(-lengths[pool], kind="stable")]
        batches.append(random.permutation(pool.reshape(-1, batch_size)))
    return np.concatenate(batches)


class PaddingCollator:
    """Collates rows into a batch, padded on the right to a multiple of some length, and at most to `longest`.

    A mask is needed only to draw random positions for tokens alone: attention is causal and padding comes last, so no
    token sees it, and it has no labels. Without a mask the engines take their fastest path.
    """

    def __init__(self, pad: int, longest: int, multiple: int = PAD_MULTIPLE, masked: bool = False) -> None:
        self.pad, self.longest, self.multiple, self.masked = pad, longest, multiple, masked

    def __call__(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        T = min(math.ceil(longest / self.multiple) * self.multiple, self.longest)
        ids, labels = torch.full((len(rows), T), self.pad), torch.full((len(rows), T), IGNORED)
        for i, row in enumerate(rows):
            ids[i, : len(row["input_ids"])] = torch.as_tensor(row["input_ids"])
            labels[i, : len(row["labels"])] = torch.as_tensor(row["labels"])
        labels[:, 0] = IGNORED  # has no context, and Trainer would sometimes count it
        batch = {"input_ids": ids, "labels": labels}
        if self.masked:
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            batch["attention_mask"] = (torch.arange(T) < lengths[:, None]).long()
        return batch
