"""A small text and a comparison on it that trains in a second."""

import sysconfig
from pathlib import Path

import pytest

from longfire.lab.comparison import Comparison
from longfire.training import RECIPES

RECIPE = RECIPES["tiny"].but(steps=3, batch_size=4, length=16, log_every=1, checkpoint_every=10)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Six files of the standard library, as a comparison takes them."""
    folder = tmp_path_factory.mktemp("text")
    for name in ("argparse", "ast", "calendar", "csv", "dis", "enum"):
        source = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        (folder / f"{name}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    cache = tmp_path_factory.mktemp("cache")
    return (("source", str(folder)), ("tokenizer", "bytes"), ("cache_dir", str(cache)))


def comparison(corpus, **changes):
    options = {"encodings": ("fire", "fire-s", "learned", "nope"), "seeds": (0,), "lengths": (16, 32), "tokens": 512}
    return Comparison(**{"recipe": RECIPE, "corpus": corpus, **options, **changes})
