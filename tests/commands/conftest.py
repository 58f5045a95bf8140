import pytest

TEXT = "The king said that the road was long, and the road was long, and nobody knew where it went after the hill. "


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder of texts, some long, and an empty cache."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"{i}. " + TEXT * (1 + i % 7))
    return folder
