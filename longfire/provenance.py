"""What a result was made with: hardware, versions, commit."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from longfire import __version__


def provenance() -> dict[str, Any]:
    """For the head of every results file."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "hardware": {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": gpu_name()},
        "versions": {
            "longfire": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: _version(name) for name in ("triton", "transformers", "numpy")},
        },
    }


def together(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of parts that were made in several places: what they have in common, and otherwise all there is, in a line."""

    def joined(values: Sequence[Any]) -> Any:
        if all(isinstance(value, dict) for value in values):
            return {key: joined([value.get(key) for value in values]) for key in values[0]}
        different = list(dict.fromkeys(values))
        return different[0] if len(different) == 1 else ", ".join(map(str, sorted(different, key=str)))

    result: dict[str, Any] = joined(several)
    return result


def commit() -> str | None:
    """The commit of the checkout this code runs from, with `+` if tracked files were changed; None outside one.

    Where code travels without its history, $LONGFIRE_COMMIT says it.
    """
    if "LONGFIRE_COMMIT" in os.environ:
        return os.environ["LONGFIRE_COMMIT"]
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def cpu_name() -> str:
    """As the operating system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_name() -> str | None:
    """The first CUDA device; None if there is none."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
