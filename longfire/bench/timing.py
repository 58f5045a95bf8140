"""Measure time and memory on the CPU and on a CUDA GPU."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

Call = Callable[[], object]

L2_FLUSH = 256 << 20
"""Bytes written between calls on a GPU, more than its L2 cache, so that every call starts with a cold cache."""


def timed(call: Call, seconds: float, device: str, replay: bool = False) -> dict[str, float]:
    """Median, fastest and slowest of many calls in milliseconds. The caller warms up.

    With `replay`, a GPU replays a CUDA graph of the call: its times exclude Python's launch overhead, which a compiled
    model does not have either. `eager_ms` is the median including the overhead.
    """
    times = _cuda_times(call, seconds) if device == "cuda" else _cpu_times(call, seconds)
    eager = {}
    if replay and device == "cuda":
        eager = {"eager_ms": round(1e3 * statistics.median(times), 3)}
        times = _cuda_times(_graph_of(call).replay, seconds)
    ms = [round(1e3 * found, 3) for found in (statistics.median(times), min(times), max(times))]
    return {"ms": ms[0], "fastest": ms[1], "slowest": ms[2], "calls": len(times), **eager}


def _graph_of(call: Call) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def _cpu_times(call: Call, seconds: float) -> list[float]:
    """Seconds per call, of 3 to 100 calls."""
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _cuda_times(call: Call, seconds: float) -> list[float]:
    """Seconds per call, of 10 to 1000 calls, by the GPU's clock; of 3 if these take `seconds`.

    All calls are queued before waiting, as in training: CPU time counts only where it is the bottleneck.
    """
    scratch = torch.empty(L2_FLUSH, dtype=torch.uint8, device="cuda")

    def queue(calls: int) -> list[float]:
        events = []
        for _ in range(calls):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            scratch.zero_()
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    first = queue(3)
    if sum(first) >= seconds:
        return first
    return queue(min(max(10, int(seconds / statistics.median(first))), 1000))


def added_memory(call: Call, device: str) -> dict[str, float]:
    """`peak_mb`: peak memory of a call beyond that in use before; empty where the system does not report it.

    A GPU is warmed up first, so that compiling and tuning do not count; on the CPU, this is the warm-up.
    """
    if device == "cuda":
        call()
        release_memory(device)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before: int | None = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        peak: int | None = torch.cuda.max_memory_allocated()
    else:
        release_memory(device)
        before = _reset_cpu_peak()
        call()
        peak = _proc("/proc/self/status", "VmHWM")
    return {} if before is None or peak is None else {"peak_mb": round((peak - before) / 1e6, 1)}


def _reset_cpu_peak() -> int | None:
    """Reset the peak and return the bytes in use; None where the system does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _proc("/proc/self/status", "VmRSS")


def release_memory(device: str) -> None:
    """Return cached memory to the system: it would hide what a call allocates, or not be available to it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    elif trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def memory_shortage(need: float) -> str | None:
    """Why this many bytes do not fit in the CPU's memory; None if they do."""
    free = _proc("/proc/meminfo", "MemAvailable") or float("inf")
    return f"needs about {need / 1e9:.0f} GB, {free / 1e9:.0f} GB free" if need > 0.9 * free else None


def total_memory(device: str) -> float:
    """The device's memory in bytes; infinite where the system does not report it."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return _proc("/proc/meminfo", "MemTotal") or float("inf")


def _proc(path: str, key: str) -> int | None:
    """A number of bytes from a file in /proc; None if not reported."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)
