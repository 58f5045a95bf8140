"""Passkey in real text, Mohtashami & Jaggi (2023), arXiv:2305.16300: find a five-digit key hidden in a long document.

    …text… The passkey is 31415. Remember it. …text… The passkey is [SEP] 31415

Length n: n bytes of text, around a key at a uniformly random depth. Symbols are bytes. The paper repeats a few
sentences as filler; here every row has another window of real text. Test rows take theirs from the last tenth of the
text, which training rows never see.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, partial

import numpy as np

from longfire.tasks.synthetic.task import SPLITS, Symbols, SyntheticTask

BYTES = tuple(map(chr, range(256)))
"""Bytes as Latin-1."""
CUE = "\nThe passkey is "
REMINDER = ". Remember it.\n"
KEY_DIGITS = 5


def passkey_task(text: bytes | Iterable[bytes] | None = None) -> SyntheticTask:
    """The task on a text, or on documents (default: the standard library's sources, so rows depend on its version)."""
    load: Callable[[], bytes] = standard_library
    if text is not None:
        load = partial(bytes, check_text(text if isinstance(text, bytes) else b"\n\n".join(text)))
    train, test = (partial(generate, load, split) for split in SPLITS)
    return SyntheticTask(
        "passkey",
        BYTES,
        generate=train,
        solve=solve,
        num_symbols=lambda n: n + 2 * (len(CUE) + KEY_DIGITS) + len(REMINDER),
        paper="Mohtashami & Jaggi (2023), arXiv:2305.16300",
        unit="bytes of text",
        generate_test=test,
    )


@cache
def standard_library() -> bytes:
    """The text that needs no download, read on first use."""
    from longfire.data.embedded import StandardLibrary
    from longfire.data.source import ReadLog

    return check_text(b"\n\n".join(StandardLibrary().documents(ReadLog())))


def check_text(text: bytes) -> bytes:
    """Refuse a text with a passkey of its own."""
    if CUE.strip().encode() in text:
        raise ValueError(f"the text contains {CUE.strip()!r} itself, so the answer would be ambiguous. Leave that out.")
    return text


def generate(load: Callable[[], bytes], split: str, n: int, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """A window of text with the key inside, and the key."""
    text = load()
    cut = len(text) * 9 // 10
    first, last = (0, cut) if split == "train" else (cut, len(text))
    if last - first < n:
        raise ValueError(f"the {split} text of passkey has {last - first} bytes, too few for length {n}.")
    start = int(rng.integers(first, last - n + 1))
    window = text[start : start + n].decode("latin-1")
    depth = int(rng.integers(n + 1))
    key = str(rng.integers(10 ** (KEY_DIGITS - 1), 10**KEY_DIGITS))
    while key in window:
        key = str(rng.integers(10 ** (KEY_DIGITS - 1), 10**KEY_DIGITS))
    return window[:depth] + CUE + key + REMINDER + window[depth:] + CUE, key


def solve(question: Symbols) -> Symbols:
    """The digits between the cue and the reminder."""
    (key,) = re.findall(re.escape(CUE) + r"(\d+)" + re.escape(REMINDER), "".join(question))
    return list(key)


PASSKEY = passkey_task()
