"""Marks of complete folders: what they detect, and marks of earlier releases."""

import json
import zlib

import pytest

from longfire.complete_folder import MARK, IncompleteError, checksums, mark_complete, read_mark, short_hash

FILES = {"a": b"something", "inner/b": b"", "c": b"12345678" * 3 + b"9"}


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "folder"
    (found / "inner").mkdir(parents=True)
    for name, content in FILES.items():
        (found / name).write_bytes(content)
    return found


def test_a_mark_lists_every_file(folder):
    with pytest.raises(IncompleteError, match=r"complete\.json is missing"):
        read_mark(folder)
    mark_complete(folder, {"answer": 42})
    found = read_mark(folder)
    assert found["content"] == {"answer": 42}
    assert {name: size for name, (size, _) in found["files"].items()} == {n: len(c) for n, c in FILES.items()}
    mark_complete(folder)  # again: the mark does not list itself
    assert set(read_mark(folder)["files"]) == set(FILES)


@pytest.mark.parametrize("earlier", [False, True], ids=["today's", "earlier"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "a").write_bytes(b"somethinh"), "a was altered"),
        (lambda folder: (folder / "a").write_bytes(b"some"), "a has 4 bytes, not the 9"),
        (lambda folder: (folder / "inner" / "b").unlink(), "b is missing"),
        (lambda folder: (folder / MARK).write_text("{}"), "was altered"),
        (lambda folder: (folder / MARK).write_text('{"a": 1}'), "was altered"),
        (lambda folder: (folder / MARK).write_text('{"a": [9'), "is not valid JSON"),
    ],
)
def test_damage_is_noticed(folder, damage, message, earlier):
    """Also with checkpoint marks of earlier releases: sizes and checksums of whole files."""
    if earlier:
        entries = {name: [len(content), zlib.crc32(content)] for name, content in FILES.items()}
        (folder / MARK).write_text(json.dumps(entries))
    else:
        mark_complete(folder)
    assert set(read_mark(folder)["files"]) == set(FILES)
    damage(folder)
    with pytest.raises(IncompleteError, match=message):
        read_mark(folder)


def test_an_altered_mark_is_noticed(folder):
    mark_complete(folder, {"n": 1})
    (folder / MARK).write_text((folder / MARK).read_text().replace('"n": 1', '"n": 2'))
    with pytest.raises(IncompleteError, match="was altered"):
        read_mark(folder)


def test_marks_of_tokens_from_earlier_releases(folder):
    sealed = {"content": {"n": 1}, "files": {name: [len(c), checksums(folder / name)] for name, c in FILES.items()}}
    (folder / "record.json").write_text(json.dumps({**sealed, "seal": short_hash(sealed)}, indent=1))
    assert read_mark(folder, "record.json") == sealed


def test_a_deleted_folder_is_not_recreated(tmp_path):
    with pytest.raises(FileNotFoundError, match="was deleted while"):
        mark_complete(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
    with pytest.raises(FileNotFoundError):
        read_mark(tmp_path / "gone")


def test_each_block_has_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr("longfire.complete_folder.BLOCK", 8)
    path = tmp_path / "a"
    path.write_bytes(b"12345678" * 3 + b"9")
    sums = checksums(path)
    path.write_bytes(b"12345678" * 2 + b"12345679" + b"9")
    assert [a == b for a, b in zip(sums, checksums(path), strict=True)] == [True, True, False, True]
