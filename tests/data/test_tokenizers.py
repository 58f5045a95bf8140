import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longfire.data import CorpusError, load_corpus
from longfire.data.tokenizers import (
    END,
    BatchEncoder,
    WordCachingEncoder,
    byte_tokenizer,
    encoder,
    load_tokenizer,
    plan_tokenizer,
    trained_bpe,
)
from tests.data.corpora import TEXTS, write

BYTES = byte_tokenizer()
BPE = trained_bpe([text.encode() for text in TEXTS], 400)
AWKWARD = st.text(
    st.sampled_from(list(" \n\t\r\x0b\x1c\x1f\x85\xa0\u2003\u3000\u200b\u180eab'sSt1½²é日.,!-_\0")), max_size=30
)


def tokens(tokenizer, text):
    (found,) = encoder(tokenizer, np.uint16)([text.encode()])
    return found.tolist()


@given(st.text())
@example(bytes(range(128)).decode() + "\x80ÿ\u0100\U0010ffff")
def test_byte_encoding_matches_the_library(text):
    assert tokens(BYTES, text) == list(text.encode()) == BYTES.encode(text, split_special_tokens=True)
    assert BYTES.decode(tokens(BYTES, text)) == text


def test_bytes():
    assert len(BYTES) == 257
    assert BYTES.eos_token_id == 256
    assert BYTES.encode(f"a{END}") == [97, 256]
    assert sorted(BYTES.get_vocab().values()) == list(range(257))


@given(st.one_of(AWKWARD, st.text()))
@example("it's  a\n\n  test\t\tof''s 'll  \n")
@example("!\x1c a\x1c \x1d!")
def test_word_caching_matches_the_library(text):
    fast = encoder(BPE, np.uint16)
    assert isinstance(fast, WordCachingEncoder)
    whole = BatchEncoder(fast.backend, np.uint16)
    assert next(fast([text.encode()])).tolist() == next(whole([text.encode()])).tolist()
    assert BPE.decode(tokens(BPE, text)) == text


def test_other_tokenizers_go_through_the_library():
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert type(encoder(tokenizer, np.uint16)) is BatchEncoder
    assert tokens(tokenizer, "a b a b a") == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_eos_spelled_out_in_a_text_is_text(tokenizer):
    found = tokens(tokenizer, f"a {END} b")
    assert tokenizer.eos_token_id not in found
    assert tokenizer.decode(found) == f"a {END} b"


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_saves_and_loads(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "Grüße,  Welt!\n\tx"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.decode(again.encode(text)) == text
    assert (again.eos_token_id, len(again)) == (tokenizer.eos_token_id, len(tokenizer))
    assert tokens(again, text) == tokens(tokenizer, text)


def test_bpe_is_the_same_in_every_process(tmp_path):
    code = (
        "from longfire.data.tokenizers import trained_bpe; from tests.data.corpora import TEXTS; "
        "print(trained_bpe([t.encode() for t in TEXTS], 400).backend_tokenizer.to_str())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert other == BPE.backend_tokenizer.to_str() + "\n"
    assert len(BPE) == 400
    assert BPE.eos_token_id == 0


def test_bpe_is_trained_on_the_train_split_only(tmp_path):
    odd = [f"{n} " + chr(0x3041 + n) * 400 for n in range(80)]  # each document has its own letter
    path = write(tmp_path / "a.jsonl", odd)
    corpus = load_corpus(path, tokenizer="bpe", vocab_size=600, cache_dir=tmp_path / "cache", progress=False)
    per_token = {
        name: len(getattr(corpus, name).tokens) / getattr(corpus, name).bytes for name in ("train", "validation")
    }
    assert per_token["train"] < 0.2 < per_token["validation"]


def test_a_tokenizer_from_a_folder(tmp_path):
    BPE.save_pretrained(tmp_path / "own")
    path = write(tmp_path / "a.jsonl")
    corpus = load_corpus(path, tokenizer=tmp_path / "own", cache_dir=tmp_path / "cache", progress=False)
    assert corpus.vocab_size == 400
    first = np.asarray(corpus.train.tokens[: corpus.train.starts[1]])
    assert first[-1] == 0
    assert BPE.decode(first[:-1]) in TEXTS


def test_the_only_special_token_ends_documents(tmp_path):
    backend = Tokenizer.from_str(BPE.backend_tokenizer.to_str())
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).eos_token == END
    backend.add_special_tokens(["<s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CorpusError, match="has no eos_token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "vocab_size", "error", "message"),
    [
        ("nobody/nothing", None, CorpusError, r"cannot load tokenizer 'nobody/nothing'.*'bytes', 'bpe'"),
        (".", None, CorpusError, "cannot load tokenizer"),
        (None, None, TypeError, "tokenizer must be 'bytes', 'bpe', or a folder"),
        ("bpe", "8192", TypeError, "vocab_size must be a whole number"),
        ("bpe", 200, ValueError, "at least 257"),
        ("bytes", 300, ValueError, "vocab_size=300 needs tokenizer='bpe'"),
    ],
)
def test_wrong_tokenizers(name, vocab_size, error, message):
    with pytest.raises(error, match=message):
        plan_tokenizer(name, vocab_size)
