"""Kernel hashes, which show whether a performance record is stale."""

from pathlib import Path

import pytest

import longfire
from longfire.bench.bias_speed import BiasBenchmark
from longfire.provenance import KERNELS, kernel_hash, merge_provenance, provenance, syntax_hash

SOURCE = '''"""A kernel."""

BLOCK = 64
"""Keys in a tile."""


def kernel(x):
    """Twice x."""
    return x * BLOCK  # in a tile
'''
PLAIN = "BLOCK = 64\ndef kernel(x):\n  return (x*BLOCK)\n"


def test_comments_docstrings_and_formatting_do_not_count():
    assert syntax_hash([SOURCE]) == syntax_hash([PLAIN])
    assert syntax_hash([SOURCE, "a = 1"]) == syntax_hash(["a = 1", PLAIN])  # files may be renamed


@pytest.mark.parametrize("change", [("64", "128"), ("64", "64.0"), ("*", "+"), ("return", "x"), ("(x)", "(x=None)")])
def test_any_other_change_counts(change):
    assert PLAIN.replace(*change) != PLAIN
    assert syntax_hash([PLAIN.replace(*change)]) != syntax_hash([PLAIN])


def test_performance_records_have_the_hash():
    package = Path(longfire.__file__).parent
    assert all(list(package.glob(pattern)) for pattern in KERNELS)
    record = BiasBenchmark.on(lengths=(8,), heads=2, seconds=0.0, encodings=("alibi",)).run()
    assert record["provenance"]["kernels"] == kernel_hash()


def test_provenance_of_several_machines():
    one, other = provenance(), provenance()
    assert merge_provenance([one, one]) == one
    other["hardware"] = {**one["hardware"], "gpu": "H200"}
    other["commit"] = "abc"
    both = merge_provenance([one, other])
    assert both["hardware"] == {**one["hardware"], "gpu": f"H200, {one['hardware']['gpu']}"}
    assert set(both["commit"].split(", ")) == {"abc", one["commit"]}
    assert both["versions"] == one["versions"]
