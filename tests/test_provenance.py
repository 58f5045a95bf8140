"""Kernel hashes, which tell whether a performance record is stale."""

from pathlib import Path

import pytest

import longfire
from longfire.bench.bias_speed import BiasSetting, measure_bias
from longfire.provenance import KERNELS, kernel_hash, syntax_hash

SOURCE = '''"""A kernel."""

BLOCK = 64
"""Keys in a tile."""


def kernel(x):
    """Twice x."""
    return x * BLOCK  # in a tile
'''
PLAIN = "BLOCK = 64\ndef kernel(x):\n  return (x*BLOCK)\n"


def test_comments_docstrings_and_layout_do_not_count():
    assert syntax_hash([SOURCE]) == syntax_hash([PLAIN])
    assert syntax_hash([SOURCE, "a = 1"]) == syntax_hash(["a = 1", PLAIN])  # files may be renamed


@pytest.mark.parametrize("change", [("64", "128"), ("64", "64.0"), ("*", "+"), ("return", "x"), ("(x)", "(x=None)")])
def test_any_other_change_counts(change):
    assert PLAIN.replace(*change) != PLAIN
    assert syntax_hash([PLAIN.replace(*change)]) != syntax_hash([PLAIN])


def test_performance_records_have_the_hash():
    package = Path(longfire.__file__).parent
    assert all(list(package.glob(pattern)) for pattern in KERNELS)
    record = measure_bias(BiasSetting((8,), heads=2, seconds=0.0, encodings=("alibi",)))
    assert record["provenance"]["kernels"] == kernel_hash()
