import re

import numpy as np
import pytest

from longfire.tasks.synthetic import passkey_task, synthetic_task
from tests.tasks.synthetic.examples import TEXT


def test_the_key_is_in_the_text_once_at_any_depth():
    task = passkey_task(TEXT)
    depths = []
    for seed in range(200):
        question, key = task.generate(500, np.random.default_rng(seed))
        assert re.fullmatch(r"[1-9]\d{4}", key)
        assert question.count(key) == 1
        before, after = question.split(f"\nThe passkey is {key}. Remember it.\n")
        assert (before + after.removesuffix("\nThe passkey is ")).encode() in TEXT
        depths.append(len(before) / 500)
    assert min(depths) < 0.05
    assert max(depths) > 0.95
    assert abs(np.mean(depths) - 0.5) < 0.1


def test_train_and_test_text_are_disjoint():
    task = passkey_task(bytes([200 + number]) * 1000 for number in range(10))
    seen = {}
    for split in ("train", "test"):
        rows = task.rows(100, [300], seed=0, split=split)
        seen[split] = {ord(symbol) for row in rows for symbol in task.decode(row["input_ids"])} & set(range(200, 210))
    assert seen == {"train": set(range(200, 209)), "test": {209}}


def test_any_bytes():
    task = passkey_task(bytes(range(256)) * 40)
    question, answer = task.generate(5000, np.random.default_rng(0))
    assert task.solve(question) == list(answer)
    assert len(set(question)) == 256


def test_the_standard_library_is_the_default():
    task = synthetic_task("passkey")
    row = task.rows(4, [2000], seed=0)[2]
    assert len(row["input_ids"]) == task.sequence_length(2000)
    assert len(task.rows(1, [50_000], seed=0, split="test")[0]["input_ids"]) > 50_000


def test_texts_that_cannot_be_used():
    with pytest.raises(ValueError, match="ambiguous"):
        passkey_task(b"The passkey is not a secret.")
    with pytest.raises(ValueError, match="test text of passkey has 10 bytes, too few for length 11"):
        passkey_task(b"x" * 100).rows(1, [11], seed=0, split="test")[0]
