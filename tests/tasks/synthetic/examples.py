"""Tasks and rows for the tests of this folder."""

import numpy as np

from longfire.tasks.synthetic import SEP, SYNTHETIC, passkey_task

TEXT = b"".join(b"Line %d of a text without any keys; it goes on.\n" % number for number in range(2000))
TASKS = {**SYNTHETIC, "passkey": passkey_task(TEXT)}


def some_lengths(task):
    """Short ones, a few of training length, and a long one."""
    longest = min(task.max_length or 303, 303)
    known = range(task.min_length, longest + 1, task.step)
    return sorted({*known[:10], known[len(known) // 5], known[-1]})


def generated(task, count=20, seed=0):
    """(length, question, answer) at several lengths."""
    for length in some_lengths(task):
        rng = np.random.default_rng([seed, length])
        for _ in range(count):
            question, answer = task.generate(length, rng)
            yield length, list(question), list(answer)


def parts(row):
    """What is between BOS, SEP and EOS."""
    ids = row["input_ids"]
    at = ids.index(SEP)
    return ids[1:at], ids[at + 1 : -1]


def chi_square(counts):
    """Against a uniform distribution, over its degrees of freedom: about 1."""
    counts = np.asarray(counts)
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1)
