"""The measuring of time and memory."""

import time

import pytest
import torch

from longfire.evaluation import speed
from longfire.evaluation.provenance import provenance
from longfire.evaluation.speed import Setting, measure


def test_time_is_measured():
    measured = speed._measure_one(lambda: time.sleep(0.02), seconds=0.1)
    assert 20 <= measured["fastest"] <= measured["ms"] <= measured["slowest"]
    assert measured["fastest"] < 200
    assert 3 <= measured["calls"] <= 5
    assert speed._measure_one(lambda: time.sleep(0.02), seconds=0.001)["calls"] == 3


def test_peak_memory_is_measured():
    def call():
        first = torch.ones(25_000_000)  # 100 MB
        return (first + 1).sum()  # and 100 more

    before = speed.reset_peak_memory()
    if before is None:
        pytest.skip("this system does not tell a process's peak memory")
    assert speed._measure_one(call, seconds=0.01)["peak_mb"] == pytest.approx(200, rel=0.1)


def test_what_does_not_fit_is_not_run(monkeypatch):
    monkeypatch.setattr(speed, "available_memory", lambda: 1e6)
    rows = measure(Setting("attention", (8, 1024), heads=2, seconds=0.001, encodings=("fire",)))["rows"]
    assert ["not run" in row for row in rows] == [False, False, True, True]
    assert "needs about" in rows[-1]["not run"]


def test_bad_subject():
    with pytest.raises(ValueError, match="Did you mean 'attention'"):
        Setting("atention")


def test_provenance():
    record = provenance()
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["cores"] >= 1
    assert set(record) == {"date", "commit", "hardware", "versions"}
