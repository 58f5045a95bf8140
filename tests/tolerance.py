"""Tolerance of low-precision results: twice the error of plain PyTorch in that precision, against float64."""

import torch
from torch import Tensor


def assert_as_accurate(
    result: Tensor, eager: Tensor, exact: Tensor, floor: float = 1e-6, scale: float | None = None, what: str = ""
) -> None:
    """Assert that the error of `result` is at most twice that of `eager`, both against `exact` in the max norm.

    `floor` is always allowed, relative to `scale`. Default: the largest exact value; for a gradient that is 0 by
    symmetry, pass the largest of its kind.
    """
    assert exact.dtype == torch.float64
    assert torch.isfinite(result).all(), what
    scale = exact.abs().max().item() if scale is None else scale
    allowed = 2 * (eager.double() - exact).abs().max() + floor * scale
    error = (result.double() - exact).abs().max()
    assert error <= allowed, f"{what} error {error:.2e} is above {allowed:.2e}"
