"""Whether an engine computes attention: its error against float64, held to that of plain PyTorch.

The bound is that of the tests: at most twice the error of attention written out in the same precision.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from longfire.encodings import ENCODINGS, PositionEncoding, build_encoding
from longfire.engines import attention

HEADS = 2
ROWS = 256
"""Queries computed in float64 at a time."""
ALL_QUERIES = 4096
"""Up to this length every query is checked; beyond, the first and the last `ROWS`."""
GRADIENTS = 2048
"""Up to this length gradients are checked too."""
PARAMETERS = "gradient of the parameters"
FLOOR, PARAMETERS_FLOOR = 1e-6, 1e-5
"""No float32 result is better; a parameter's gradient is a sum over all queries and keys."""
INTERPOLATED_FLOOR = 0.2
"""For parameters' gradients where the bias is interpolated: kinks blur."""

Attend = Callable[[Tensor, Tensor, Tensor, PositionEncoding | None], Tensor]
AttendRows = Callable[[Tensor, Tensor, Tensor, PositionEncoding | None, Tensor, Tensor], Tensor]


def check(attend: Attend, sample: "Sample") -> dict[str, tuple[float, float]]:
    """Errors of the engine and of eager PyTorch by quantity, relative to the largest exact value."""
    found = _errors(sample.results_of(attend), sample.exact)
    return {name: (found[name], eager) for name, eager in sample.eager.items()}


def verdict(
    errors: dict[str, tuple[float, float]], interpolated: bool = False, dtype: torch.dtype = torch.float32
) -> str | None:
    """The first error that is out of bounds; None if there is none."""
    for name, (error, eager) in errors.items():
        parameters_floor = INTERPOLATED_FLOOR if interpolated else max(PARAMETERS_FLOOR, torch.finfo(dtype).eps)
        if error > 2 * eager + (parameters_floor if name == PARAMETERS else FLOOR):
            return f"{name}: error {error:.1e}, eager PyTorch {eager:.1e}"
    return None


@dataclass(frozen=True, eq=False)
class Sample:
    """One sequence of two heads, and its exact attention."""

    q: Tensor  # (1, H, n, D), as are k, v and upstream, the gradient of the output
    k: Tensor
    v: Tensor
    upstream: Tensor
    encoding: PositionEncoding | None
    rows: Tensor
    exact: dict[str, Tensor]
    eager: dict[str, float]

    def results_of(self, attend: Attend) -> dict[str, Tensor]:
        """An engine's output for the rows and, for a short sequence, its gradients."""
        with_gradients = self.q.shape[2] <= GRADIENTS
        with torch.set_grad_enabled(with_gradients):
            out = attend(self.q, self.k, self.v, self.encoding)
        results = {"output": out.detach()[:, :, self.rows]}
        if with_gradients:
            wanted = _wanted(self.q, self.k, self.v, self.encoding)
            gradients = torch.autograd.grad(out, list(wanted.values()), self.upstream, materialize_grads=True)
            results |= zip(wanted, gradients, strict=True)
        return results


@lru_cache(maxsize=1)
def make_sample(name: str | None, n: int, head_dim: int, dtype: torch.dtype, device: str) -> Sample:
    """The sample for an encoding (None: no bias) at a length. The last one is cached for the next engine."""
    torch.manual_seed(0)
    q, k, v, upstream = torch.randn(4, 1, HEADS, n, head_dim, device=device).to(dtype)
    encoding = None if name is None else build_for(name, HEADS, head_dim, n).to(device)
    positions = torch.arange(n, device=device)
    rows = positions if n <= ALL_QUERIES else torch.cat([positions[:ROWS], positions[-ROWS:]])
    for tensor in (q, k, v):
        tensor.requires_grad_()
    exact_q, exact_k, exact_v = (tensor.detach().double().requires_grad_() for tensor in (q, k, v))
    exact_encoding = None if encoding is None else copy.deepcopy(encoding).double()
    blocks = rows.split(ROWS)
    exact = _by_rows(_reference, exact_q, exact_k, exact_v, upstream.double(), exact_encoding, blocks)
    if n <= GRADIENTS:  # eager PyTorch sums gradients over all queries at once, in its precision
        blocks = (rows,)
    eager = _by_rows(_eager, q, k, v, upstream, encoding, blocks)
    return Sample(q, k, v, upstream, encoding, rows, exact, _errors(eager, exact))


def build_for(name: str, heads: int, head_dim: int, n: int) -> PositionEncoding:
    """A freshly initialised encoding for a model of this shape."""
    shape: dict[str, Any] = {"num_heads": heads, "head_dim": head_dim, "width": heads * head_dim, "max_length": n}
    return build_encoding(name, **shape, **ENCODINGS[name].example)


def _by_rows(
    attend: AttendRows,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    upstream: Tensor,
    encoding: PositionEncoding | None,
    blocks: Sequence[Tensor],
) -> dict[str, Tensor]:
    """Output and gradients, a block of queries at a time."""
    with_gradients, wanted = q.shape[2] <= GRADIENTS, _wanted(q, k, v, encoding)
    positions = torch.arange(q.shape[2], device=q.device)
    outputs, sums = [], {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in wanted.items()}
    for block in blocks:
        with torch.set_grad_enabled(with_gradients):
            out = attend(q[:, :, block], k, v, encoding, block, positions)
        outputs.append(out.detach())
        if with_gradients:
            gradients = torch.autograd.grad(out, list(wanted.values()), upstream[:, :, block])
            for total, gradient in zip(sums.values(), gradients, strict=True):
                total += gradient
    return {"output": torch.cat(outputs, dim=2), **(sums if with_gradients else {})}


def _wanted(q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding | None) -> dict[str, Tensor]:
    """Tensors whose gradients are compared."""
    own = dict(encoding.named_parameters(prefix="parameter")) if encoding is not None else {}
    return {"gradient of q": q, "gradient of k": k, "gradient of v": v, **own}


def _reference(
    q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding | None, rows: Tensor, keys: Tensor
) -> Tensor:
    return attention(q, k, v, encoding, q_positions=rows, k_positions=keys, impl="reference")


def _eager(q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding | None, rows: Tensor, keys: Tensor) -> Tensor:
    """Attention written out, all in the dtype of q."""
    logits = q @ k.mT * q.shape[-1] ** -0.5
    bias = encoding(rows, keys) if encoding is not None else None
    if bias is not None:
        logits = logits + bias.to(q.dtype)
    return torch.softmax(logits.masked_fill(keys > rows[:, None], float("-inf")), dim=-1) @ v


def _errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Largest errors, relative to the largest exact value. All parameters are one quantity with their worst error.

    Some parameters are single numbers, which eager PyTorch may hit by luck. Others have only a rounding error for a
    gradient (a constant added to all logits changes nothing); theirs is relative to the other parameters' gradients.
    """
    size = {name: float(tensor.abs().max()) for name, tensor in exact.items()}
    largest = max((value for name, value in size.items() if name.startswith("parameter")), default=0.0)
    errors: dict[str, float] = {}
    for name, tensor in exact.items():
        own = name.startswith("parameter")
        scale = largest if own and size[name] < 1e-9 * largest else size[name]
        error = float((found[name].double() - tensor).abs().max()) / (scale or 1.0)
        key = PARAMETERS if own else name
        errors[key] = max(error if math.isfinite(error) else math.inf, errors.get(key, 0.0))
    return errors
