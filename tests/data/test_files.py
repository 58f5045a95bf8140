"""Finding files: folders, patterns, links, pipes, and skipped files."""

import json
import os

import pytest

from longfire.data import CorpusError
from longfire.data.files import find_files
from tests.data.corpora import read, write


def test_folders_are_read_recursively_and_in_order(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b/c.txt", ".hidden/d.txt", "a/.e.txt"):
        write(tmp_path / name, [name])
    (tmp_path / "a.pdf").write_text("not a document")
    write(tmp_path / "c.jsonl", ["one", "two"])
    assert read(tmp_path)[0] == ["a/b/c.txt", "a/z.txt", "b.txt", "one", "two"]
    assert read([tmp_path / "b.txt", tmp_path / "a", tmp_path / "b.txt"])[0] == ["b.txt", "a/b/c.txt", "a/z.txt"]
    assert read(str(tmp_path / "**/*.txt"))[0] == ["a/b/c.txt", "a/z.txt", "b.txt"]


def test_other_files_in_a_folder(tmp_path):
    """Known text files are read; the others are counted and reported."""
    texts = {name: f"in {name}" for name in ("NOTES.md", "a.py", "b.rst", "c.tex", "d.txt")}
    for name in (*texts, "e.pdf", "f.PDF", "g.docx", "Makefile"):
        (tmp_path / name).write_text(texts.get(name, ""))
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "none")
    assert read(tmp_path)[0] == list(texts.values())
    assert read(f"{tmp_path}/**/*.py")[0] == ["in a.py"]  # without following the circular link
    passed_over = find_files(tmp_path, "text").passed_over
    assert passed_over == f"6 files not read (.txt 2, .pdf 2, Makefile 1, .docx 1), such as {tmp_path / 'Makefile'}"
    assert find_files(tmp_path / "a.py", "text").passed_over == ""


def test_links_that_lead_out_of_a_folder(tmp_path):
    inside, outside = tmp_path / "inside", write(tmp_path / "outside" / "a.txt", ["outside"])
    write(inside / "b.txt", ["inside"])
    (inside / "c.txt").symlink_to(inside / "b.txt")
    (inside / "folder").symlink_to(outside.parent)
    assert read(inside)[0] == ["inside"]  # once
    assert find_files(inside, "text").passed_over == f"1 file not read (folder 1), such as {inside / 'folder'}"
    (inside / "d.txt").symlink_to(outside)
    with pytest.raises(CorpusError, match=rf"d.txt is a link out of .*inside, to {outside}"):
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


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("missing.txt", FileNotFoundError, r"no file or folder .*missing.txt.*hub:NAME"),
        ("*.jsonl", FileNotFoundError, "no file matches"),
        ("notes.doc", CorpusError, r"notes.doc has an unknown file type.*rename it to \.txt"),
        (".", CorpusError, r"no file of a known type .*only \.doc"),
        ("empty", CorpusError, r"the folder .*empty is empty .*Pass one with text: \.txt, \.md"),
        (5, TypeError, "a source must be a path or a list of paths, not"),
        ("", TypeError, "a source must be a path or a list of paths, not"),
        ([".", None], TypeError, "a source must be a path or a list of paths, not"),
        ([".", "hub:c4"], CorpusError, "must be the only source"),
        ([], CorpusError, "list of sources is empty"),
    ],
)
def test_wrong_sources(source, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.doc").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        find_files(source, "text")


def test_content_counts_and_names_do_not(tmp_path):
    class Memory:
        def digest(self, path):
            return json.dumps(path.read_bytes().hex())

    write(tmp_path / "a" / "1.txt", ["one"])
    write(tmp_path / "b" / "2.txt", ["one"])
    write(tmp_path / "c" / "1.txt", ["two"])
    a, b, c = (find_files(tmp_path / name, "text").identity(Memory()) for name in "abc")
    assert a == b != c
