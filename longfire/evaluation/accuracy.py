"""Accuracy by length on a synthetic task: exact match of answers, and the share of tokens that are right.

Every answer is scored in one forward pass. An answer is an exact match if the most likely token is right at each of its
places, which is when greedy decoding would produce it (with random positions, if it kept those of this pass).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longfire.evaluation.scoring import evaluating
from longfire.tasks.synthetic import IGNORED, PAD, SyntheticTask
from longfire.validation import at_least, error_summary

BATCH_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 13}
SEEDS = {"validation": 0, "dev": 1}
"""Seeds of the test rows by split: tuning sees other rows than reported results."""


def accuracy_by_length(
    model: Any, task: SyntheticTask, lengths: Sequence[int], *, questions: int, split: str = "validation"
) -> dict[str, Any]:
    """Exact match and token accuracy in percent, with a row for each length.

    Args:
        model: a causal language model of transformers that was trained on the task.
        task: generates the test rows, which training has not seen.
        lengths: in the task's unit.
        questions: test rows at each length.
        split: "validation", or "dev" while tuning.

    Returns:
        A record with a row for each length in `rows`; a length without a result has the reason in `failed`.
    """
    at_least("questions", questions, 1)
    record: dict[str, Any] = {"task": task.name, "split": split, "rows": []}
    with evaluating(model):
        for length in sorted({*lengths}):
            row: dict[str, Any] = {"length": length, "tokens_per_row": task.sequence_length(length)}
            try:
                row |= _score(model, task, length, questions, SEEDS[split])
            except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # other lengths may succeed
                row["failed"] = error_summary(error)
            record["rows"].append(row)
    return record


def _score(model: Any, task: SyntheticTask, length: int, count: int, seed: int) -> dict[str, Any]:
    rows = task.rows(count, [length], seed, "test")
    kind = "cuda" if model.device.type == "cuda" else "cpu"
    size = max(1, BATCH_TOKENS[kind] // task.sequence_length(length))
    exact = right = answered = 0
    for start in range(0, count, size):
        ids, labels = _padded([rows[i] for i in range(start, min(start + size, count))], model.device)
        correct, asked = _correct(model, ids, labels)
        exact += int((correct | ~asked).all(1).sum())
        right += int((correct & asked).sum())
        answered += int(asked.sum())
    return {"exact_match": 100 * exact / count, "token_accuracy": 100 * right / answered, "questions": count}


@torch.no_grad()
def _correct(model: Any, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which next tokens (B, T − 1) the model predicts, and which of them are part of an answer."""
    targets = labels[:, 1:]
    asked = targets != IGNORED
    mask = None if getattr(model.config, "random_positions", None) is None else ids != PAD  # padding needs none
    hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]
    predicted = torch.full_like(targets, IGNORED)
    predicted[asked] = model.get_output_embeddings()(hidden[asked]).argmax(-1)  # logits of answers only
    return predicted == targets, asked


def _padded(rows: Sequence[dict[str, list[int]]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and labels (B, T)."""
    ids, labels = (
        pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value).to(device)
        for name, value in (("input_ids", PAD), ("labels", IGNORED))
    )
    return ids, labels
