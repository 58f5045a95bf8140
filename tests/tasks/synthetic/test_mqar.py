import numpy as np

from longfire.tasks.synthetic import IGNORED, synthetic_task
from tests.tasks.synthetic.examples import generated, parts

TASK = synthetic_task("mqar")


def test_keys_are_unique_and_all_are_queried():
    for length, question, answer in generated(TASK, count=3):
        keys, values, queries = question[: 2 * length : 2], question[1 : 2 * length : 2], question[2 * length :]
        assert len(keys) == len(set(keys)) == len(set(values)) == length
        assert sorted(queries) == sorted(keys)
        assert {key[0] for key in keys} == {"k"}
        assert {value[0] for value in values} == {"v"}
        assert answer == [values[keys.index(query)] for query in queries]


def test_rows_interleave_queries_and_answers():
    """A label at every value after SEP, and nowhere else."""
    row = TASK.row(12, np.random.default_rng(0))
    context, queried = parts(row)
    assert len(context) == len(queried) == 24
    value_of = dict(zip(context[::2], context[1::2], strict=True))
    assert queried[1::2] == [value_of[query] for query in queried[::2]]
    assert row["labels"][:26] == [IGNORED] * 26
    assert row["labels"][26:] == [label for value in queried[1::2] for label in (IGNORED, value)] + [IGNORED]


def test_queries_come_in_any_order():
    firsts = set()
    for seed in range(100):
        question, _ = TASK.generate(5, np.random.default_rng(seed))
        firsts.add(question.index(question[10]))
    assert firsts == {0, 2, 4, 6, 8}
