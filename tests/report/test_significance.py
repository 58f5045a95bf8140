"""Significance of differences between encodings, and its summary."""

import math
import random

import pytest

from longfire.report.significance import adjusted_p_values, p_value, ranking, significance_summary
from tests.report.records import record_of


@pytest.mark.parametrize(
    ("ours", "theirs", "significant"),
    [
        ([1.0, 2.0, 3.0], [1.1, 2.1, 3.1], True),  # far less than between seeds, but equal for each seed
        ([1.0, 1.0, 1.0], [1.1, 1.12, 1.15], True),
        ([1.0, 1.0, 1.0], [1.1, 1.2, 1.3], False),  # t is 3.46: significant only one-sided
        ([1.0, 1.0, 1.0], [1.01, 1.01, 1.5], False),  # mostly due to one seed
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False),
        ([1.0, 1.0, 1.0], [1.1, 1.1, None], None),  # a seed is missing
        ([1.0, 1.0], [1.1, 1.1], None),
        ([1.0], [9.0], None),
    ],
)
def test_a_lead_over_one_other(ours, theirs, significant):
    ranked = ranking(record_of({"fire": ours, "alibi": theirs}), 64)
    assert ranked.best == "fire"
    found = {True: ranked.behind, False: ranked.level, None: ranked.untested}
    assert found == {one: ["alibi"] if one is significant else [] for one in found}


def test_every_other_encoding_is_tested():
    """The third is far behind in two of three seeds, but not significantly, although the second is."""
    record = record_of({"fire": [1.0, 1.0, 1.0], "alibi": [1.1, 1.1, 1.1], "t5": [0.9, 1.5, 1.5]})
    ranked = ranking(record, 64)
    assert (ranked.best, "t5" in ranked.level) == ("fire", True)
    assert ranking(record_of({"fire": [1.0, 1.0, 1.0]}), 64) is None


def test_summary_counts_pairs_and_names_encodings_level_with_the_best():
    a, b = [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]
    assert significance_summary(record_of({"a": a})) == ""
    assert significance_summary(record_of({"a": a, "b": b}), "x") == "1 of 1 pairwise differences are significant (x)."
    two = record_of({"a": a, "b": b}, lengths=(64, 128))
    two["runs"][0]["perplexity"]["rows"][1]["log_perplexity"] = 3.0
    assert significance_summary(two).startswith("1 of 2 ")
    assert significance_summary(two).endswith(" Not significant: b vs a at 128.")
    level = record_of({"a": a, "b": b, "c": a}, lengths=(64, 128))
    assert significance_summary(level).endswith(" Not significant: c vs a at every length.")
    assert "Not significant" not in significance_summary(record_of({"a": [1.0, 2.0, 1.0], "b": [2.0, 1.0, 2.0]}))
    many = dict.fromkeys("abcdefghij", a) | {"k": b}
    assert "9 encodings at 64, 9 encodings at 128" in significance_summary(record_of(many, (64, 128)))


def test_summary_says_what_cannot_be_tested():
    for seeds, words in ((1, "one seed"), (2, "two seeds")):
        assert words in significance_summary(record_of({"a": [1.0] * seeds, "b": [2.0] * seeds}))
    missing = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, None]}
    assert "no two encodings have every seed" in significance_summary(record_of(missing))
    three = significance_summary(record_of(missing | {"c": [3.0, 3.0, 3.0]}))
    assert three.startswith("1 of 1 ")
    assert three.endswith("a seed is missing: b.")


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(4.303, 2, 0.05), (2.776, 4, 0.05), (3.055, 12, 0.01), (3.646, 24, 0.00129), (5.841, 3, 0.01)],
)
def test_two_sided_p_values(t, degrees, p):
    """Samples with mean t/√n and variance 1 give the values in tables of Student's t."""
    by_seed = [t / math.sqrt(3)] * 3
    assert p_value(by_seed, (1.0, degrees)) == pytest.approx(p, rel=0.01)


def error_rate(encodings, seeds, spread=(0.01,), shift=0.0, draws=1500):
    """The share of draws of equal encodings in which any difference is called significant."""
    drawn, errors = random.Random(0), 0
    for _ in range(draws):
        shifts = [drawn.gauss(0, shift) for _ in range(seeds)]
        rows = {i: [s + drawn.gauss(0, spread[i % len(spread)]) for s in shifts] for i in range(encodings)}
        errors += min(adjusted_p_values(rows).values()) <= 0.05
    return errors / draws


def test_equal_encodings_differ_in_at_most_five_percent_of_lengths():
    """As `RULE` says, whether or not seeds shift all encodings. The bounds are 5 % plus two standard errors."""
    assert 0.03 < error_rate(2, 3) < 0.062
    for encodings, seeds, shift in ((5, 3, 0.05), (7, 3, 0.0), (7, 5, 0.05)):
        assert error_rate(encodings, seeds, shift=shift) < 0.05 + 0.012


def test_unequal_scatter_hardly_raises_the_error():
    """One encoding has 60 times the deviation; plain pooling would call it different at one length in six."""
    assert error_rate(7, 3, spread=[0.005] * 6 + [0.3]) < 0.09
    assert error_rate(7, 5, spread=[0.005] * 6 + [0.3]) < 0.05


def test_a_diverged_encoding_hides_no_difference():
    """Its scatter is not pooled with that of far better encodings."""
    good = {"a": [1.00, 1.01, 1.02], "b": [1.10, 1.12, 1.11], "c": [1.20, 1.22, 1.20]}
    wild = {"rope": [7.0, 8.0, 9.5]}
    assert significance_summary(record_of(good)).startswith("3 of 3")
    assert significance_summary(record_of(good | wild)).startswith("6 of 6")
