"""Record what a result was produced with: hardware, versions, commit, kernel hash."""

import ast
import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from longfire import __version__

KERNELS = (
    "engines/**/*.py",
    "encodings/kernels/*.py",
    "encodings/base.py",
    "encodings/fire.py",
    "encodings/positions.py",
    "model/kernels/*.py",
    "model/attention.py",
    "model/heads.py",
    "model/loss.py",
    "model/modeling.py",
    "model/inputs.py",
    "model/packing.py",
    "custom_ops.py",
)
"""Sources whose speed `longfire bench` measures. New encodings are not included: they do not slow others down."""


def provenance() -> dict[str, Any]:
    """Date, commit, hardware and versions, for the head of every results file."""
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


@cache
def kernel_hash() -> str:
    """Hash of the current kernel sources. Performance records with another hash are stale."""
    package = Path(__file__).parent
    files = sorted(path for pattern in KERNELS for path in package.glob(pattern))
    return syntax_hash([path.read_text(encoding="utf-8") for path in files])


def syntax_hash(sources: Sequence[str]) -> str:
    """Hash of Python sources that ignores their order, comments, docstrings and formatting."""
    trees = sorted(_syntax(ast.parse(source)) for source in sources)
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


def _syntax(node: Any) -> str:
    """`ast.dump` without docstrings, and without empty fields, which differ between Python versions."""
    if isinstance(node, ast.AST):
        fields = [f"{name}={_syntax(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_syntax(item) for item in node if not _is_docstring(item))}]"
    return repr(node)


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def merge_provenance(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the provenance of parts produced on several machines; differing values are joined with commas."""

    def merge(values: Sequence[Any]) -> Any:
        if all(isinstance(value, dict) for value in values):
            return {key: merge([value.get(key) for value in values]) for key in values[0]}
        distinct = list(dict.fromkeys(values))
        return distinct[0] if len(distinct) == 1 else ", ".join(map(str, sorted(distinct, key=str)))

    return dict(merge(parts))


def commit() -> str | None:
    """The commit this code runs from, with `+` if tracked files have changed; None outside a checkout.

    $LONGFIRE_COMMIT overrides it, for code copied without its history.
    """
    if "LONGFIRE_COMMIT" in os.environ:
        return os.environ["LONGFIRE_COMMIT"]
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        described = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def cpu_name() -> str:
    """The CPU's name according to the operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_name() -> str | None:
    """The name of the first CUDA device, or None."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
