"""Time and peak memory of making a bias, and of attention, on the CPU."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from longfire.encodings import ENCODINGS, PositionEncoding, build_encoding
from longfire.engines import ENGINES, attention
from longfire.errors import at_least, hint, one_of, positive
from longfire.evaluation.provenance import provenance

NO_BIAS = "nope"


@dataclass(frozen=True)
class Setting:
    """What is measured: one sequence, causal, float32, forward without gradients."""

    subject: str
    lengths: tuple[int, ...] = (512, 2048, 8192)
    heads: int = 12
    head_dim: int = 64
    seconds: float = 2.0
    encodings: tuple[str, ...] | None = None
    """None: all that have a bias, and for attention none at all."""

    def __post_init__(self) -> None:
        one_of("the subject", self.subject, ("bias", "attention"))
        for name in ("heads", "head_dim"):
            at_least(name, getattr(self, name), 1)
        for length in self.lengths:
            at_least("a length", length, 1)
        positive("seconds", self.seconds, zero_too=True)
        for name in self.encodings or ():
            if name not in ENCODINGS:
                raise ValueError(f"there is no encoding named {name!r}. {hint(name, ENCODINGS)}")
            if name not in self.measurable:
                raise ValueError(f"{name!r} has no bias to measure. Those that do: {', '.join(self.measurable)}.")

    @property
    def measurable(self) -> list[str]:
        """Names of the encodings there is something to measure of."""
        biased = [name for name, cls in ENCODINGS.items() if cls.bias is not PositionEncoding.bias]
        return biased if self.subject == "bias" else [NO_BIAS, *biased]

    def cases(self) -> list[tuple[int, str, str | None]]:
        """Length, encoding and engine of every measurement."""
        engines = [None] if self.subject == "bias" else list(ENGINES)
        names = self.encodings or self.measurable
        return [(n, name, engine) for n in self.lengths for name in names for engine in engines]


def measure(setting: Setting) -> dict[str, Any]:
    """Every case of the setting: rows of milliseconds and megabytes.

    What would not fit into memory is not run, and its row says so.
    """
    rows = []
    with tqdm(setting.cases(), unit="case", desc=f"bench {setting.subject}", disable=None) as progress:
        for n, name, engine in progress:
            progress.set_postfix_str(f"{name} {engine or ''} n={n}")
            row: dict[str, Any] = {"encoding": name, "engine": engine, "n": n}
            need = (2 if engine is None else 5) * setting.heads * n * n * 4
            if need > 0.9 * available_memory():
                row["not run"] = f"needs about {need / 1e9:.0f} GB, and {available_memory() / 1e9:.0f} GB are free"
            else:
                row |= _measure_one(_call(setting, name, engine, n), setting.seconds)
            rows.append(row)
    return {"provenance": provenance(), "setting": asdict(setting), "rows": rows}


def _call(setting: Setting, name: str, engine: str | None, n: int) -> Callable[[], object]:
    torch.manual_seed(0)
    encoding = build_encoding(name, num_heads=setting.heads, head_dim=setting.head_dim)
    positions = torch.arange(n)
    if engine is None:
        return lambda: encoding.bias(positions, positions)
    q, k, v = torch.randn(3, 1, setting.heads, n, setting.head_dim)
    return lambda: attention(q, k, v, encoding, impl=engine)


@torch.no_grad()
def _measure_one(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """The median time, and the peak of memory that one call adds. The first call warms up; at least three are timed."""
    gc.collect()
    _return_free_memory()
    before = reset_peak_memory()
    call()
    peak = peak_memory()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    memory = {} if before is None or peak is None else {"peak_mb": round((peak - before) / 1e6, 1)}
    ms = [round(1e3 * seconds, 3) for seconds in (statistics.median(times), min(times), max(times))]
    return {"ms": ms[0], "fastest": ms[1], "slowest": ms[2], "calls": len(times), **memory}


def _return_free_memory() -> None:
    """So that memory kept by the allocator does not hide what a call adds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak_memory() -> int | None:
    """Start a new peak; the bytes in use now. None where the system cannot tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def peak_memory() -> int | None:
    """The most bytes in use since the reset. None where the system cannot tell."""
    return _status("VmHWM")


def available_memory() -> float:
    """Bytes that can be had without swapping; infinite where the system cannot tell."""
    return _proc("/proc/meminfo", "MemAvailable") or float("inf")


def _status(key: str) -> int | None:
    return _proc("/proc/self/status", key)


def _proc(path: str, key: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith(f"{key}:")]
    return 1024 * int(found[0].split()[1]) if found else None
