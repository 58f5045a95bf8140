"""Fixtures: text, a corpus, and an uninterrupted pretraining run."""

import json
import sysconfig
from pathlib import Path

import pytest

from longfire.data import load_corpus
from longfire.training import pretrain
from tests.training.runs import QUIET, RECIPE
from tests.training.toys import checkpoint


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name in ("argparse", "ast", "calendar", "csv", "dis", "enum", "glob", "heapq", "inspect", "json/decoder"):
        source = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        (folder / f"{source.stem}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def corpus(text, tmp_path_factory):
    return load_corpus(text, tokenizer="bytes", cache_dir=tmp_path_factory.mktemp("cache"), progress=False)


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """A corpus of short documents, several to a sequence."""
    folder = tmp_path_factory.mktemp("documents")
    for n in range(60):
        (folder / f"{n}.txt").write_text("".join(chr(97 + (n + k * k) % 23) for k in range(5 + n % 40)))
    return load_corpus(folder, tokenizer="bytes", cache_dir=folder / "cache", progress=False)


@pytest.fixture(scope="session")
def undisturbed(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    pretrain(RECIPE, corpus, run, **QUIET)
    return run


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """The checkpoint of a pretraining run, recorded by an earlier release."""
    run = tmp_path_factory.mktemp("pretrained")
    (run / "done.json").write_text(json.dumps({"recipe": {"start": "kerple_log"}}))
    return checkpoint(run / "model")
