"""File readers: bad lines, truncated and binary files, decompression bombs."""

import gzip
import tracemalloc

import pytest
import zstandard

from longfire.data import CorpusError
from longfire.data.readers import READERS, read_text
from tests.data.corpora import TEXTS, lines, read, write


@pytest.mark.parametrize("ending", [ending for ending, reader in READERS.items() if reader is not read_text])
@pytest.mark.parametrize("field", ["text", "content"])
def test_one_document_per_row(tmp_path, ending, field):
    path = write(tmp_path / f"a{ending}", field=field)
    assert read(path, field)[0] == TEXTS


def test_one_document_per_text_file(tmp_path):
    path = tmp_path / "Ä.TXT"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntw\xc3\xb6\n")
    assert read(path)[0] == ["one\r\ntwö\n"]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_line_too_long_for_memory(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("longfire.data.readers.MAX_LINE", 1000)
    path = write(tmp_path / f"a.jsonl{ending}", ["first", "x" * 9000, "y" * 900, "z" * 2000])
    with pytest.raises(CorpusError, match=r"line 2 has more than 1,000 bytes. Split it"):
        read(path)
    texts, log = read(path, skip_bad=True)
    assert (texts, log.skipped) == (["first", "y" * 900], 2)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_is_not_unpacked(tmp_path, pack, monkeypatch):
    monkeypatch.setattr("longfire.data.readers.MAX_LINE", 1 << 20)
    path = tmp_path / f"a.jsonl.{'gz' if pack is gzip.compress else 'zst'}"
    path.write_bytes(pack(b"x" * (1 << 27)))
    tracemalloc.start()
    with pytest.raises(CorpusError, match=r"line 1 has more than 1,048,576 bytes"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 26


def test_several_zstandard_frames_and_long_lines(tmp_path):
    long = ["x" * 3_000_000, "y" * 5, "zß" * 400_000]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(lines(long[:2])) + zstandard.compress(lines(long[2:])))
    assert read(path)[0] == long


BAD_LINES = {
    "not JSON": (b'{"text": "cut o', r"line 2 is not JSON \(Unterminated string.*\): '{\"text\": \"cut o'"),
    "no object": (b"[1]", "line 2 must be an object with fields, not list"),
    "no such field": (
        b'{"content": "a", "id": 1}',
        "line 2 has no field 'text'; its fields are: 'content', 'id'",
    ),
    "no fields": (b"{}", "line 2 has no field 'text'; its fields are: none"),
    "null": (b'{"text": null}', "line 2: the field 'text' must be text, not NoneType"),
    "encoding": (b'{"text": "caf\xe9"}', "line 2: not UTF-8 .byte 0xe9"),
    "lone surrogate": (rb'{"text": "\ud800"}', "line 2: a lone surrogate"),
    "too deep": (b"[" * 200_000, "line 2 is not JSON"),
}


@pytest.mark.parametrize("case", BAD_LINES)
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_bad_lines_are_named_or_counted(tmp_path, case, ending):
    line, message = BAD_LINES[case]
    path = tmp_path / f"a.jsonl{ending}"
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    path.write_bytes(pack(b'{"text": "first"}\n' + line + b'\n\n{"text": "last"}'))
    with pytest.raises(CorpusError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "skip_bad=True" in str(error.value)
    texts, log = read(path, skip_bad=True)
    assert texts == ["first", "last"]
    assert log.skipped == 1
    assert str(path) in log.reasons[0]


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".parquet"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_truncated_files_are_detected(tmp_path, ending, share):
    path = write(tmp_path / f"a{ending}")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CorpusError, match=r"damaged|not JSON"):
        read(path)
    texts, log = read([path, write(tmp_path / "b.jsonl", ["good"])], skip_bad=True)
    assert texts[-1] == "good"
    assert texts[:-1] == TEXTS[: len(texts) - 1]
    assert log.skipped >= 1


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_files_with_the_wrong_content(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"this is something else entirely")
    with pytest.raises(CorpusError, match="damaged"):
        read(path)


def test_parquet_without_the_field_or_with_gaps(tmp_path):
    path = write(tmp_path / "a.parquet", ["a", None, "c"], field="body")
    with pytest.raises(CorpusError, match="has no field 'text'; its fields are: 'id', 'body'"):
        read(path)
    assert read(path, skip_bad=True)[1].skipped == 1
    with pytest.raises(CorpusError, match="row 2: the field 'body' must be text, not NoneType"):
        read(path, "body")
    texts, log = read(path, "body", skip_bad=True)
    assert (texts, log.skipped) == (["a", "c"], 1)


def test_text_in_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("eins\nzwei für\n".encode("latin1"))
    with pytest.raises(CorpusError, match=r"a.txt, line 2: not UTF-8 \(byte 0xfc at 11\).*iconv"):
        read(path)
    assert read(path, skip_bad=True)[1].skipped == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a\x01\x00\xff\xfe", "a.txt is binary, not text"),
        (b"plain but for\x00", "a.txt is binary, not text"),
        (b"\x1f\x8b\x08 gzip", "a.txt is binary, not text"),
        ("Text".encode("utf-16"), "a.txt is UTF-16, not UTF-8. Convert it: iconv -f utf-16"),
    ],
)
def test_binary_files_are_reported_as_binary(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        read(tmp_path)
    assert read(tmp_path, skip_bad=True)[1].skipped == 1
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(lines()))
    with pytest.raises(CorpusError, match="line 1 is binary, not text"):
        read(tmp_path)
