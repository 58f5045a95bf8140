"""Fixtures of the lab's tests."""

import sysconfig
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Six files of the standard library, as a comparison's corpus."""
    folder = tmp_path_factory.mktemp("text")
    for name in ("argparse", "ast", "calendar", "csv", "dis", "enum"):
        source = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        (folder / f"{name}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    cache = tmp_path_factory.mktemp("cache")
    return {"source": str(folder), "tokenizer": "bytes", "cache_dir": str(cache)}
