import sys

import pytest

from longfire.data import CorpusError, embedded
from longfire.data.embedded import LIMIT, StandardLibrary, help_topics, source_files
from longfire.data.source import ReadLog


def test_several_megabytes_of_text_in_a_fixed_order():
    library = StandardLibrary()
    documents = list(library.documents(ReadLog()))
    assert 3_000_000 < sum(map(len, documents)) <= LIMIT
    assert documents == list(library.documents(ReadLog()))
    assert library.identity(None) == StandardLibrary().identity(None)
    assert any(b"class JSONDecoder" in text for text in documents)
    assert sum(len(text) >= 8192 for text in documents) > 100  # long enough for long contexts


def test_topics_are_not_parts_of_one_another():
    topics = [{line.strip() for line in text.decode().splitlines() if len(line) > 40} for text in help_topics()]
    assert len(topics) > 20
    for n, one in enumerate(topics):
        assert not any(one <= other for k, other in enumerate(topics) if k != n)


def test_smaller_on_request():
    few = source_files(500_000)
    assert 200_000 < sum(map(len, few)) <= 500_000
    assert set(few) <= set(source_files(10**9))


def test_a_python_without_sources_or_topics(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(CorpusError, match="no standard library sources"):
        source_files(LIMIT)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert help_topics() == []


def test_exclusions_apply_only_below_the_library(monkeypatch, tmp_path):
    root = tmp_path / "tests" / "lib"  # an excluded name above the library excludes nothing
    for name in ("a.py", "test/b.py", "site-packages/c.py", "pkg/d.py", "config-3/e.py", "latin.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"# \xe9" if name == "latin.py" else name.encode())
    monkeypatch.setattr(embedded.sysconfig, "get_path", lambda name: str(root))
    assert source_files(LIMIT) == [b"a.py", b"pkg/d.py"]
