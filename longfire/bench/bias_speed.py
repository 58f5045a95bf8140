"""Time and peak memory of making a bias, on the CPU."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tqdm import tqdm

from longfire.bench.timing import added_memory, available_memory, timed
from longfire.encodings import ENCODINGS, PositionEncoding, build_encoding
from longfire.provenance import kernel_hash, provenance
from longfire.validation import at_least, hint, positive


@dataclass(frozen=True)
class BiasSetting:
    """What is measured: the bias of one sequence, float32, without gradients."""

    lengths: tuple[int, ...] = (512, 2048, 8192)
    heads: int = 12
    head_dim: int = 64
    seconds: float = 2.0
    encodings: tuple[str, ...] | None = None
    """None: all that have a bias."""
    subject: str = "bias"

    def __post_init__(self) -> None:
        check_setting(self.lengths, self.heads, self.head_dim, self.seconds, self.encodings or ())

    def cases(self) -> list[tuple[int, str]]:
        """Length and encoding of every measurement."""
        return [(n, name) for n in self.lengths for name in self.encodings or with_bias()]


def with_bias() -> list[str]:
    """Names of the encodings that have a bias."""
    return [name for name, cls in ENCODINGS.items() if cls.bias is not PositionEncoding.bias]


def check_setting(lengths: Sequence[int], heads: int, head_dim: int, seconds: float, encodings: Sequence[str]) -> None:
    """Refuse what nothing can be measured at."""
    at_least("heads", heads, 1)
    at_least("head_dim", head_dim, 1)
    for length in lengths:
        at_least("a length", length, 1)
    positive("seconds", seconds, zero_too=True)
    for name in encodings:
        if name not in ENCODINGS:
            raise ValueError(f"there is no encoding named {name!r}. {hint(name, ENCODINGS)}")
        if name not in with_bias():
            raise ValueError(f"{name!r} has no bias to measure. Those that do: {', '.join(with_bias())}.")


def measure_bias(setting: BiasSetting) -> dict[str, Any]:
    """Every case of the setting: rows of milliseconds and megabytes.

    What would not fit into memory is not run, and its row says so.
    """
    rows = []
    with tqdm(setting.cases(), unit="case", desc="bench bias", disable=None) as progress:
        for n, name in progress:
            progress.set_postfix_str(f"{name} n={n}")
            row: dict[str, Any] = {"encoding": name, "engine": None, "n": n}
            need = 2 * setting.heads * n * n * 4
            if need > 0.9 * available_memory():
                row["not run"] = f"needs about {need / 1e9:.0f} GB, and {available_memory() / 1e9:.0f} GB are free"
            else:
                row |= _measure_one(setting, name, n)
            rows.append(row)
    made = provenance() | {"kernels": kernel_hash()}
    return {"provenance": made, "setting": asdict(setting), "rows": rows}


@torch.no_grad()
def _measure_one(setting: BiasSetting, name: str, n: int) -> dict[str, float]:
    torch.manual_seed(0)
    encoding = build_encoding(name, num_heads=setting.heads, head_dim=setting.head_dim)
    positions = torch.arange(n)

    def call() -> object:
        return encoding(positions, positions)

    memory = added_memory(call, "cpu")
    return timed(call, setting.seconds, "cpu") | memory
