import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longfire.tasks import Example, split_train_dev


def some(groups, documents=None):
    rows = zip(groups, documents or [""] * len(groups), strict=True)
    return [Example(str(n), f"q{n}", document, ("a",), group) for n, (group, document) in enumerate(rows)]


@given(
    st.lists(st.tuples(st.sampled_from(["", *"abcdef"]), st.sampled_from(["", "X", "Y"])), max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 9),
)
def test_groups_stay_whole(rows, share, seed):
    examples = some([group for group, _ in rows], [document for _, document in rows])
    train, dev = split_train_dev(examples, share, seed)
    assert sorted(train + dev, key=lambda one: int(one.id)) == examples
    assert not {one.group for one in train if one.group} & {one.group for one in dev}
    units = {one.group or one.id for one in examples}
    assert bool(dev) == (len(units) > 1)
    assert bool(train) == bool(examples)
    assert [one.id for one in train] == sorted((one.id for one in train), key=int)


@pytest.mark.parametrize(
    ("groups", "documents"),
    [
        ([f"{n // 8}-{n // 2}" for n in range(400)], [f"paragraph {n // 8}" for n in range(400)]),  # as in MultiRC
        ([str(n) for n in range(400)], [f"paragraph\n{n // 2}" + "\n" * (n % 2) for n in range(400)]),  # near copies
    ],
)
def test_documents_stay_whole(groups, documents):
    train, dev = split_train_dev(some(groups, documents))
    assert len(dev) == 40
    assert not {one.document.strip() for one in train} & {one.document.strip() for one in dev}


def test_share_and_seed():
    examples = some([""] * 1000)
    train, dev = split_train_dev(examples)
    assert (len(train), len(dev)) == (900, 100)
    assert split_train_dev(examples) == (train, dev)
    assert split_train_dev(examples, seed=1)[1] != dev
    assert len(split_train_dev(examples, 0.25)[1]) == 250
    shuffled = random.Random(0).sample(examples, len(examples))
    assert {one.id for one in split_train_dev(shuffled)[1]} == {one.id for one in dev}


def test_invalid_shares():
    for share in (1, 1.5):
        with pytest.raises(ValueError, match="share must be below 1"):
            split_train_dev([], share)
    with pytest.raises(ValueError, match="share must be above 0"):
        split_train_dev([], 0)
    assert split_train_dev([]) == ([], [])
