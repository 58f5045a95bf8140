import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from longfire.data import CorpusError, TokenSplit
from tests.data.corpora import split_of

LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 40))
@example([63, 111, 1, 1, 127], 63)
@example([64, 128], 64)
@example([3], 3)
@example([1] * 10, 7)
def test_no_token_is_lost_or_doubled(lengths, length):
    split = split_of(lengths)
    if split.num_tokens < length:
        with pytest.raises(CorpusError, match="fewer than one sequence"):
            split.sequences(length)
        return
    sequences = split.sequences(length)
    rows = [sequences[i] for i in range(len(sequences))]
    labels = torch.stack([row["labels"] for row in rows])
    inputs = torch.stack([row["input_ids"] for row in rows])
    assert sorted(labels[labels != -100].tolist()) == split.tokens.tolist()
    assert len(rows) == -(-split.num_tokens // length)  # so only the last one can contain padding
    padded = labels == -100
    assert (inputs[padded] == split.end).all()
    assert (inputs[~padded] == labels[~padded]).all()
    assert (padded[-1].long().diff() >= 0).all()  # at the end


@given(LENGTHS, st.integers(1, 40))
def test_whole_pieces_first_and_remainders_in_order(lengths, length):
    split = split_of(lengths)
    if split.num_tokens < length:
        return
    documents = np.split(split.tokens, split.starts[1:-1])
    whole = [d[k : k + length] for d in documents for k in range(0, len(d) - length + 1, length)]
    left = np.concatenate([d[len(d) // length * length :] for d in documents])
    seen = [sequence["labels"] for sequence in split.sequences(length)]
    assert [row.tolist() for row in seen[: len(whole)]] == [row.tolist() for row in whole]
    assert [token for row in seen[len(whole) :] for token in row.tolist() if token != -100] == left.tolist()


@given(LENGTHS, st.integers(1, 40))
@example([1] * 10, 7)
def test_positions_start_again_in_each_document(lengths, length):
    split = split_of(lengths)
    if split.num_tokens < length:
        return
    document = dict(zip(split.tokens.tolist(), np.repeat(np.arange(len(lengths)), lengths), strict=True))
    plain, apart = split.sequences(length), split.sequences(length, segments=True)
    assert set(plain[0]) == {"input_ids", "labels"}
    for before, row in zip((plain[i] for i in range(len(plain))), (apart[i] for i in range(len(apart))), strict=True):
        assert torch.equal(row["input_ids"], before["input_ids"])
        owners = [document[token] if token != -100 else None for token in before["labels"].tolist()]
        expected = [0]
        for one, other in pairwise(owners):
            expected.append(expected[-1] + 1 if one == other else 0)
        assert row["position_ids"].tolist() == expected
        first = (row["position_ids"] == 0) & (torch.arange(length) > 0)
        assert torch.equal(row["labels"], before["labels"].masked_fill(first, -100))


@given(LENGTHS, st.integers(1, 40))
def test_pieces_are_whole_and_of_one_document(lengths, length):
    split = split_of(lengths)
    count = sum(n // length for n in lengths)
    if count == 0:
        with pytest.raises(CorpusError, match=f"has {length} tokens; the longest has {max(lengths)}"):
            split.pieces(length)
        return
    positions, documents = split.pieces(length)
    rows = split.windows(positions, length)
    assert rows.shape == (count, length)
    assert len(np.unique(rows)) == rows.size
    assert (np.diff(rows) == 1).all()
    for k in (0, -1):
        assert (np.searchsorted(split.starts, rows[:, k] - 1, side="right") - 1 == documents).all()


def test_indices_and_arguments():
    sequences = split_of([10, 5]).sequences(4)
    assert len(sequences) == 4
    assert sequences[-1]["labels"].tolist() == sequences[3]["labels"].tolist() == [9, 10, 15, -100]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match="out of range for 4 sequences"):
            sequences[wrong]
    with pytest.raises(ValueError, match="length must be at least 1"):
        sequences.split.sequences(0)


def test_samples_are_copies():
    sequences = split_of([10]).sequences(5)
    sample = sequences[0]
    sample["input_ids"].zero_()
    assert sample["labels"].tolist() == [1, 2, 3, 4, 5] == sequences[0]["input_ids"].tolist()


def test_a_mapped_split_is_pickled_by_path(tmp_path):
    tokens = np.memmap(tmp_path / "t", np.uint16, "w+", shape=1_000_000)
    tokens[:] = np.arange(1_000_000) % 60_000
    split = TokenSplit("dev", tokens, np.array([0, 400_000, 1_000_000]), 5, 256)
    packed = pickle.dumps(split.sequences(250_000))
    assert len(packed) < 5000
    again = pickle.loads(packed)
    assert (again[3]["labels"] == split.sequences(250_000)[3]["labels"]).all()


def test_loads_in_workers():
    sequences = split_of([100, 3]).sequences(10)
    batches = list(torch.utils.data.DataLoader(sequences, batch_size=4, num_workers=2))
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(4, 10), (4, 10), (3, 10)]
