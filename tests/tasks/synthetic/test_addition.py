import numpy as np
import pytest

from longfire.tasks.synthetic import synthetic_task
from longfire.tasks.synthetic.addition import HINTS, carry


@pytest.mark.parametrize("length", [1, 2, 7, 100, 101, 300])
@pytest.mark.parametrize("name", ["addition", "addition-reversed"])
def test_sums_of_python_integers(name, length):
    task = synthetic_task(name)
    order = -1 if task.name == "addition-reversed" else 1
    rng = np.random.default_rng(length)
    for _ in range(50):
        question, answer = task.generate(length, rng)
        a, b = "".join(question).split("+")
        assert len(a) == len(b) == length
        assert str(int(a[::order])) == a[::order]  # no leading zeros
        assert str(int(a[::order]) + int(b[::order])) == "".join(answer)[::order]


def test_answers_with_and_without_a_carry():
    for name in ("addition", "addition-reversed", "addition-hints"):
        task = synthetic_task(name)
        lengths = {len(task.generate(50, np.random.default_rng(seed))[1]) for seed in range(30)}
        assert lengths == ({100, 102} if task.name == "addition-hints" else {50, 51})


@pytest.mark.parametrize("length", [1, 3, 40, 100, 101])
def test_index_hints(length):
    task = synthetic_task("addition-hints")
    starts = set()
    for seed in range(60):
        question, answer = task.generate(length, np.random.default_rng(seed))
        sign = question.index("+")
        a, b = question[:sign], question[sign + 1 :]
        start = HINTS.index(a[0])
        starts.add(start)
        assert a[::2] == b[::2] == list(HINTS[start : start + length])
        assert answer[::2] == list(HINTS[start : start + len(answer) // 2])
        digits = [int("".join(number[1::2])[::-1]) for number in (a, b, answer)]
        assert digits[0] + digits[1] == digits[2]
        assert len(answer) // 2 == len(str(digits[2]))
    last = len(HINTS) - length - 1
    assert starts <= set(range(last + 1))
    assert len(starts) == 1 if last == 0 else len(starts) > min(last, 20)


def test_carry():
    assert carry([9, 9], 10) == [9, 9]
    assert carry([18, 9], 10) == [8, 0, 1]
    assert carry([0, 0], 10) == [0]
    assert carry([3, 5, 7], 2) == [1, 0, 0, 1, 0, 1]  # 3 + 10 + 28
