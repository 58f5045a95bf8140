"""Check an engine's results: its error against float64 is compared with that of plain PyTorch.

As in the tests, the bound is twice the error of attention in eager PyTorch in the same precision.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from longfire.bench.layouts import PLAIN, Arrangement
from longfire.encodings import ENCODINGS, PositionEncoding, build_encoding
from longfire.encodings.registry import option_names
from longfire.engines import ENGINES
from longfire.engines.layout import segment_positions
from longfire.engines.request import Request

HEADS = 2
ROWS = 256
"""Queries computed in float64 at a time."""
ALL_QUERIES = 4096
"""Up to this length every query is checked; above it, the first and last `ROWS`."""
GRADIENTS = 2048
"""Up to this length gradients are also checked."""
PARAMETERS = "gradient of the parameters"
FLOOR, PARAMETERS_FLOOR = 1e-6, 1e-5
"""Added to the bound: float32 is no better. A parameter's gradient is a sum over all queries and keys."""
INTERPOLATED_FLOOR = 0.2
"""Added for parameters' gradients of an interpolated bias, which blurs kinks."""

Attend = Callable[[Tensor, Tensor, Tensor, PositionEncoding | None], Tensor]
Inputs = tuple[Tensor, Tensor, Tensor, PositionEncoding | None, Tensor]
"""q, k, v, the encoding, and the indices of some queries."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One sequence of two heads, with its exact attention and the error of eager PyTorch."""

    inputs: tuple[Tensor, Tensor, Tensor]  # q, k, v: (1, H, n, D)
    upstream: Tensor  # gradient of the output, same shape
    encoding: PositionEncoding | None
    rows: Tensor  # the checked queries
    exact: dict[str, Tensor]
    eager: dict[str, float]


def check(attend: Attend, sample: Sample) -> dict[str, tuple[float, float]]:
    """Errors of the engine and of eager PyTorch for each quantity, relative to its largest exact value."""

    def attend_rows(q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding | None, rows: Tensor) -> Tensor:
        return attend(q, k, v, encoding)[:, :, rows]

    found = _errors(_results(attend_rows, sample.inputs, sample.upstream, sample.encoding, [sample.rows]), sample.exact)
    return {name: (found[name], eager) for name, eager in sample.eager.items()}


def verdict(
    errors: dict[str, tuple[float, float]], interpolated: bool = False, dtype: torch.dtype = torch.float32
) -> str | None:
    """Describe the first error out of bounds; None if all are within."""
    for name, (error, eager) in errors.items():
        parameters_floor = INTERPOLATED_FLOOR if interpolated else max(PARAMETERS_FLOOR, torch.finfo(dtype).eps)
        if error > 2 * eager + (parameters_floor if name == PARAMETERS else FLOOR):
            return f"{name}: error {error:.1e}, eager PyTorch {eager:.1e}"
    return None


@lru_cache(maxsize=1)
def make_sample(
    name: str | None, n: int, head_dim: int, dtype: torch.dtype, device: str, arrangement: Arrangement = PLAIN
) -> Sample:
    """A sample for an encoding (None: no bias) and length. The latest is cached for the next engine."""
    torch.manual_seed(0)
    q, k, v, upstream = torch.randn(4, 1, HEADS, n, head_dim, device=device).to(dtype)
    encoding = None if name is None else build_for(name, HEADS, head_dim, n, arrangement.causal).to(device)
    positions = torch.arange(n, device=device)
    rows = positions if n <= ALL_QUERIES else torch.cat([positions[:ROWS], positions[-ROWS:]])
    inputs = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
    exact_q, exact_k, exact_v = (tensor.detach().double().requires_grad_() for tensor in inputs)
    exact_encoding = None if encoding is None else copy.deepcopy(encoding).double()
    blocks = rows.split(ROWS)
    reference, eager_attention = partial(_reference, arrangement), partial(_eager, arrangement)
    exact = _results(reference, (exact_q, exact_k, exact_v), upstream.double(), exact_encoding, blocks)
    if n <= GRADIENTS:  # eager PyTorch must sum gradients over all queries in its own precision
        blocks = (rows,)
    eager = _results(eager_attention, inputs, upstream, encoding, blocks)
    return Sample(inputs, upstream, encoding, rows, exact, _errors(eager, exact))


def build_for(name: str, heads: int, head_dim: int, n: int, causal: bool = True) -> PositionEncoding:
    """A freshly initialised encoding for a model of this shape; if not causal, one that tells both sides apart."""
    build = partial(build_encoding, num_heads=heads, head_dim=head_dim, width=heads * head_dim, max_length=n)
    both_sides = not causal and "bidirectional" in option_names(ENCODINGS[name])
    return build(name, **ENCODINGS[name].example, **({"bidirectional": True} if both_sides else {}))


def _results(
    attend: Callable[[*Inputs], Tensor],
    inputs: tuple[Tensor, Tensor, Tensor],
    upstream: Tensor,
    encoding: PositionEncoding | None,
    blocks: Sequence[Tensor],
) -> dict[str, Tensor]:
    """The output and, for short sequences, all gradients, one block of queries at a time."""
    with_gradients = upstream.shape[2] <= GRADIENTS
    sources = dict(zip(("gradient of q", "gradient of k", "gradient of v"), inputs, strict=True))
    sources |= dict(encoding.named_parameters(prefix="parameter")) if encoding is not None else {}
    sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in sources.items()}
    outputs = []
    for block in blocks:
        with torch.set_grad_enabled(with_gradients):
            out = attend(*inputs, encoding, block)
        outputs.append(out.detach())
        if with_gradients:
            tensors = list(sources.values())
            gradients = torch.autograd.grad(out, tensors, upstream[:, :, block], materialize_grads=True)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                total += gradient
    return {"output": torch.cat(outputs, dim=2), **(sums if with_gradients else {})}


def _request(arrangement: Arrangement, *inputs: *Inputs) -> Request:
    """Attention of some queries of the arrangement."""
    q, k, v, encoding, rows = inputs
    ids, keys = arrangement.segment_ids, arrangement.positions
    if keys is None:
        keys = torch.arange(k.shape[2], device=k.device) if ids is None else segment_positions(ids)
    where = keys[..., rows], keys, arrangement.causal, None, 0.0, None, arrangement.window
    return Request(q[:, :, rows], k, v, encoding, *where, ids, None if ids is None else ids[:, rows])


def _reference(arrangement: Arrangement, *inputs: *Inputs) -> Tensor:
    return ENGINES["reference"].run(_request(arrangement, *inputs))


def _eager(arrangement: Arrangement, *inputs: *Inputs) -> Tensor:
    """Attention in plain operations, all in the dtype of q."""
    request = _request(arrangement, *inputs)
    logits = request.q @ request.k.mT * request.scaling
    bias, visible = request.dense_bias(), request.visible()
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    if visible is not None:
        logits = logits.masked_fill(~visible, float("-inf"))
    return torch.softmax(logits, dim=-1) @ request.v


def _errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Largest errors, relative to the largest exact value. All parameters count as one quantity with the worst error.

    Some parameters are single numbers, which eager PyTorch may get right by luck. The gradient of others is pure
    rounding error (adding a constant to all logits changes nothing); it is taken relative to the other parameters'.
    """
    size = {name: float(tensor.abs().max()) for name, tensor in exact.items()}
    largest = max((value for name, value in size.items() if name.startswith("parameter")), default=0.0)
    errors: dict[str, float] = {}
    for name, tensor in exact.items():
        is_parameter = name.startswith("parameter")
        scale = largest if is_parameter and size[name] < 1e-9 * largest else size[name]
        error = float((found[name].double() - tensor).abs().max()) / (scale or 1.0)
        key = PARAMETERS if is_parameter else name
        errors[key] = max(error if math.isfinite(error) else math.inf, errors.get(key, 0.0))
    return errors
