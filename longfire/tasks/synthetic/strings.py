"""Copy (Jelassi et al., 2024, arXiv:2402.01032), reverse (Delétang et al., 2023) and sort (Zhou et al., 2023).

The alphabet is large, 253 symbols, so that matching content finds the next symbol in most places; Jelassi et al. have
26 letters, Delétang et al. two symbols. Sort (arXiv:2310.16028) takes distinct symbols: the next one is the smallest
above the last, whatever the length. With repetitions it is bucket sort, in `chomsky.py`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from longfire.tasks.synthetic.task import Solve, Symbols, SyntheticTask

NUMBERS = tuple(map(str, range(253)))
JELASSI = "Jelassi et al. (2024), arXiv:2402.01032"
ZHOU = "Zhou et al. (2023), arXiv:2310.16028"
DELETANG = "Delétang et al. (2023), arXiv:2207.02098"


def copy_string(question: Symbols) -> Symbols:
    """The question itself."""
    return list(question)


def reverse_string(question: Symbols) -> Symbols:
    """From last to first."""
    return list(reversed(question))


def sort_string(symbols: tuple[str, ...], question: Symbols) -> Symbols:
    """By counting each symbol, in the order of the alphabet."""
    present = list(question)
    return [symbol for symbol in symbols for _ in range(present.count(symbol))]


def twice(n: int) -> int:
    """Symbols in a question and an answer of the same length."""
    return 2 * n


def string_task(
    name: str,
    symbols: tuple[str, ...],
    transform: Callable[[np.ndarray], np.ndarray],
    solve: Solve,
    num_symbols: Callable[[int], int],
    paper: str,
    alphabet: int | None = None,
    distinct: bool = False,
) -> SyntheticTask:
    """A task on n random symbols, the first `alphabet` ones or all; `transform` maps their numbers to the answer's."""
    size = alphabet or len(symbols)

    def generate(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
        drawn = rng.choice(size, n, replace=False) if distinct else rng.integers(size, size=n)
        return [symbols[k] for k in drawn.tolist()], [symbols[k] for k in transform(drawn).tolist()]

    longest = size if distinct else None
    return SyntheticTask(name, symbols, generate, solve, num_symbols, paper, max_length=longest)


STRINGS = (
    string_task("copy", NUMBERS, lambda x: x, copy_string, twice, JELASSI),
    string_task("reverse", NUMBERS, lambda x: x[::-1], reverse_string, twice, DELETANG),
    string_task("sort", NUMBERS, np.sort, partial(sort_string, NUMBERS), twice, ZHOU, distinct=True),
)
