from collections import Counter

import numpy as np
import pytest

from longfire.tasks.synthetic import CHOMSKY, synthetic_task
from tests.tasks.synthetic.examples import chi_square, generated

KNOWN = """
even-pairs: 001110 0, 0101001 1, 1 0
modular-arithmetic: 1+2*3 2, 1-1-1 4, 0*1+4*3-2 0, 2-3*4 0, 3 3
parity: 1010100 1, 01111 0
cycle-navigation: ><.<< 3, >>>< 2
reverse-string: 110 011
modular-arithmetic-brackets: 4 4, -3 2, (-1) 4, ((2*4)--1) 4, (-3*(2+2)) 3
solve-equation: x=3 3, (2-x)=4 3, (-x+(1-3))=0 3
duplicate-string: 101 101101
missing-duplicate: 01100_10 1, 1_10 0
odds-first: 00110101 01000111, 110 101
binary-addition: 001+01101 01011, 1001+000001 100101, 1+1 01
binary-multiplication: 001*01101 0001101, 1001*000001 000001001
compute-sqrt: 100101 110, 111 10, 0000001 0001
bucket-sort: 10204112 00111224
"""
EXAMPLES = [
    (name, *example.split())
    for name, examples in (line.split(": ") for line in KNOWN.strip().splitlines())
    for example in examples.split(", ")
]


@pytest.mark.parametrize(("name", "question", "answer"), EXAMPLES)
def test_known_answers(name, question, answer):
    assert "".join(synthetic_task(name).solve(question)) == answer


def test_known_stacks():
    solve = synthetic_task("stack-manipulation").solve
    assert solve([*"0110", "PUSH1", "POP", "POP"]) == list("110")
    assert solve([*"110", "POP", "POP", "POP", "POP"]) == []
    assert solve(["1", "POP", "POP", "PUSH0"]) == ["0"]


def test_there_are_fifteen():
    assert len({task.name for task in CHOMSKY}) == 15
    assert {example[0] for example in EXAMPLES} | {"stack-manipulation"} == {task.name for task in CHOMSKY}


@pytest.mark.parametrize("task", CHOMSKY, ids=lambda task: task.name)
def test_questions_have_their_length_and_all_symbols(task):
    seen = set()
    for length, question, answer in generated(task):
        assert len(question) == length
        seen |= {*question, *answer}
    assert seen == set(task.symbols)


@pytest.mark.parametrize("name", ["parity", "even-pairs", "missing-duplicate", "cycle-navigation", "solve-equation"])
def test_answers_are_balanced(name):
    task, rng = synthetic_task(name), np.random.default_rng(0)
    counts = Counter(task.generate(40, rng)[1][0] for _ in range(2000))
    assert len(counts) == (2 if name in ("parity", "even-pairs", "missing-duplicate") else 5)
    assert chi_square(list(counts.values())) < 5
