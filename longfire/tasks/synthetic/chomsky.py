"""The fifteen tasks of Delétang et al. (2023), arXiv:2207.02098, and Ruoss et al. (2023), arXiv:2305.16843.

Definitions and alphabets are the paper's: binary strings, arithmetic modulo 5. Length n counts the symbols of the
question. Three things differ. The answer follows the question, token by token, and EOS ends it where the paper pads.
Lengths that the paper adjusts are refused: even ones of modular arithmetic, odd ones of missing duplicate, and those
too short for a task. The unknown of an equation is any of its digits with equal probability.
"""

import math
import re
from functools import partial
from itertools import zip_longest

import numpy as np

from longfire.tasks.synthetic.addition import carry
from longfire.tasks.synthetic.strings import DELETANG, reverse_string, sort_string, string_task, twice
from longfire.tasks.synthetic.task import Generate, Symbols, SyntheticTask

BITS = ("0", "1")
MODULUS = 5
RESIDUES = tuple(map(str, range(MODULUS)))
MOVES = ("<", ".", ">")
POP, PUSH = "POP", ("PUSH0", "PUSH1")


def draw(symbols: tuple[str, ...], n: int, rng: np.random.Generator) -> list[str]:
    """n symbols, uniformly."""
    return [symbols[k] for k in rng.integers(len(symbols), size=n).tolist()]


# Regular.


def solve_even_pairs(question: Symbols) -> Symbols:
    """01 and 10 alternate, so their number is even if the string ends as it starts."""
    return "0" if question[0] == question[-1] else "1"


def solve_parity(question: Symbols) -> Symbols:
    """Whether the number of ones is odd."""
    return str(list(question).count("1") % 2)


def solve_cycle_navigation(question: Symbols) -> Symbols:
    """Steps to the right less steps to the left."""
    moves = list(question)
    return str((moves.count(">") - moves.count("<")) % MODULUS)


def modular_arithmetic(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Residues and operators in turn; products before sums."""
    question = [""] * n
    question[::2] = draw(RESIDUES, n // 2 + 1, rng)
    question[1::2] = draw(("+", "-", "*"), n // 2, rng)
    total, term = 0, int(question[0])
    for operator, residue in zip(question[1::2], map(int, question[2::2]), strict=True):
        if operator == "*":
            term = term * residue % MODULUS
        else:
            total, term = total + term, residue if operator == "+" else -residue
    return question, str((total + term) % MODULUS)


def solve_modular_arithmetic(question: Symbols) -> Symbols:
    """Signed terms, each a product."""
    terms = re.findall(r"[+-]?[\d*]+", "".join(question))
    values = [math.prod(map(int, re.findall(r"\d", term))) * (-1 if term[0] == "-" else 1) for term in terms]
    return str(sum(values) % MODULUS)


# Deterministic context-free.


def stack_manipulation(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """A stack, bottom first, and what to do with it. The answer is the resulting stack, top first."""
    size = int(rng.integers(1, n))
    bottom, actions = draw(BITS, size, rng), draw((POP, *PUSH), n - size, rng)
    stack = list(bottom)
    for action in actions:
        if action != POP:
            stack.append(BITS[PUSH.index(action)])
        elif stack:
            stack.pop()
    return [*bottom, *actions], stack[::-1]


def solve_stack_manipulation(question: Symbols) -> Symbols:
    """From the last symbol to the first: what is pushed stays unless it is still to be popped."""
    stack, pops = [], 0
    for symbol in reversed(question):
        if symbol == POP:
            pops += 1
        elif pops:
            pops -= 1
        else:
            stack.append(symbol[-1])
    return stack


def expression(n: int, rng: np.random.Generator, operators: str) -> tuple[str, int]:
    """An expression of n symbols and its value: d, −d, (d), (−d), or (left operator right)."""
    draws = iter(rng.random(n).tolist())  # one for a digit, two for a bracket: never more than symbols

    def expand(n: int) -> tuple[str, int]:
        if n < 5:
            digit = int(next(draws) * MODULUS)
            return (f"{digit}", f"-{digit}", f"({digit})", f"(-{digit})")[n - 1], -digit if n in (2, 4) else digit
        size = 1 + int(next(draws) * (n - 4))
        operator = operators[int(next(draws) * len(operators))]
        (left, a), (right, b) = expand(size), expand(n - 3 - size)
        return f"({left}{operator}{right})", {"+": a + b, "-": a - b, "*": a * b}[operator] % MODULUS

    text, value = expand(n)
    return text, value % MODULUS


def brackets(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """An expression; its value."""
    text, value = expression(n, rng, "+-*")
    return text, str(value)


def equation(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """An expression with x for one of its digits, = and its value. Without products x is unique."""
    text, value = expression(n - 2, rng, "+-")
    places = [place for place, symbol in enumerate(text) if symbol in RESIDUES]
    x = places[rng.integers(len(places))]
    return f"{text[:x]}x{text[x + 1 :]}={value}", text[x]


def solve_brackets(question: Symbols) -> Symbols:
    """Innermost brackets first."""

    def value(found: re.Match[str]) -> str:
        a, operator, b = int(found[1]), found[2], int(found[3] or 0)
        return str((a * b if operator == "*" else a - b if operator == "-" else a + b) % MODULUS)

    text, count = "".join(question), 1
    while count:
        text, count = re.subn(r"\((-?\d)([+*-])?(-?\d)?\)", value, text)
    return str(int(text) % MODULUS)


def solve_equation(question: Symbols) -> Symbols:
    """By trying all residues."""
    left, right = "".join(question).split("=")
    return next(x for x in RESIDUES if solve_brackets(left.replace("x", x)) == right)


# Context-sensitive.


def solve_duplicate_string(question: Symbols) -> Symbols:
    """The question, twice."""
    return [*question, *question]


def missing_duplicate(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """A string twice, with _ for one symbol, which is the answer."""
    question = 2 * draw(BITS, n // 2, rng)
    place = int(rng.integers(n))
    answer, question[place] = question[place], "_"
    return question, answer


def solve_missing_duplicate(question: Symbols) -> Symbols:
    """Half a string away."""
    return question[list(question).index("_") - len(question) // 2]


def solve_odds_first(question: Symbols) -> Symbols:
    """First, third, fifth, …, then second, fourth, sixth, …"""
    return [question[place] for place in sorted(range(len(question)), key=lambda place: place % 2)]


def binary_operation(sign: str) -> Generate:
    """Two positive binary numbers with a sign in between, n symbols; their sum or product. Least significant first."""

    def generate(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
        size = int(rng.integers(1, n - 1))
        operands = []
        for bits in (size, n - 1 - size):
            operand = ""
            while "1" not in operand:
                operand = "".join(draw(BITS, bits, rng))
            operands.append(operand)
        a, b = (int(operand[::-1], 2) for operand in operands)
        return sign.join(operands), f"{a + b if sign == '+' else a * b:b}"[::-1]

    return generate


def solve_binary_addition(question: Symbols) -> Symbols:
    """Column by column."""
    a, b = "".join(question).split("+")
    columns = [int(one) + int(other) for one, other in zip_longest(a, b, fillvalue="0")]
    return list(map(str, carry(columns, 2)))


def solve_binary_product(question: Symbols) -> Symbols:
    """Column by column."""
    a, b = (list(map(int, operand)) for operand in "".join(question).split("*"))
    return list(map(str, carry(np.convolve(a, b).tolist(), 2)))


def square_root(n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """A positive number of n bits, most significant first; ⌊√·⌋ in half as many."""
    question = ""
    while "1" not in question:
        question = "".join(draw(BITS, n, rng))
    return question, f"{math.isqrt(int(question, 2)):0{(n + 1) // 2}b}"


def solve_square_root(question: Symbols) -> Symbols:
    """The largest root whose square fits, bit by bit."""
    number, root = int("".join(question), 2), 0
    bits = (len(question) + 1) // 2
    for bit in reversed(range(bits)):
        if (root + 2**bit) ** 2 <= number:
            root += 2**bit
    return f"{root:0{bits}b}"


def one_symbol(n: int) -> int:
    """Symbols in a question and an answer of one symbol."""
    return n + 1


def one_shorter(n: int) -> int:
    """Symbols in a question and an answer that is shorter than it."""
    return 2 * n - 1


_task = partial(SyntheticTask, paper=DELETANG)
_string = partial(string_task, paper=DELETANG)

REGULAR = (
    _string("even-pairs", BITS, lambda x: (x[1:] != x[:-1]).sum(keepdims=True) % 2, solve_even_pairs, one_symbol),
    _task("modular-arithmetic", (*RESIDUES, *"+-*"), modular_arithmetic, solve_modular_arithmetic, one_symbol, step=2),
    _string("parity", BITS, lambda x: x.sum(keepdims=True) % 2, solve_parity, one_symbol),
    _string(
        "cycle-navigation",
        (*MOVES, *RESIDUES),
        lambda x: len(MOVES) + (x - 1).sum(keepdims=True) % MODULUS,
        solve_cycle_navigation,
        one_symbol,
        alphabet=len(MOVES),
    ),
)
CONTEXT_FREE = (
    _task("stack-manipulation", (*BITS, POP, *PUSH), stack_manipulation, solve_stack_manipulation, twice, min_length=2),
    _string("reverse-string", BITS, lambda x: x[::-1], reverse_string, twice),
    _task("modular-arithmetic-brackets", (*RESIDUES, *"+-*()"), brackets, solve_brackets, one_symbol),
    _task("solve-equation", (*RESIDUES, *"+-()x="), equation, solve_equation, one_symbol, min_length=3),
)
CONTEXT_SENSITIVE = (
    _string("duplicate-string", BITS, lambda x: np.tile(x, 2), solve_duplicate_string, lambda n: 3 * n),
    _task(
        "missing-duplicate",
        (*BITS, "_"),
        missing_duplicate,
        solve_missing_duplicate,
        one_symbol,
        min_length=2,
        step=2,
    ),
    _string("odds-first", BITS, lambda x: np.concatenate([x[::2], x[1::2]]), solve_odds_first, twice),
    _task("binary-addition", (*BITS, "+"), binary_operation("+"), solve_binary_addition, one_shorter, min_length=3),
    _task(
        "binary-multiplication", (*BITS, "*"), binary_operation("*"), solve_binary_product, one_shorter, min_length=3
    ),
    _task("compute-sqrt", BITS, square_root, solve_square_root, lambda n: n + (n + 1) // 2),
    _string("bucket-sort", RESIDUES, np.sort, partial(sort_string, RESIDUES), twice),
)
CHOMSKY = (*REGULAR, *CONTEXT_FREE, *CONTEXT_SENSITIVE)
