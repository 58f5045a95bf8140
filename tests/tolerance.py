"""How wrong a low-precision result may be: twice what plain PyTorch in that precision is, against float64."""

import torch
from torch import Tensor


def assert_as_accurate(result: Tensor, eager: Tensor, exact: Tensor, floor: float = 1e-6) -> None:
    """Error of `result` against float64 ≤ 2 × the error of `eager`, both in the max norm."""
    assert exact.dtype == torch.float64
    assert torch.isfinite(result).all()
    allowed = 2 * (eager.double() - exact).abs().max() + floor * exact.abs().max()
    error = (result.double() - exact).abs().max()
    assert error <= allowed, f"error {error:.2e} is above {allowed:.2e}"
