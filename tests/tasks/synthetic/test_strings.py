from collections import Counter

import numpy as np

from longfire.tasks.synthetic import synthetic_task
from tests.tasks.synthetic.examples import chi_square, generated


def test_known_answers():
    for name, answer in {"copy": "3 1 2 10", "reverse": "10 2 1 3", "sort": "1 2 3 10"}.items():
        assert synthetic_task(name).solve(["3", "1", "2", "10"]) == answer.split()


def test_symbols_are_uniform():
    for name in ("copy", "reverse", "sort", "bucket-sort"):
        task = synthetic_task(name)
        rng = np.random.default_rng(0)
        counts = Counter(symbol for _ in range(400) for symbol in task.generate(100, rng)[0])
        assert set(counts) == set(task.symbols)
        assert chi_square(list(counts.values())) < 1.5, name


def test_sorted_symbols_are_distinct():
    task = synthetic_task("sort")
    assert task.max_length == len(task.symbols) == 253
    for length, question, answer in generated(task, count=3):
        assert len(set(question)) == length
        assert [int(symbol) for symbol in answer] == sorted(map(int, question))
