import gzip
import json

import pytest
import zstandard

from longfire.data import CorpusError
from longfire.data.files import READERS, find_files
from longfire.data.intake import Intake
from tests.data.corpora import TEXTS, lines, write


def read(source, field="text", **options):
    intake = Intake(**options)
    return [text.decode() for text in find_files(source, field).documents(intake)], intake


@pytest.mark.parametrize("ending", [ending for ending in READERS if ending != ".txt"])
@pytest.mark.parametrize("field", ["text", "content"])
def test_one_document_a_row(tmp_path, ending, field):
    path = write(tmp_path / f"a{ending}", field=field)
    assert read(path, field)[0] == TEXTS


def test_one_document_a_text_file(tmp_path):
    path = tmp_path / "Ä.TXT"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntw\xc3\xb6\n")
    assert read(path)[0] == ["one\r\ntwö\n"]


def test_folders_are_read_recursively_and_in_order(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b/c.txt", ".hidden/d.txt", "a/.e.txt"):
        write(tmp_path / name, [name])
    (tmp_path / "README.md").write_text("not a document")
    write(tmp_path / "c.jsonl", ["one", "two"])
    assert read(tmp_path)[0] == ["a/b/c.txt", "a/z.txt", "b.txt", "one", "two"]
    assert read([tmp_path / "b.txt", tmp_path / "a", tmp_path / "b.txt"])[0] == ["b.txt", "a/b/c.txt", "a/z.txt"]
    assert read(str(tmp_path / "**/*.txt"))[0] == ["a/b/c.txt", "a/z.txt", "b.txt"]


def test_several_zstandard_frames_and_long_lines(tmp_path):
    long = ["x" * 3_000_000, "y" * 5, "zß" * 400_000]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(lines(long[:2])) + zstandard.compress(lines(long[2:])))
    assert read(path)[0] == long


BAD_LINES = {
    "not JSON": (b'{"text": "cut o', r"line 2 is not JSON \(Unterminated string.*\): '{\"text\": \"cut o'"),
    "no object": (b"[1]", "line 2 is not an object with fields but list"),
    "no such field": (
        b'{"content": "a", "id": 1}',
        "line 2 has no field 'text'; the fields there are: 'content', 'id'",
    ),
    "no fields": (b"{}", "line 2 has no field 'text'; the fields there are: none"),
    "null": (b'{"text": null}', "line 2: the field 'text' holds no text but NoneType"),
    "encoding": (b'{"text": "caf\xe9"}', "line 2: not UTF-8 .byte 0xe9"),
    "half a character": (rb'{"text": "\ud800"}', "line 2: half a character"),
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
    texts, intake = read(path, skip_bad=True)
    assert texts == ["first", "last"]
    assert intake.skipped == 1
    assert str(path) in intake.reasons[0]


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".parquet"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_cut_off_files_are_noticed(tmp_path, ending, share):
    path = write(tmp_path / f"a{ending}")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CorpusError, match=r"damaged|not JSON"):
        read(path)
    texts, intake = read([path, write(tmp_path / "b.jsonl", ["good"])], skip_bad=True)
    assert texts[-1] == "good"
    assert texts[:-1] == TEXTS[: len(texts) - 1]
    assert intake.skipped >= 1


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_what_only_bears_the_name(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"this is something else entirely")
    with pytest.raises(CorpusError, match="damaged"):
        read(path)


def test_parquet_without_the_field_or_with_gaps(tmp_path):
    path = write(tmp_path / "a.parquet", ["a", None, "c"], field="body")
    with pytest.raises(CorpusError, match="has no field 'text'; the fields there are: 'id', 'body'"):
        read(path)
    assert read(path, skip_bad=True)[1].skipped == 1
    with pytest.raises(CorpusError, match="row 2: the field 'body' holds no text but NoneType"):
        read(path, "body")
    texts, intake = read(path, "body", skip_bad=True)
    assert (texts, intake.skipped) == (["a", "c"], 1)


def test_text_in_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("eins\nzwei für\n".encode("latin1"))
    with pytest.raises(CorpusError, match=r"a.txt, line 2: not UTF-8 \(byte 0xfc at 11\).*iconv"):
        read(path)
    assert read(path, skip_bad=True)[1].skipped == 1


def test_what_cannot_be_found(tmp_path):
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*missing.txt.*hub:NAME"):
        find_files(tmp_path / "missing.txt", "text")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        find_files(str(tmp_path / "*.jsonl"), "text")
    with pytest.raises(CorpusError, match=r"notes.md is of no kind.*\.jsonl\.zst"):
        find_files(tmp_path / "notes.md", "text")
    with pytest.raises(CorpusError, match=r"holds no file of a known kind .*but \.md"):
        find_files(tmp_path, "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"the folder .*empty is empty .*Give one with text: \.txt, \.jsonl"):
        find_files(tmp_path / "empty", "text")
    for wrong in (5, "", [tmp_path, None]):
        with pytest.raises(TypeError, match="a source is a path or a list of paths, not"):
            find_files(wrong, "text")
    with pytest.raises(CorpusError, match="must be the only source"):
        find_files([tmp_path, "hub:c4"], "text")
    with pytest.raises(CorpusError, match="list of sources is empty"):
        find_files([], "text")


def test_content_counts_and_names_do_not(tmp_path):
    class Memory:
        def digest(self, path):
            return json.dumps(path.read_bytes().hex())

    write(tmp_path / "a" / "1.txt", ["one"])
    write(tmp_path / "b" / "2.txt", ["one"])
    write(tmp_path / "c" / "1.txt", ["two"])
    a, b, c = (find_files(tmp_path / name, "text").identity(Memory()) for name in "abc")
    assert a == b != c
