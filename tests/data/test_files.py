import gzip
import json
import os
import tracemalloc

import pytest
import zstandard

from longfire.data import CorpusError
from longfire.data.files import READERS, find_files, read_text
from longfire.data.intake import Intake
from tests.data.corpora import TEXTS, lines, write


def read(source, field="text", **options):
    intake = Intake(**options)
    return [text.decode() for text in find_files(source, field).documents(intake)], intake


@pytest.mark.parametrize("ending", [ending for ending, reader in READERS.items() if reader is not read_text])
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
    (tmp_path / "a.pdf").write_text("not a document")
    write(tmp_path / "c.jsonl", ["one", "two"])
    assert read(tmp_path)[0] == ["a/b/c.txt", "a/z.txt", "b.txt", "one", "two"]
    assert read([tmp_path / "b.txt", tmp_path / "a", tmp_path / "b.txt"])[0] == ["b.txt", "a/b/c.txt", "a/z.txt"]
    assert read(str(tmp_path / "**/*.txt"))[0] == ["a/b/c.txt", "a/z.txt", "b.txt"]


def test_what_a_folder_holds_besides(tmp_path):
    """Text by its usual names is read; what is not is counted and named."""
    texts = {name: f"in {name}" for name in ("NOTES.md", "a.py", "b.rst", "c.tex", "d.txt")}
    for name in (*texts, "e.pdf", "f.PDF", "g.docx", "Makefile"):
        (tmp_path / name).write_text(texts.get(name, ""))
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "none")
    assert read(tmp_path)[0] == list(texts.values())
    assert read(f"{tmp_path}/**/*.py")[0] == ["in a.py"]  # and the link is not followed in circles
    said = find_files(tmp_path, "text").passed_over
    assert said == f"6 files not read (.txt 2, .pdf 2, Makefile 1, .docx 1), such as {tmp_path / 'Makefile'}"
    assert find_files(tmp_path / "a.py", "text").passed_over == ""


def test_links_that_lead_out_of_a_folder(tmp_path):
    inside, outside = tmp_path / "inside", write(tmp_path / "outside" / "a.txt", ["outside"])
    write(inside / "b.txt", ["inside"])
    (inside / "c.txt").symlink_to(inside / "b.txt")
    (inside / "folder").symlink_to(outside.parent)
    assert read(inside)[0] == ["inside"]  # once
    assert find_files(inside, "text").passed_over == f"1 file not read (folder 1), such as {inside / 'folder'}"
    (inside / "d.txt").symlink_to(outside)
    with pytest.raises(CorpusError, match=rf"d.txt is a link that leads out of .*inside, to {outside}. If that text"):
        read(inside)
    assert read(f"{inside}/**/*.txt")[0] == ["inside", "outside"]  # a pattern names its files
    (tmp_path / "link").symlink_to(inside / "b.txt")
    (tmp_path / "link").rename(tmp_path / "link.txt")
    assert read(tmp_path / "link.txt")[0] == ["inside"]


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.jsonl", "pipe"])
def test_pipes_are_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CorpusError, match=rf"{name} is a pipe or a device, not a regular file.*COMMAND > text.txt"):
        find_files(tmp_path / name, "text")


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_line_that_memory_may_not_suffice_for(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("longfire.data.files.LONGEST", 1000)
    path = write(tmp_path / f"a.jsonl{ending}", ["first", "x" * 9000, "y" * 900, "z" * 2000])
    with pytest.raises(CorpusError, match=r"line 2 has more than 1,000 bytes. Divide it"):
        read(path)
    texts, intake = read(path, skip_bad=True)
    assert (texts, intake.skipped) == (["first", "y" * 900], 2)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_is_not_unpacked(tmp_path, pack, monkeypatch):
    monkeypatch.setattr("longfire.data.files.LONGEST", 1 << 20)
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a\x01\x00\xff\xfe", "a.txt is binary, not text"),
        (b"plain but for\x00", "a.txt is binary, not text"),
        (b"\x1f\x8b\x08 gzip", "a.txt is binary, not text"),
        ("Text".encode("utf-16"), "a.txt is UTF-16, not UTF-8. Convert it: iconv -f utf-16"),
    ],
)
def test_binary_files_are_called_so(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        read(tmp_path)
    assert read(tmp_path, skip_bad=True)[1].skipped == 1
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(lines()))
    with pytest.raises(CorpusError, match="line 1 is binary, not text"):
        read(tmp_path)


def test_what_cannot_be_found(tmp_path):
    (tmp_path / "notes.doc").write_text("hello")
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*missing.txt.*hub:NAME"):
        find_files(tmp_path / "missing.txt", "text")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        find_files(str(tmp_path / "*.jsonl"), "text")
    with pytest.raises(CorpusError, match=r"notes.doc is of no kind.*\.jsonl\.zst.*rename it to \.txt"):
        find_files(tmp_path / "notes.doc", "text")
    with pytest.raises(CorpusError, match=r"holds no file of a known kind .*but \.doc"):
        find_files(tmp_path, "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"the folder .*empty is empty .*Give one with text: \.txt, \.md"):
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
