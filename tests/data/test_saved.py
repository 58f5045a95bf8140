"""A corpus saved to a folder, for machines without the text."""

import numpy as np
import pytest

from longfire.cli import main
from longfire.complete_folder import mark_complete
from longfire.data import CorpusError, load_corpus
from longfire.lab.comparison_plan import shared_documents
from tests.data.corpora import write


@pytest.fixture
def text(tmp_path):
    return write(tmp_path / "a.jsonl", [f"document {n} " * (3 + n % 7) for n in range(60)])


def test_a_saved_corpus_is_the_same_without_its_text(text, tmp_path):
    corpus = load_corpus(text, tokenizer="bpe", vocab_size=300, cache_dir=tmp_path / "cache", progress=False)
    folder = corpus.save(tmp_path / "saved")
    text.unlink()
    again = load_corpus(folder, cache_dir=tmp_path / "other", progress=False)
    assert again.fingerprint == corpus.fingerprint
    assert again.describe() == corpus.describe()
    assert again.name == corpus.name
    for name in ("train", "dev", "validation"):
        ours, theirs = getattr(again, name), getattr(corpus, name)
        assert np.array_equal(ours.tokens, theirs.tokens)
        assert np.array_equal(ours.starts, theirs.starts)
    assert not (tmp_path / "other").exists()


def test_saved_by_an_older_version(text, tmp_path):
    """Without the documents' hashes it still loads, and they are reported as unknown."""
    corpus = load_corpus(text, cache_dir=tmp_path / "cache", progress=False)
    folder = corpus.save(tmp_path / "saved")
    for file in (*folder.glob("*.contents.npy"), folder / "record.json"):
        file.unlink()
    mark_complete(folder, {key: value for key, value in corpus.record.items() if key != "passed_over"}, "record.json")
    old = load_corpus(folder)
    assert (old.fingerprint, old.describe()) == (corpus.fingerprint, corpus.describe())
    assert old.contents is None
    old.save_description(tmp_path)
    assert not (tmp_path / "corpus.npy").exists()
    assert shared_documents(old, corpus) is None


def test_a_saved_corpus_can_be_saved_again(text, tmp_path):
    corpus = load_corpus(text, cache_dir=tmp_path / "cache", progress=False)
    second = load_corpus(load_corpus(corpus.save(tmp_path / "one")).save(tmp_path / "two"))
    assert second.fingerprint == corpus.fingerprint


@pytest.mark.parametrize(
    "option", [{"tokenizer": "bpe"}, {"validation": "b.txt"}, {"field": "zzz"}, {"max_documents": 3}]
)
def test_options_that_need_the_text_are_refused(option, text, tmp_path):
    folder = load_corpus(text, cache_dir=tmp_path / "cache", progress=False).save(tmp_path / "saved")
    with pytest.raises(CorpusError, match=f"omit {next(iter(option))}, or pass the text"):
        load_corpus(folder, **option)


def test_a_folder_that_is_not_empty_is_refused(text, tmp_path):
    corpus = load_corpus(text, cache_dir=tmp_path / "cache", progress=False)
    with pytest.raises(ValueError, match="is not empty"):
        corpus.save(tmp_path)


def test_a_damaged_folder_is_an_error(text, tmp_path):
    folder = load_corpus(text, cache_dir=tmp_path / "cache", progress=False).save(tmp_path / "saved")
    tokens = folder / "train.tokens"
    content = bytearray(tokens.read_bytes())
    content[3] ^= 1
    tokens.write_bytes(content)
    with pytest.raises(CorpusError, match=r"damaged \(.*train.tokens was altered\): save them again"):
        load_corpus(folder)


def test_on_the_command_line(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    held_out = write(tmp_path / "b.jsonl", ["another document " * 9])
    texts = ["--corpus", str(text), "--validation", str(held_out)]
    assert main(["tokenize", str(tmp_path / "saved"), *texts, "--tokenizer", "bytes"]) == 0
    shown = capsys.readouterr().out
    assert "train" in shown
    assert " 1 document   " in shown
    assert " documents  " in shown
    assert "Vocabulary: 257" in shown
    assert load_corpus(tmp_path / "saved").train.num_tokens > 0
    assert main(["tokenize", str(tmp_path / "saved"), "--corpus", str(text)]) == 2
    assert "is not empty" in capsys.readouterr().err
