"""Multi-query associative recall (MQAR), Arora et al. (2023), Zoology, arXiv:2312.04927.

    k₁ v₁ k₂ v₂ … kₙ vₙ [SEP] q₁ a₁ q₂ a₂ … qₙ aₙ

Length n: n pairs of distinct keys and distinct values, 4n symbols in all. Every key is queried once, in uniformly
random order, and its value is the answer. Half of the 8,192 symbols are keys and half are values, as in the paper. The
paper also spreads queries among filler, more of them near their pair than far; here most of them reach far back.
"""

import numpy as np

from longfire.tasks.synthetic.task import Symbols, SyntheticTask

VOCABULARY = 8192
KEYS = tuple(f"k{number}" for number in range(VOCABULARY // 2))
VALUES = tuple(f"v{number}" for number in range(VOCABULARY // 2))


def generate(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Pairs and queries; the queries' values."""
    keys = [KEYS[k] for k in rng.choice(len(KEYS), n, replace=False).tolist()]
    values = [VALUES[k] for k in rng.choice(len(VALUES), n, replace=False).tolist()]
    order = rng.permutation(n).tolist()
    pairs = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
    return [*pairs, *(keys[k] for k in order)], [values[k] for k in order]


def solve(question: Symbols) -> Symbols:
    """Two thirds of the question are the pairs."""
    context = len(question) * 2 // 3
    value_of = dict(zip(question[:context:2], question[1:context:2], strict=True))
    return [value_of[query] for query in question[context:]]


MQAR = SyntheticTask(
    "mqar",
    KEYS + VALUES,
    generate,
    solve,
    num_symbols=lambda n: 4 * n,
    paper="Arora et al. (2023), arXiv:2312.04927",
    title="Associative recall (MQAR)",
    unit="key-value pairs",
    max_length=len(KEYS),
    interleaved=True,
)
