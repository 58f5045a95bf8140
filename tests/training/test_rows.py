"""Rows: refusals, their order, and padding, which changes nothing."""

import numpy as np
import pytest
import torch

from longfire.training.rows import PaddingCollator, batch_order, checked_lengths
from tests.model.models import small_model, tokens
from tests.training.toys import rows


def drawn(n, seed=0):
    return np.random.default_rng(seed).integers(5, 500, n)


@pytest.mark.parametrize(("n", "batch", "steps"), [(1000, 8, 300), (37, 8, 50), (5, 16, 7), (1, 2, 3)])
def test_all_rows_come_equally_often(n, batch, steps):
    order = batch_order(drawn(n), batch, steps, seed=0)
    assert order.shape == (steps, batch)
    often = np.bincount(order.ravel(), minlength=n)
    assert often.max() - often.min() <= 1


def test_every_epoch_has_a_new_order():
    order = batch_order(drawn(64), 8, 16, seed=0)
    assert sorted(order[:8].ravel()) == sorted(order[8:].ravel()) == list(range(64))
    assert order[:8].tolist() != order[8:].tolist()
    assert batch_order(drawn(64), 8, 16, seed=1).tolist() != order.tolist()
    assert batch_order(drawn(64), 8, 16, seed=0).tolist() == order.tolist()


def test_rows_of_similar_length_are_batched():
    """Little padding, and short and long batches in random order."""
    lengths = drawn(4000)
    longest = lengths[batch_order(lengths, 16, 250, seed=0)].max(axis=1)
    assert longest.sum() * 16 / lengths.sum() < 1.1
    alone = lengths[np.random.default_rng(0).permutation(4000).reshape(250, 16)].max(axis=1)
    assert alone.sum() * 16 / lengths.sum() > 1.7
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.25


def test_a_row_is_seldom_twice_in_a_step():
    order = batch_order(drawn(200), 32, 200, seed=0)
    assert np.mean([len(set(step)) for step in order]) > 31


@pytest.mark.parametrize(("longest", "most", "expected"), [(3, 512, 64), (64, 512, 64), (65, 512, 128), (65, 100, 100)])
def test_batches_are_padded_to_few_lengths(longest, most, expected):
    batch = PaddingCollator(7, most)([{"input_ids": [5] * n, "labels": [-100] * (n - 1) + [5]} for n in (longest, 2)])
    assert batch["input_ids"].shape == batch["labels"].shape == (2, expected)
    assert batch["input_ids"][1].tolist() == [5, 5] + [7] * (expected - 2)
    assert batch["labels"][1].tolist() == [-100, 5] + [-100] * (expected - 2)


def test_the_first_token_is_no_target():
    """It has no context."""
    assert PaddingCollator(0, 64)([{"input_ids": [5, 6], "labels": [5, 6]}])["labels"][0, :2].tolist() == [-100, 6]


@pytest.mark.parametrize("name", ["fire", "rope", "t5", "learned", "alibi"])
def test_padding_changes_neither_loss_nor_gradients(name):
    """Without an attention mask: no token sees what comes after it."""
    model = small_model(name)
    lengths = (9, 20, 41, 70)
    given = []
    for i, n in enumerate(lengths):
        ids = tokens(n, seed=i).tolist()
        given.append({"input_ids": ids, "labels": [-100] * (n // 2) + ids[n // 2 :]})
    model(**PaddingCollator(0, 128)(given)).loss.backward()
    padded = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    items = sum(n - n // 2 for n in lengths)
    for row in given:
        one = {key: torch.tensor([value]) for key, value in row.items()}
        model(**one, num_items_in_batch=items).loss.backward()
    for key, parameter in model.named_parameters():
        scale = max(parameter.grad.abs().max().item(), 1e-2)
        assert (padded[key] - parameter.grad).abs().max() <= 1e-4 * scale, key


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [1, 2]}, "row 2 to train on has no 'labels'; it has input_ids"),
        ({"input_ids": [1, 2, 3], "labels": [1, 2]}, r"input_ids \(3,\) and labels \(2,\)"),
        ({"input_ids": [1] * 40, "labels": [1] * 40}, "has 40 tokens, above the recipe's length of 32"),
        ({"input_ids": [1, 2, 3], "labels": [1, -100, -100]}, "has nothing to learn: 3 tokens"),
        ({"input_ids": [], "labels": []}, "has nothing to learn: 0 tokens"),
        ({"input_ids": [1, 60], "labels": [-100, 60]}, "contains token 60, outside 0…49"),
        ({"input_ids": [-1, 2], "labels": [-100, 2]}, "contains token -1"),
    ],
)
def test_rows_that_cannot_be_trained_on(row, message):
    with pytest.raises(ValueError, match=message):
        checked_lengths([*rows(2), row], "train", 32, 50)


def test_no_rows():
    with pytest.raises(ValueError, match="there are no rows to train on"):
        checked_lengths([], "train", 32, 50)


def test_lengths():
    assert checked_lengths(rows(9), "train", 32, 50).tolist() == [len(row["input_ids"]) for row in rows(9)]
