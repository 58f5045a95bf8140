"""Atomic writes: not through links, and without leftovers."""

import errno
import fcntl
import os
import stat

import pytest

from longfire.atomic_io import read_json, write_whole


def test_links_are_not_written_through(tmp_path, monkeypatch):
    """Neither at the draft's name, even if guessed, nor at the file's, where the link is replaced."""
    victim, path = tmp_path / "victim", tmp_path / "out" / "file.json"
    victim.write_text("mine")
    path.parent.mkdir()
    (path.parent / f".file.json.{os.getpid()}").symlink_to(victim)
    write_whole(path, "new")
    assert (victim.read_text(), path.read_text()) == ("mine", "new")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 16)
    (path.parent / f".file.json.{'0' * 16}").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(path, "newer")
    monkeypatch.undo()
    path.unlink()
    path.symlink_to(victim)
    write_whole(path, "newest")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("mine", "newest", False)


def test_drafts_of_killed_writers_are_removed(tmp_path):
    """Drafts that are still being written, and those of other files, stay."""
    own, other = (tmp_path / f".{name}.0123456789abcdef" for name in ("file.json", "other.json"))
    own.touch()
    other.touch()
    with own.open() as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        write_whole(tmp_path / "file.json", "new")
        assert own.exists()
    write_whole(tmp_path / "file.json", "newer")
    assert {path.name for path in tmp_path.iterdir()} == {"file.json", other.name}


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_failed_write_keeps_the_old_content(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_whole(tmp_path / "file", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_an_unreadable_file_is_not_a_missing_one(tmp_path):
    assert read_json(tmp_path / "missing.json") == {}
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OSError, match=r"folder\.json"):
        read_json(tmp_path / "folder.json")
