import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from longfire.data import CorpusError, load_corpus
from longfire.data.build import CorpusPlan
from longfire.data.cache import FileHashes, TokenCache
from tests.data.corpora import TEXTS, write

LOAD = "from longfire.data import load_corpus; c = load_corpus({path!r}, cache_dir={cache!r}); "
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.jsonl")


def load(path, **options):
    return load_corpus(path, cache_dir=path.parent / "cache", progress=False, **options)


def start(path, code, before="", stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    code = before + LOAD.format(path=str(path), cache=str(path.parent / "cache")) + code
    return subprocess.Popen([sys.executable, "-c", code], stdout=stdout, stderr=stderr, text=True, cwd=ROOT)


def folder(path):
    (found,) = (one for one in (path.parent / "cache" / "tokens").iterdir() if one.is_dir())
    return found


def tokens(corpus):
    return [np.asarray(split.tokens).tolist() for split in (corpus.train, corpus.dev, corpus.validation)]


def test_built_once(path):
    first, second = load(path), load(path)
    assert (first.built, second.built) == (True, False)
    assert first.fingerprint == second.fingerprint
    assert first.describe() == second.describe()
    assert tokens(first) == tokens(second)
    assert isinstance(second.train.tokens, np.memmap)
    assert not second.train.tokens.flags.writeable


def test_keyed_by_content_and_settings(path, tmp_path):
    first = load(path)
    moved = write(tmp_path / "elsewhere" / "b.jsonl")
    assert not load_corpus(moved, cache_dir=tmp_path / "cache", progress=False).built
    os.utime(path, (1, 1))
    assert not load(path).built
    for options in ({"tokenizer": "bpe"}, {"max_documents": 50}, {"skip_bad": True}, {"validation": moved.parent}):
        if "validation" in options:
            write(moved, ["another text"])
        other = load(path, **options)
        assert other.built
        assert (other.fingerprint == first.fingerprint) == ("skip_bad" in options)  # has the same tokens
    write(path, [*TEXTS[:-1], "changed"])
    assert load(path).built


def test_content_changed_at_the_same_size_and_time(path):
    load(path)
    for n in range(5):
        write(path, [*TEXTS[:-1], f"{n}" * len(TEXTS[-1])])
        assert load(path).built


@pytest.fixture
def later(monkeypatch):
    """A minute from now, when files just written are old enough to be remembered."""
    now = time.time_ns
    monkeypatch.setattr("longfire.data.cache.time.time_ns", lambda: now() + 60 * 10**9)


def test_a_warm_start_reads_no_text(path, later, monkeypatch):
    load(path)
    monkeypatch.setattr("hashlib.file_digest", None)
    assert not load(path).built


@pytest.mark.parametrize("replaced", [False, True], ids=["written over", "replaced"])
def test_other_text_of_the_same_size_and_mtime(path, later, replaced):
    """As reproducible archives and rsync --times leave it."""
    load(path)
    before = path.stat()
    time.sleep(0.02)  # a tick of the kernel's clock
    changed = write(path.with_name("new.jsonl") if replaced else path, [*TEXTS[:-1], "x" * len(TEXTS[-1])])
    changed.write_bytes(changed.read_bytes().ljust(before.st_size))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load(path).built


def test_text_that_changes_while_it_is_read(path, monkeypatch):
    build = CorpusPlan.build

    def changing(plan, folder):
        write(path, [*TEXTS[:-1], "changed"])
        return build(plan, folder)

    monkeypatch.setattr(CorpusPlan, "build", changing)
    with pytest.raises(CorpusError, match=r"a.jsonl changed while it was being read. Run the command again"):
        load(path)
    monkeypatch.undo()
    write(path)
    assert load(path).built


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train.tokens", "altered"),
        ("dev.starts.npy", "truncated"),
        ("tokenizer/tokenizer.json", "missing"),
        *(("record.json", damage) for damage in ("altered", "missing", "emptied")),
    ],
)
def test_damage_is_detected_and_repaired(path, caplog, name, damage):
    before = tokens(load(path))
    victim = folder(path) / name
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes({"truncated": content[:-1], "altered": content, "emptied": b""}[damage])
    again = load(path)
    assert again.built
    assert "the cache is damaged" in caplog.text
    assert name in caplog.text
    assert "rebuilt" in caplog.text
    assert tokens(again) == before
    assert not load(path).built


def test_two_processes_at_once(path, tmp_path):
    """One rebuilds the damaged tokens while the other waits; both get them."""
    load(path)
    (folder(path) / "dev.tokens").write_bytes(b"")
    go = tmp_path / "go"
    held = (
        "import time, pathlib; from longfire.data.build import CorpusPlan\n"
        "build = CorpusPlan.build; go = pathlib.Path({!r})\n"
        "def held(*a):\n"
        "    print('building', flush=True)\n"
        "    while not go.exists(): time.sleep(0.05)\n"
        "    return build(*a)\n"
        "CorpusPlan.build = held\n"
    )
    logs = [tmp_path / f"{n}.log" for n in range(2)]
    both = []
    for log in logs:
        with log.open("w") as out:
            both.append(start(path, "print(c.built, c.fingerprint)", held.format(str(go)), stdout=out, stderr=out))
    deadline = time.monotonic() + 120
    while sorted(word in log.read_text() for log in logs for word in ("building", "waiting for it")) != [0, 0, 1, 1]:
        assert time.monotonic() < deadline, [log.read_text() for log in logs]
        time.sleep(0.05)
    go.touch()
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    (one, of_one), (other, of_other) = (log.read_text().split()[-2:] for log in logs)
    assert {one, other} == {"True", "False"}
    assert of_one == of_other


def test_killed_before_the_tokens_are_in_place(path):
    stop = "import time; stop = lambda: (print('now', flush=True), time.sleep(60)); "
    patch = "import longfire.data.cache as m; old = m.mark_complete; m.mark_complete = lambda *a: (old(*a), stop()); "
    process = start(path, "", stop + patch)
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = [one.name for one in (path.parent / "cache" / "tokens").iterdir() if one.is_dir()]
    assert len(left) == 1
    assert ".making-" in left[0]
    corpus = load(path)
    assert corpus.built
    assert corpus.train.num_documents + corpus.dev.num_documents + corpus.validation.num_documents == len(TEXTS)
    assert ".making-" not in folder(path).name  # and no draft is left


def test_a_failed_build_leaves_nothing(path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"no space left for tokens in .*LONGFIRE_CACHE"):
        TokenCache(path.parent / "c").get("key", lambda folder: {"n": (folder / "f").write_text("x")})
    assert [one.name for one in (path.parent / "c").iterdir() if one.is_dir()] == []


def test_a_cache_that_cannot_be_created(path):
    with pytest.raises(OSError, match=r"cannot create the cache folder .*LONGFIRE_CACHE"):
        load_corpus(path, cache_dir=path / "below-a-file", progress=False)


def test_where_the_cache_is(path, monkeypatch):
    monkeypatch.setenv("LONGFIRE_CACHE", str(path.parent / "other"))
    load_corpus(path, progress=False)
    assert (path.parent / "other" / "tokens").is_dir()


def test_notes_are_shared_and_survive_damage(tmp_path):
    one, two = FileHashes(tmp_path), FileHashes(tmp_path)
    one.remember("a", "1")
    two.remember("b", "2")
    one.save()
    two.save()
    assert FileHashes(tmp_path).known == {"a": "1", "b": "2"}
    (tmp_path / "notes.json").write_text('{"a": "1"')
    assert FileHashes(tmp_path).recall("a") is None


def test_a_read_only_cache_can_be_read(path, later, monkeypatch):
    load(path)

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("longfire.data.cache.FileLock", refuse)
    assert not load(path).built


def test_fresh_files_are_not_remembered(tmp_path, request):
    path = tmp_path / "a"
    path.write_text("x")
    os.utime(path, (1, 1))  # whatever its mtime
    notes = FileHashes(tmp_path)
    notes.digest(path)
    assert not notes.new
    request.getfixturevalue("later")
    notes.digest(path)
    assert notes.new
