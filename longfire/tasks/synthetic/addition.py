"""Addition of two numbers, Zhou et al. (2024), arXiv:2402.09371: plain, reversed, and reversed with index hints.

    addition            42+39 [SEP] 81
    addition-reversed   24+93 [SEP] 18         least significant digit first
    addition-hints      a2b4+a9b3 [SEP] a1b8   a, b: two consecutive hints out of 102, from a random start

Digits of equal significance have the same hint, and the model writes the answer's hints too. Length n: both operands
have exactly n digits; training on `task.lengths(n)` draws n uniformly, as the paper does. Nothing is padded with zeros:
the answer has n digits, or n + 1 after a carry, which takes the next hint. 102 hints serve up to 101 digits.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from longfire.tasks.synthetic.task import Symbols, SyntheticTask

PAPER = "Zhou et al. (2024), arXiv:2402.09371"
DIGITS = tuple("0123456789")
HINTS = tuple(f"#{number}" for number in range(102))


def carry(columns: Sequence[int], base: int) -> list[int]:
    """Digits of Σ columns[k] · base^k, least significant first, without leading zeros."""
    digits, rest = [], 0
    for column in columns:
        rest, digit = divmod(rest + column, base)
        digits.append(digit)
    while rest:
        rest, digit = divmod(rest, base)
        digits.append(digit)
    while len(digits) > 1 and digits[-1] == 0:
        digits.pop()
    return digits


def draw_sum(n: int, rng: np.random.Generator) -> list[list[str]]:
    """Two numbers of n digits and their sum, least significant digit first."""
    operands = rng.integers(10, size=(2, n))
    if n > 1:
        operands[:, -1] = rng.integers(1, 10, size=2)
    return [list(map(str, number)) for number in (*operands.tolist(), carry(operands.sum(0).tolist(), 10))]


def plain(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Most significant digit first."""
    a, b, total = draw_sum(n, rng)
    return [*reversed(a), "+", *reversed(b)], total[::-1]


def digits_reversed(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Least significant digit first."""
    a, b, total = draw_sum(n, rng)
    return [*a, "+", *b], total


def hinted(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Least significant digit first, each after its hint."""
    start = int(rng.integers(len(HINTS) - n))
    a, b, total = (
        [symbol for pair in zip(HINTS[start:], number, strict=False) for symbol in pair] for number in draw_sum(n, rng)
    )
    return [*a, "+", *b], total


def solve_plain(question: Symbols) -> Symbols:
    """With Python's integers."""
    return list(str(sum(map(int, "".join(question).split("+")))))


def solve_reversed(question: Symbols) -> Symbols:
    """As plain, read backwards."""
    return solve_plain(question[::-1])[::-1]


def solve_hinted(question: Symbols) -> Symbols:
    """Without the hints, then with the same ones again."""
    start = HINTS.index(question[0])
    total = solve_reversed([symbol for symbol in question if symbol not in HINTS])
    return [symbol for pair in zip(HINTS[start:], total, strict=False) for symbol in pair]


def operands_and_sum(n: int) -> int:
    """Digits of a, b and their sum with a carry, and the sign."""
    return 3 * n + 2


_addition = partial(SyntheticTask, paper=PAPER, unit="digits per operand")
ADDITION = (
    _addition("addition", (*DIGITS, "+"), plain, solve_plain, operands_and_sum),
    _addition("addition-reversed", (*DIGITS, "+"), digits_reversed, solve_reversed, operands_and_sum),
    _addition(
        "addition-hints",
        (*DIGITS, "+", *HINTS),
        hinted,
        solve_hinted,
        lambda n: 2 * operands_and_sum(n) - 1,  # the sign has no hint
        title="Addition with index hints",
        max_length=len(HINTS) - 1,
    ),
)
