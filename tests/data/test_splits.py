import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longfire.data import CorpusError
from longfire.data.splits import DEV, VALIDATION, DocumentFile, content_hash, divide

PARTS = {"validation": VALIDATION, "dev": DEV}


def divided(tmp_path, texts, parts=PARTS):
    with DocumentFile(tmp_path / "text") as documents:
        for text in texts:
            documents.add(text.encode())
        documents.close()
        found, how = divide(documents, "the text", parts)
        return {name: [text.decode() for text in documents.read(ranges)] for name, ranges in found.items()}, how


def content_key(text):
    return content_hash(text.encode())


texts_to_divide = st.lists(st.text("ab\u00e9e\u0301 \n", min_size=1, max_size=4), min_size=3, max_size=80)


@given(texts_to_divide.filter(lambda texts: len(set(map(content_key, texts))) > 2))
def test_every_document_in_one_split(tmp_path_factory, texts):
    found, how = divided(tmp_path_factory.mktemp("d"), texts)
    assert how == "by document"
    assert sorted(text for split in found.values() for text in split) == sorted(texts)
    sets = [set(map(content_key, split)) for split in found.values()]
    assert all(sets)
    assert sum(map(len, sets)) == len(set(map(content_key, texts)))  # equal documents are in the same split


def test_equal_documents():
    same = [
        "Caf\u00e9 noir.",
        "Cafe\u0301 noir.",
        " Caf\u00e9\r\n\tnoir.\n",
        "Caf\u00e9\u00a0noir.",
        "\ufeffCaf\u00e9 noir.\u2028",
    ]
    assert len(set(map(content_key, same))) == 1
    assert content_key("a b") == content_key("a\u00a0b") == content_key("a\u200bb")
    assert len({*map(content_key, same), content_key("Cafe noir."), content_key("caf\u00e9 noir.")}) == 3


def test_near_copies_share_a_split_and_move_no_others(tmp_path):
    """A final newline does not make a different document. Without copies, the splits match earlier versions."""
    texts = [f"text {n}" for n in range(400)]
    once, _ = divided(tmp_path, texts)
    twice, _ = divided(tmp_path, [*texts, *(f"{text}\n" for text in texts)])
    splits = {text.strip(): {name for name in twice if text in twice[name]} for text in texts}
    assert all(f"{text}\n" in twice[name] for text, (name,) in splits.items())
    assert [sorted(once[name])[:2] for name in ("validation", "dev")] == [
        ["text 103", "text 141"],
        ["text 225", "text 227"],
    ]


def test_near_copies_of_too_few_documents_are_left_out(tmp_path):
    found, how = divided(tmp_path, ["same " * 90, "same " * 90 + "\n", "other " * 90])
    assert "by position" in how
    assert found["train"][1].startswith("other")


def test_shares_and_order(tmp_path):
    texts = [f"text {n}" for n in range(4000)]
    found, _ = divided(tmp_path, texts)
    assert 0.035 < len(found["validation"]) / 4000 < 0.065
    assert 0.012 < len(found["dev"]) / 4000 < 0.028
    assert found["train"] == [text for text in texts if text in set(found["train"])]
    mixed = random.Random(0).sample(texts, len(texts))
    assert {name: set(split) for name, split in divided(tmp_path, mixed)[0].items()} == {
        name: set(split) for name, split in found.items()
    }


@pytest.mark.parametrize("texts", [["äöü€" * 500], ["one " * 100, "zwei " * 200], ["same " * 90] * 3])
def test_few_documents_are_cut_by_position(tmp_path, texts):
    found, how = divided(tmp_path, texts)
    assert "by position" in how
    for n, text in enumerate(dict.fromkeys(texts)):
        assert found["train"][n] + found["dev"][n] + found["validation"][n] == text
        assert 0.9 < len(found["train"][n]) / len(text) < 0.96
        assert 0.03 < len(found["validation"][n]) / len(text) < 0.07


def test_two_splits_of_one_document(tmp_path):
    found, _ = divided(tmp_path, ["a" * 1000], {"dev": DEV})
    assert {name: len(split[0]) for name, split in found.items()} == {"train": 980, "dev": 20}


def test_too_short_to_divide(tmp_path):
    with pytest.raises(CorpusError, match=r"the text has 5 bytes in 1 document\(s\): too short"):
        divided(tmp_path, ["hello"])


def test_excluded_documents(tmp_path):
    with DocumentFile(tmp_path / "a") as one:
        assert one.add(b"a")
        with DocumentFile(tmp_path / "b", one.contents) as other:
            assert not other.add(b"a\n")
            assert other.add(b"b")
            other.close()
            assert list(other.read(other.ranges)) == [b"b"]
            assert other.ranges.dtype == np.int64
    assert not list(tmp_path.iterdir())
