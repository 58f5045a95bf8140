"""Attention on a few queries at a time, so that only one chunk of the bias exists at once.

In training, backward recomputes each chunk, so no (queries × keys) tensor is kept. Keys that no query of a chunk sees
are skipped, so causal attention computes the lower triangle only.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, is_transformed
from longfire.engines.engine import CallAround, Engine
from longfire.engines.layout import Span, needed_keys
from longfire.engines.prepared import PreparedBias
from longfire.engines.request import Bias, Request, split_bias
from longfire.engines.sdpa import SDPA

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Limit per chunk: logits, plus one hidden layer of FIRE. A GPU is idle between small chunks."""

FIRE_WIDTH = 32
TRAINING_SHARE, INFERENCE_SHARE = 128, 16
"""What part of a GPU's memory a dense bias may take before chunks are preferred, which take longer."""

MIN_ROWS = 16
"""Minimum of queries per chunk: every chunk reads k and v, and writes their gradients."""


class Chunked(Engine):
    """PyTorch's kernels on chunks of queries, each with its bias and the keys it can see."""

    name = "chunked"

    def refuses(self, request: Request) -> str | None:
        if torch.compiler.is_compiling():
            return "a compiled graph would fix the number of chunks; use sdpa there"
        if any(is_transformed(tensor) for tensor in _tensors(request)):
            return "chunks cannot be recomputed inside torch.func transforms; use impl='reference' there"
        return None

    def declines(self, request: Request) -> str | None:
        if not request.has_bias and not _skips_keys(request):
            return "there is no bias to compute in chunks; sdpa is faster"
        return "the dense bias is small for this GPU; sdpa is faster" if _is_small(request) else None

    def describe(self, request: Request) -> str:
        kernel, rows = "torch's scaled_dot_product_attention", _rows(request)
        if rows >= request.shape[2]:
            dense = "the bias" if request.has_bias else "the mask"
            return f"{kernel}, all queries in one chunk, with {dense} as a dense tensor"
        recomputed = ", recomputed in the backward pass" if _needs_grad(request) else ""
        what = "the bias of one chunk at a time" if request.has_bias else "the keys that each may see"
        return f"{kernel} on chunks of {rows} queries, with {what}{recomputed}"

    def run(self, request: Request) -> Tensor:
        rows, T = _rows(request), request.shape[2]
        if rows >= T:
            limited = T and (request.window is not None or request.segment_ids is not None)
            return SDPA().run(next(_chunks(request, T)) if limited else request)
        attend = _checkpointed if _needs_grad(request) else SDPA().run
        return torch.cat([attend(chunk) for chunk in _chunks(request, rows)], dim=2)


def _rows(request: Request) -> int:
    """Queries per chunk."""
    B, H, _, S = request.shape
    elements = CHUNK_ELEMENTS.get(request.q.device.type, CHUNK_ELEMENTS["cpu"])
    return max(MIN_ROWS, elements // max(1, S * (B * H + _biases(request) * FIRE_WIDTH)))


def _biases(request: Request) -> int:
    """How many different biases the batch has."""
    return max(len(torch.atleast_2d(positions)) for positions in request.positions)


def _skips_keys(request: Request) -> bool:
    """Whether chunks without a bias read far fewer keys than sdpa, which masks them. Not measured on a GPU."""
    few = request.segment_ids is not None or (request.window is not None and 2 * request.window < request.shape[3])
    return few and request.q.device.type == "cpu"


def _is_small(request: Request) -> bool:
    """Whether a GPU has room for the dense bias in float32, and for what every layer keeps of it in training."""
    device, (_, H, T, S) = request.q.device, request.shape
    if device.type != "cuda":
        return False
    share = TRAINING_SHARE if _needs_grad(request) else INFERENCE_SHARE
    return 4 * _biases(request) * H * T * S * share <= torch.cuda.get_device_properties(device).total_memory


def _source(bias: Bias) -> PositionEncoding | Tensor | None:
    """The encoding that computes the bias, or its tensor."""
    if isinstance(bias, PreparedBias):
        return bias.encoding if bias.tensor is None else bias.tensor
    return bias


def _tensors(request: Request) -> list[Tensor]:
    """Everything the result depends on, an encoding's parameters first."""
    bias = _source(request.bias)
    of_bias = bias.parameters() if isinstance(bias, PositionEncoding) else [bias]
    where = (tensor for span in request.spans for tensor in span.tensors)
    tensors = (*of_bias, request.q, request.k, request.v, request.key_mask, *where)
    return [tensor for tensor in tensors if tensor is not None]


def _needs_grad(request: Request) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(request))


def _chunks(request: Request, rows: int) -> Iterator[Request]:
    """One request per chunk of queries. Its tensors are views."""
    pieces = request.q.split(rows, dim=2)  # the gradient of a slice would be padded to the full size
    spans = request.spans
    for number, (q, bias) in enumerate(zip(pieces, split_bias(request.bias, rows, len(pieces)), strict=True)):
        start = number * rows
        yield request.part(q, bias, start, _seen_keys(request, *spans, start, start + q.shape[2]), spans)


def _seen_keys(request: Request, queries: Span, keys: Span, start: int, stop: int) -> slice:
    """A range of keys that has all those that queries start…stop−1 see."""
    _, _, T, S = request.shape
    causal, window = request.causal, request.window
    limited = (causal or window is not None) and not request.in_order
    if (limited or request.segment_ids is not None) and all(map(can_check_values, (*queries.tensors, *keys.tensors))):
        return needed_keys(queries[start:stop], keys, causal, window)
    if not request.in_order:
        return slice(0, S)
    back = S if window is None else window  # positions in a segment differ by as much as their indices
    ahead = 1 if causal else back
    return slice(max(0, S - T + start - back + 1), min(S, S - T + stop - 1 + ahead))


def _checkpointed(chunk: Request) -> Tensor:
    """Compute a chunk now and recompute it in the backward pass, keeping nothing in between.

    By then the encoding's parameters may have changed (a functional_call returned, an optimiser stepped). They are
    therefore saved as arguments, and writing to one in between is an error, as it is without chunks.
    """
    source = _source(chunk.bias)
    module = CallAround(source if isinstance(source, PositionEncoding) else None, lambda: SDPA().run(chunk))
    names = [name for name, _ in module.named_parameters()]

    def attend(*tensors: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, tensors, strict=False)))  # type: ignore[no-any-return]

    return checkpoint(attend, *_tensors(chunk), use_reentrant=False)  # type: ignore[no-any-return]
