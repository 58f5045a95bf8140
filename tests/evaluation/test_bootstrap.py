"""Confidence intervals cover the truth as often as they claim."""

import numpy as np
import pytest

from longfire.evaluation.bootstrap import mean_interval, t_quantile
from tests.evaluation.foreign_models import evaluate, split_of
from tests.model.models import small_model


@pytest.mark.parametrize("documents", [5, 40])
def test_intervals_over_documents_cover_the_mean(documents):
    """Losses are correlated within a document."""
    random = np.random.default_rng(0)
    held, widths, runs, each = 0, [], 400, 8
    for run in range(runs):
        levels = 3 + 0.5 * random.standard_normal(documents)
        sums = (levels[:, None] + 0.1 * random.standard_normal((documents, each))).sum(1)
        low, high = mean_interval(sums, np.full(documents, float(each)), seed=run)
        held += low <= 3 <= high
        widths.append(high - low)
    assert 0.90 <= held / runs <= 0.985
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 0.5 / documents**0.5, rel=0.6 if documents == 5 else 0.1)


@pytest.mark.parametrize("units", [2, 3, 5, 8, 12])
def test_intervals_of_few_units_cover_the_mean(units):
    random = np.random.default_rng(units)
    covered = 0
    for trial in range(400):
        values = random.normal(3.0, 0.5, size=units)
        low, high = mean_interval(values, np.ones(units), seed=trial)
        covered += low <= 3.0 <= high
    assert 0.91 < covered / 400 <= 0.99


def test_units_weigh_by_their_tokens():
    sums, counts = np.array([3.0 * 1000, 9.0 * 1]), np.array([1000.0, 1.0])
    low, high = mean_interval(np.tile(sums, 50), np.tile(counts, 50))
    assert low <= sums.sum() / counts.sum() <= high < 3.1


def test_one_unit_has_no_interval():
    assert mean_interval(np.ones(1), np.ones(1)) is None
    alone = evaluate(small_model(), split_of(40), lengths=(16, 40))["rows"]
    assert alone[0]["interval_over"] == "sequences"
    assert "interval" not in alone[1]
    assert evaluate(small_model(), split_of(40, 40), lengths=(16,))["rows"][0]["interval_over"] == "documents"


@pytest.mark.parametrize(("freedom", "t"), [(3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)])
def test_students_t(freedom, t):
    assert t_quantile(1.959964, freedom) == pytest.approx(t, rel=5e-3)
