import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longfire.data.tokenizers import byte_tokenizer, trained_bpe
from longfire.tasks import CUE, Example, answer_ids, encode, prompt_ids, training_row, training_rows
from tests.tasks.rows import EXPECTED, TALE

TEXTS = [
    f"{question}\n\n{document}{CUE} {answer} <|endoftext|> größer\n" for question, document, answer in EXPECTED.values()
]
TOKENIZERS = {"bytes": byte_tokenizer(), "bpe": trained_bpe([text.encode() for text in TEXTS], 400)}

texts = st.text(st.sampled_from("goat s\n.ü🐐?A:<|endoftext|>"), max_size=60)
kinds = st.sampled_from(list(TOKENIZERS))


def whole_text(example, answer=""):
    between = "\n\n" if example.question and example.document else ""
    return f"{example.question}{between}{example.document}{CUE}{answer}"


def plain(text, tokenizer):
    """The tokenizer's own result; special tokens in the text are plain text."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", EXPECTED)
def test_untruncated_examples_have_the_tokens_of_their_text(kind, name):
    tokenizer = TOKENIZERS[kind]
    question, document, answer = EXPECTED[name]
    example = Example("0", question, document, (answer,))
    row = training_row(example, answer, tokenizer, 10_000)
    assert row["input_ids"] == [*plain(whole_text(example, f" {answer}"), tokenizer), tokenizer.eos_token_id]
    assert prompt_ids(example, tokenizer, 10_000) == plain(whole_text(example), tokenizer)
    assert tokenizer.decode(prompt_ids(example, tokenizer, 10_000)) == whole_text(example)


@given(texts, st.text(st.characters(codec="utf-8"), min_size=3), kinds, st.data())
def test_only_the_document_is_truncated(question, document, kind, data):
    tokenizer = TOKENIZERS[kind]
    example = Example("0", question, document, ("a",))
    first, last = plain(question, tokenizer), plain(CUE, tokenizer)
    middle = plain("\n\n" * bool(question) + document, tokenizer)
    left = data.draw(st.integers(0, len(middle) + 2))
    ids = prompt_ids(example, tokenizer, len(first) + left + len(last))
    assert ids == [*first, *middle[:left], *last]
    too_little = data.draw(st.integers(0, len(first) + len(last) - 1))
    with pytest.raises(ValueError, match=rf"only {too_little} fit.*at least {len(first) + len(last)}"):
        prompt_ids(example, tokenizer, too_little)


@given(texts, texts.filter(str.strip), kinds, st.integers(40, 250))
def test_answers_do_not_depend_on_truncation(document, answer, kind, length):
    tokenizer = TOKENIZERS[kind]
    example = Example("0", "Why?", document, (answer,))
    wanted = answer_ids(answer, tokenizer)
    assert wanted == [*plain(f" {answer.strip()}", tokenizer), tokenizer.eos_token_id]
    needed = len(plain("Why?" + CUE, tokenizer)) + len(wanted)
    if length < needed:
        with pytest.raises(ValueError, match=rf"the question takes .* the answer {len(wanted)}, {needed} tog"):
            training_row(example, answer, tokenizer, length)
        return
    row = training_row(example, answer, tokenizer, length)
    prompt = prompt_ids(example, tokenizer, length - len(wanted))
    assert row["input_ids"] == prompt + wanted
    assert row["labels"] == [-100] * len(prompt) + wanted
    assert len(row["labels"]) <= length


def test_room_reserved_for_answers():
    tokenizer = TOKENIZERS["bytes"]
    example = Example("0", "Why?", TALE, ("moss", "the hill"))
    row = training_row(example, "moss", tokenizer, 60, max_answer=20)
    prompt = prompt_ids(example, tokenizer, 40)
    assert row["input_ids"] == prompt + answer_ids("moss", tokenizer)
    assert len(prompt) == 40
    longer = training_row(example, "x" * 30, tokenizer, 60, max_answer=20)  # the answer is never truncated
    assert longer["input_ids"][-32:] == answer_ids("x" * 30, tokenizer)
    assert len(longer["input_ids"]) == 60


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_one_row_per_reference(kind):
    tokenizer = TOKENIZERS[kind]
    examples = [Example("0", "Why?", TALE, ("moss", "the hill")), Example("1", "", TALE, ("A goat.",))]
    rows = training_rows(examples, tokenizer, 90, progress=True)
    wanted = [training_row(example, text, tokenizer, 90) for example in examples for text in example.references]
    assert [{name: ids.tolist() for name, ids in row.items()} for row in rows] == wanted
    assert {ids.dtype for row in rows for ids in row.values()} == {np.dtype(np.int32)}
    with pytest.raises(ValueError, match="example 2: the reference is empty"):
        training_rows([Example("2", "Why?", TALE, (" ",))], tokenizer, 90)


def test_recent_documents_are_cached(monkeypatch):
    tokenizer = byte_tokenizer()
    parts = encode._parts_of(tokenizer)
    seen = []
    monkeypatch.setattr(parts, "encode", lambda texts, encode=parts.encode: seen.extend(texts) or encode(texts))
    monkeypatch.setattr(encode, "CACHED_TOKENS", 250)
    documents = [letter * 100 for letter in "abc"]
    for document in (documents[0], documents[1], documents[0], documents[2], documents[0], documents[1]):
        prompt_ids(Example("0", "Why?", document, ("a",)), tokenizer, 50)
    long = [text.decode().strip()[0] for text in seen if len(text) > 100]
    assert long == ["a", "b", "c", "b"]
    assert parts.cached == sum(map(len, parts.documents.values())) <= 250


def test_a_deleted_tokenizer_leaves_nothing():
    gc.collect()
    before = len(encode._PARTS)
    tokenizer = byte_tokenizer()
    answer_ids("a", tokenizer)
    assert len(encode._PARTS) == before + 1
    del tokenizer
    gc.collect()
    assert len(encode._PARTS) == before


def test_a_tokenizer_without_an_end_token():
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="Set its eos_token"):
        answer_ids("a", tokenizer)
