"""Clocks and memory, on the CPU and on a CUDA GPU."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

Call = Callable[[], object]

L2_FLUSH = 256 << 20
"""Bytes written between two calls on a GPU, more than its L2 cache: a call finds nothing there of the one before."""


def timed(call: Call, seconds: float, device: str, replay: bool = False) -> dict[str, float]:
    """The median, the fastest and the slowest of many calls in milliseconds. The caller has warmed up.

    With `replay`, on a GPU, of a CUDA graph of the call: what the GPU takes, without the time that Python takes to
    launch its kernels, which a compiled model does not spend either. `eager_ms` is the median with it.
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
    """Of at least 3 calls and at most 100, in seconds."""
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _cuda_times(call: Call, seconds: float) -> list[float]:
    """Of at least 10 calls and at most 1000, in seconds by the GPU's clock.

    All are queued before any is waited for, as in training: what the CPU does meanwhile counts only where it is slower.
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

    typical = statistics.median(queue(3))
    return queue(min(max(10, int(seconds / typical)), 1000))


def added_memory(call: Call, device: str) -> dict[str, float]:
    """`peak_mb`: the most megabytes that a call has in use beyond those before it. Empty where the system cannot tell.

    On a GPU a call before warms up, so that nothing compiled or tuned is counted; on the CPU this call is the warm-up.
    """
    if device == "cuda":
        call()
    release_memory(device)
    before = reset_peak_memory(device)
    call()
    peak = peak_memory(device)
    return {} if before is None or peak is None else {"peak_mb": round((peak - before) / 1e6, 1)}


def release_memory(device: str) -> None:
    """So that memory kept by an allocator neither hides what a call adds nor is in its way."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    elif trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def reset_peak_memory(device: str) -> int | None:
    """Start a new peak; the bytes in use now. None where the system cannot tell."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _proc("/proc/self/status", "VmRSS")


def peak_memory(device: str) -> int | None:
    """The most bytes in use since the reset. None where the system cannot tell."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return _proc("/proc/self/status", "VmHWM")


def available_memory() -> float:
    """Bytes of the CPU's that can be had without swapping; infinite where the system cannot tell."""
    return _proc("/proc/meminfo", "MemAvailable") or float("inf")


def total_memory(device: str) -> float:
    """Bytes that the device has; infinite where the system cannot tell."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return _proc("/proc/meminfo", "MemTotal") or float("inf")


def _proc(path: str, key: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith(f"{key}:")]
    return 1024 * int(found[0].split()[1]) if found else None
