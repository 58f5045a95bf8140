"""Timing and memory."""

import time

import pytest
import torch

from longfire.bench.timing import added_memory, timed


def test_time_is_measured():
    measured = timed(lambda: time.sleep(0.02), 0.1, "cpu")
    assert 20 <= measured["fastest"] <= measured["ms"] <= measured["slowest"]
    assert measured["fastest"] < 200
    assert 3 <= measured["calls"] <= 5
    assert timed(lambda: time.sleep(0.02), 0.001, "cpu")["calls"] == 3


def allocate(device):
    first = torch.ones(25_000_000, device=device)  # 100 MB
    return (first + 1).sum()  # 100 MB more


def test_peak_memory_is_measured():
    if not (added := added_memory(lambda: allocate("cpu"), "cpu")):
        pytest.skip("this system does not report a process's peak memory")
    assert added["peak_mb"] == pytest.approx(200, rel=0.1)


@pytest.mark.gpu
def test_time_and_memory_of_a_gpu():
    assert added_memory(lambda: allocate("cuda"), "cuda")["peak_mb"] == pytest.approx(200, rel=0.02)
    few, many = (timed(lambda size=size: torch.ones(size, device="cuda"), 0.01, "cuda") for size in (2**20, 2**29))
    assert few["calls"] >= 10
    assert many["ms"] > 10 * few["fastest"]
