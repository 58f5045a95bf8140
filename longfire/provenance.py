"""What a result was made with: hardware, versions, commit, kernels."""

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
    "model/loss.py",
    "model/modeling.py",
    "model/positions.py",
    "custom_ops.py",
)
"""The sources whose speed `longfire bench` measures. A new encoding is not among them: it slows no other down."""


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


@cache
def kernel_hash() -> str:
    """Of today's kernels. A performance record whose hash differs was measured with others."""
    package = Path(__file__).parent
    files = sorted(path for pattern in KERNELS for path in package.glob(pattern))
    return syntax_hash([path.read_text(encoding="utf-8") for path in files])


def syntax_hash(sources: Sequence[str]) -> str:
    """Of Python sources in any order; comments, docstrings and layout do not count."""
    trees = sorted(_syntax(ast.parse(source)) for source in sources)
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


def _syntax(node: Any) -> str:
    """As `ast.dump`, without bare strings and empty fields: which fields exist depends on Python's version."""
    if isinstance(node, ast.AST):
        fields = [f"{name}={_syntax(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_syntax(item) for item in node if not _is_docstring(item))}]"
    return repr(node)


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


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
