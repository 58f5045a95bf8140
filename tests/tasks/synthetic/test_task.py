import hashlib
import os
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from longfire.tasks.synthetic import BOS, EOS, IGNORED, PAD, SEP, SYNTHETIC, synthetic_task
from tests.tasks.synthetic.examples import TASKS, chi_square, generated, parts, some_lengths

ROWS_DIGEST = "34e20e60f25ffc9573e50222b5cb927b238fafb4394c913e2410cadfda96985d"
"""Of a few rows of every task. If it changes, every recorded result on synthetic tasks is of other rows."""
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@every_task
def test_the_solver_agrees_with_the_generator(task):
    for _, question, answer in generated(task):
        assert list(task.solve(question)) == answer
        assert set(question) | set(answer) <= set(task.symbols)


@every_task
def test_rows_and_their_labels(task):
    for length in some_lengths(task):
        question, answer = task.generate(length, np.random.default_rng(length))
        row = task.row(length, np.random.default_rng(length))
        ids, labels = row["input_ids"], row["labels"]
        assert len(ids) == len(labels) <= task.sequence_length(length)
        assert (ids[0], ids[-1], ids.count(SEP)) == (BOS, EOS, 1)
        assert max(ids) < task.vocab_size
        labelled = [label for label in labels if label != IGNORED]
        assert labelled == task.encode(answer) + [EOS] * (not task.interleaved)
        assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
        if not task.interleaved:
            assert parts(row) == (task.encode(question), task.encode(answer))
            assert labels[-len(labelled) :] == labelled


@every_task
def test_sequence_length_is_reached(task):
    """Or nearly: the rarest answers are long."""
    length = some_lengths(task)[8]
    longest = max(len(row["input_ids"]) for row in task.rows(300, [length], seed=0))
    assert task.sequence_length(length) - 1 <= longest <= task.sequence_length(length)


@every_task
def test_random_access(task):
    lengths = some_lengths(task)[:8]
    rows = task.rows(8, lengths, seed=3)
    forwards = list(rows)
    assert len(rows) == len(forwards) == 8
    again = task.rows(8, lengths, seed=3)
    assert [again[k] for k in reversed(range(8))] == forwards[::-1]
    assert rows[-1] == forwards[7]
    assert task.rows(100, lengths, seed=3)[5] == forwards[5]
    assert list(task.rows(8, lengths, seed=4)) != forwards
    assert list(task.rows(8, lengths, seed=3, split="test")) != forwards
    with pytest.raises(IndexError):
        _ = rows[8]


DRAW = """
import json
from longfire.tasks.synthetic import SYNTHETIC
tasks = [task for task in SYNTHETIC.values() if task.name != "passkey"]  # its text depends on the Python version
print(json.dumps([list(task.rows(4, range(task.min_length, 12, task.step), 7)) for task in tasks]))
"""


def test_another_process_draws_the_same_rows():
    drawn = [run(DRAW, {**os.environ, "PYTHONHASHSEED": seed}) for seed in "12"]
    assert drawn[0] == drawn[1]
    assert hashlib.sha256(drawn[0].encode()).hexdigest() == ROWS_DIGEST


def run(code, env=None):
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_lengths_are_drawn_uniformly():
    task = synthetic_task("copy")
    lengths = [(len(row["input_ids"]) - 3) // 2 for row in task.rows(2000, task.lengths(20), seed=0)]
    counts = Counter(lengths)
    assert sorted(counts) == list(range(1, 21))
    assert chi_square(list(counts.values())) < 2


def test_lengths_that_a_task_has():
    assert synthetic_task("modular-arithmetic").lengths(9) == range(1, 10, 2)
    assert synthetic_task("missing-duplicate").lengths(8) == range(2, 9, 2)
    for ask in (task_lengths, task_rows, task_row, task_sequence_length):
        with pytest.raises(ValueError, match=r"length 40 .* nearest lengths are 39 and 41"):
            ask("modular-arithmetic", 40)
        with pytest.raises(ValueError, match=r"nearest lengths are 6 and 8"):
            ask("missing-duplicate", 7)
        with pytest.raises(ValueError, match="at least 3, not 2"):
            ask("solve-equation", 2)
        with pytest.raises(ValueError, match="at most 101 digits per operand, not 102"):
            ask("addition-hints", 102)
        with pytest.raises(TypeError, match="whole number"):
            ask("copy", 2.5)


def task_lengths(name, length):
    synthetic_task(name).lengths(length)


def task_rows(name, length):
    synthetic_task(name).rows(1, [length], seed=0)


def task_row(name, length):
    synthetic_task(name).row(length, np.random.default_rng(0))


def task_sequence_length(name, length):
    synthetic_task(name).sequence_length(length)


def test_what_cannot_be_honoured_is_refused():
    task = synthetic_task("copy")
    with pytest.raises(ValueError, match="at least one length"):
        task.rows(1, [], seed=0)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        task.rows(1, [1], seed=-1)
    with pytest.raises(ValueError, match="Known: train, test"):
        task.rows(1, [1], seed=0, split="dev")
    with pytest.raises(ValueError, match="Did you mean 'addition-hints'"):
        synthetic_task("addition-hint")


def test_ids_and_text():
    task = synthetic_task("parity")
    assert (PAD, BOS, SEP, EOS) == (0, 1, 2, 3)
    assert task.encode("01") == [4, 5]
    assert task.vocab_size == 6
    assert task.decode([1, 5, 4, 2, 5, 3, 0, 0]) == "[BOS]10[SEP]1[EOS]"
    assert task.decode([-100, -100, 5, 3]) == "1[EOS]"
    assert synthetic_task("copy").decode([1, 4, 256, 2, 3]) == "[BOS] 0 252 [SEP] [EOS]"


def test_names_and_papers():
    assert all(name == task.name and "arXiv:" in task.paper and task.title for name, task in SYNTHETIC.items())
    assert len({task.title for task in SYNTHETIC.values()}) == len(SYNTHETIC) == 23
    assert synthetic_task("odds-first").title == "Odds first"


def test_import_is_light():
    code = "import sys, longfire.tasks.synthetic; print(*sys.modules)"
    assert not {"torch", "transformers"} & set(run(code).split())


@pytest.mark.parametrize(("name", "length"), [("copy", 160), ("addition-hints", 40), ("solve-equation", 160)])
def test_a_batch_is_drawn_at_once(name, length):
    rows = synthetic_task(name).rows(256, [length], seed=0)
    took = []
    for _ in range(3):  # the best of three, with room for a busy machine
        start = time.perf_counter()
        list(rows)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.5
