import json

import numpy as np
import pytest
from transformers import AutoTokenizer

from longfire.data import CorpusError, load_corpus
from longfire.data.build import batches, spread
from longfire.data.corpus import trained_documents
from tests.data.corpora import TEXTS, texts_of, write


@pytest.fixture
def load(tmp_path):
    return lambda source, **options: load_corpus(source, cache_dir=tmp_path / "cache", progress=False, **options)


def splits(corpus):
    return corpus.train, corpus.dev, corpus.validation


def test_every_document_once(load, tmp_path):
    corpus = load(write(tmp_path / "books.jsonl.zst"))
    assert sorted(text for split in splits(corpus) for text in texts_of(split)) == sorted(TEXTS)
    assert corpus.name == "books"
    for split in splits(corpus):
        assert split.num_documents == len(texts_of(split)) > 0
        assert split.num_tokens == len(split.tokens) == split.bytes + split.num_documents
        assert split.tokens.dtype == np.uint16


def test_described_for_records(load, tmp_path):
    path = write(tmp_path / "books.jsonl")
    corpus = load(path, tokenizer="bpe", vocab_size=300)
    described = json.loads(json.dumps(corpus.describe()))
    assert described["source"] == str(path)
    assert described["tokenizer"] == "bpe of 300"
    assert described["vocab_size"] == corpus.vocab_size == 300
    assert described["divided"] == "by document"
    assert described["skipped"] == 0
    assert described["splits"]["dev"] == {
        "documents": corpus.dev.num_documents,
        "tokens": corpus.dev.num_tokens,
        "bytes": corpus.dev.bytes,
    }
    corpus.tokenizer.save_pretrained(tmp_path / "saved")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "saved")) == 300


def test_shown_in_a_line(load, tmp_path):
    assert len(repr(load(write(tmp_path / "a.jsonl")))) < 500


def test_own_validation(load, tmp_path):
    path = write(tmp_path / "a.jsonl", TEXTS[:50])
    own = write(tmp_path / "b.jsonl", [*TEXTS[45:49], TEXTS[49].strip(), *TEXTS[50:]])
    corpus = load(path, validation=own)
    assert [text.strip() for text in texts_of(corpus.validation)] == [text.strip() for text in TEXTS[45:]]
    assert sorted(texts_of(corpus.train) + texts_of(corpus.dev)) == sorted(TEXTS[:45])
    assert corpus.describe()["also_in_validation"] == 5
    assert str(own) in corpus.describe()["source"]
    with pytest.raises(CorpusError, match="50 also in the validation text"):
        load(path, validation=path)


def test_bad_documents_are_errors_or_counted(load, tmp_path, caplog):
    path = write(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes() + b'{"text": ""}\n{"text": 5}\n')
    with pytest.raises(CorpusError, match="line 62: the field 'text' must be text, not int"):
        load(path)
    for built in (True, False):
        caplog.clear()
        corpus = load(path, skip_bad=True)
        assert corpus.built is built
        assert corpus.describe()["skipped"] == 1
        assert corpus.describe()["empty"] == 1
        assert "skipped 1 unreadable documents" in caplog.text
        assert "line 62" in caplog.text
    assert sum(split.num_documents for split in splits(corpus)) == len(TEXTS)


def test_unread_files_are_reported_once(load, tmp_path, caplog):
    write(tmp_path / "texts" / "a.jsonl")
    (tmp_path / "texts" / "b.pdf").write_text("")
    phrase = f"1 file not read (.pdf 1), such as {tmp_path / 'texts' / 'b.pdf'}"
    for reported in (True, False):  # processes that share a corpus need not repeat it
        caplog.clear()
        assert load(tmp_path / "texts").describe()["passed_over"] == phrase
        assert (phrase in caplog.text) == reported


def test_tokens_are_stable_across_versions(load, tmp_path):
    """Runs of earlier versions are recognised by the fingerprint of a text without near copies."""
    assert load(write(tmp_path / "a.jsonl")).fingerprint == "363a7037ec2789967f695de786be3399"


def test_documents_beside_a_model(load, tmp_path, monkeypatch):
    corpus, other = load(write(tmp_path / "a.jsonl")), load(write(tmp_path / "b.jsonl", [f"{n} x" for n in range(9)]))
    folders = [tmp_path / name for name in ("first", "then", "unknown")]
    for folder in folders:
        folder.mkdir()
    corpus.save_description(folders[0])
    assert json.loads((folders[0] / "corpus.json").read_text()) == corpus.describe()
    assert trained_documents(folders[0]).tolist() == sorted(corpus.train.contents)
    other.save_description(folders[1], source=folders[0])  # training continued, so both texts count
    assert {*trained_documents(folders[1])} == {*corpus.train.contents, *other.train.contents}
    monkeypatch.setattr("longfire.data.corpus.MAX_DOCUMENTS", 9)
    corpus.save_description(folders[2])
    assert trained_documents(folders[2]) is None
    (folders[0] / "corpus.npy").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"corpus.npy is damaged .*delete it"):
        trained_documents(folders[0])


def test_single_document_is_cut_in_three(load, tmp_path):
    corpus = load(write(tmp_path / "a.txt"))
    assert "".join(text for split in splits(corpus) for text in texts_of(split)) == "".join(TEXTS)
    assert "by position" in corpus.describe()["divided"]


def test_no_text(load, tmp_path):
    with pytest.raises(CorpusError, match=r"a.txt contains no text, .*1 empty"):
        load(write(tmp_path / "a.txt", [" \n"]))
    with pytest.raises(CorpusError, match=r"b.jsonl contains no text. Pass"):
        load(write(tmp_path / "b.jsonl", []))
    with pytest.raises(CorpusError, match=r"3 unreadable .*no field 'body'; its fields are: 'id', 'text'"):
        load(write(tmp_path / "c.jsonl", TEXTS[:3]), field="body", skip_bad=True)
    with pytest.raises(CorpusError, match=r"train split has .* tokens, fewer than one sequence of 100000"):
        load(write(tmp_path / "d.jsonl")).train.sequences(100_000)


def test_first_documents(load, tmp_path):
    corpus = load(write(tmp_path / "a.jsonl"), max_documents=10)
    assert sorted(text for split in splits(corpus) for text in texts_of(split)) == sorted(TEXTS[:10])
    with pytest.raises(ValueError, match="max_documents must be at least 1"):
        load(tmp_path / "a.jsonl", max_documents=0)


def test_embedded(load):
    corpus = load(None)
    described = corpus.describe()
    assert described["name"].startswith("python-3.")
    assert described["splits"]["train"]["bytes"] > 2_500_000
    assert not {*texts_of(corpus.train)} & {*texts_of(corpus.validation)}
    assert len(corpus.validation.pieces(2048)[0]) > 20
    assert not load(None).built


def test_large_vocabularies_have_wider_tokens(load, tmp_path, monkeypatch):
    monkeypatch.setattr("longfire.data.build.token_type", lambda tokenizer: np.uint32)
    monkeypatch.setattr("longfire.data.corpus.token_type", lambda tokenizer: np.uint32)
    corpus = load(write(tmp_path / "a.jsonl"))
    assert corpus.train.tokens.dtype == np.uint32
    assert set(texts_of(corpus.train)) <= set(TEXTS)


def test_batches_and_samples_of_ranges(monkeypatch):
    monkeypatch.setattr("longfire.data.build.BATCH", 100)
    ends = np.cumsum([0, 30, 30, 30, 30, 500, 1, 1])
    ranges = np.stack([ends[:-1], ends[1:]], 1)
    found = list(batches(ranges))
    assert np.concatenate(found).tolist() == ranges.tolist()
    assert all(len(batch) for batch in found)
    assert max(np.diff(batch).sum() - np.diff(batch).max() for batch in found) <= 100
    assert spread(ranges, 1000).tolist() == ranges.tolist()
    many = np.stack([np.arange(0, 10_000, 10), np.arange(10, 10_010, 10)], 1)
    kept = spread(many, 1000)
    assert 1000 <= np.diff(kept).sum() <= 1010
    assert np.diff(kept[:, 0]).max() <= 110


def test_a_bar_over_bytes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    load_corpus(write(tmp_path / "a.jsonl"), cache_dir=tmp_path / "cache")
    shown = capsys.readouterr().err
    assert "tokenising train" in shown
    assert "100%" in shown
    load_corpus(tmp_path / "a.jsonl", cache_dir=tmp_path / "cache2", progress=False)
    assert "tokenising" not in capsys.readouterr().err
