"""How wrong a low-precision result may be: twice what plain PyTorch in that precision is, against float64."""

import torch
from torch import Tensor


def assert_as_accurate(
    result: Tensor, eager: Tensor, exact: Tensor, floor: float = 1e-6, scale: float | None = None, what: str = ""
) -> None:
    """Error of `result` against float64 ≤ 2 × the error of `eager`, both in the max norm.

    `floor` is what is always allowed, relative to `scale`: the largest exact value, unless another is given (a gradient
    that is 0 by symmetry is measured against the largest of its kind).
    """
    assert exact.dtype == torch.float64
    assert torch.isfinite(result).all(), what
    scale = exact.abs().max().item() if scale is None else scale
    allowed = 2 * (eager.double() - exact).abs().max() + floor * scale
    error = (result.double() - exact).abs().max()
    assert error <= allowed, f"{what} error {error:.2e} is above {allowed:.2e}"
