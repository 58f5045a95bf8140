"""Accuracy on synthetic tasks, against models whose answers are known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from longfire.evaluation.accuracy import SEEDS, accuracy_by_length
from longfire.model import LongfireConfig, LongfireForCausalLM
from longfire.tasks.synthetic import BOS, IGNORED, synthetic_task

COPY = synthetic_task("copy")


class Oracle(nn.Module):
    """Predicts every next token, but misses the answer's last symbol in rows whose first symbol is even."""

    def __init__(self, task, wrong=lambda first: False):
        super().__init__()
        self.task, self.wrong, self.device = task, wrong, torch.device("cpu")
        self.model, self.config = self.hidden, SimpleNamespace()

    def hidden(self, input_ids, **_):
        shifted = torch.cat([input_ids[:, 1:], input_ids[:, :1]], 1)
        for row, ids in zip(shifted, input_ids, strict=True):
            if self.wrong(int(ids[1])):
                row[int((ids != 0).sum()) - 3] = BOS  # the place before EOS is predicted
        return SimpleNamespace(last_hidden_state=torch.nn.functional.one_hot(shifted, self.task.vocab_size).float())

    def get_output_embeddings(self):
        return nn.Identity()


def test_right_and_wrong_answers():
    record = accuracy_by_length(Oracle(COPY), COPY, [3, 9], questions=40)
    assert [(row["exact_match"], row["token_accuracy"]) for row in record["rows"]] == [(100, 100)] * 2
    assert [row["tokens_per_row"] for row in record["rows"]] == [9, 21]
    rows = COPY.rows(40, [9], 0, "test")
    even = sum(row["input_ids"][1] % 2 == 0 for row in (rows[i] for i in range(40)))
    (row,) = accuracy_by_length(Oracle(COPY, lambda first: first % 2 == 0), COPY, [9], questions=40)["rows"]
    assert 0 < even < 40
    assert row["exact_match"] == 100 * (40 - even) / 40
    assert row["token_accuracy"] == pytest.approx(100 * (1 - even / 400))


def test_exact_match_is_greedy_decoding():
    """A model's answers token by token, against the single pass."""
    torch.manual_seed(0)
    task = synthetic_task("parity")
    config = LongfireConfig(
        vocab_size=task.vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=0.5
    )
    model = LongfireForCausalLM(config).eval()
    (row,) = accuracy_by_length(model, task, [6], questions=60)["rows"]
    rows, right = task.rows(60, [6], 0, "test"), 0
    for i in range(60):
        ids, labels = (torch.tensor(rows[i][name]) for name in ("input_ids", "labels"))
        asked = int((labels != IGNORED).sum())
        ids, answer = ids[:-asked], ids[-asked:]
        for _ in range(asked):
            ids = torch.cat([ids, model(ids[None]).logits[0, -1:].argmax(-1)])
        right += bool((ids[-asked:] == answer).all())
    assert row["exact_match"] == pytest.approx(100 * right / 60)


def test_splits_have_different_rows_and_failures_are_kept():
    config = LongfireConfig(
        vocab_size=COPY.vocab_size, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        position_encoding="learned", max_position_embeddings=20,
    )  # fmt: skip
    record = accuracy_by_length(LongfireForCausalLM(config), COPY, [4, 40], questions=4, split="dev")
    assert record["split"] == "dev"
    assert "exact_match" in record["rows"][0]
    assert "max_length=20" in record["rows"][1]["failed"]
    first, second = (COPY.rows(1, [9], SEEDS[split], "test")[0]["input_ids"] for split in ("validation", "dev"))
    assert not np.array_equal(first, second)
