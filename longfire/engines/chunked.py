"""Attention a few queries at a time: of the bias, no more than a block of rows is ever there.

In training a block is computed again in the backward pass, so nothing of (queries × keys) is kept. Keys after a block's
last query are left out, so of causal attention only the lower triangle is computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from longfire.encodings import PositionEncoding
from longfire.encodings.positions import can_check_values, is_transformed
from longfire.engines.prepared import PreparedBias
from longfire.engines.request import Bias, Request
from longfire.engines.sdpa import SDPA

BLOCK = 1 << 22
"""How many logits and numbers of one of FIRE's hidden layers a block may have."""

HIDDEN = 32
"""The width of FIRE's hidden layers."""

FEWEST = 16
"""Queries in a block at any length: k and v are read for each block, and their gradients written."""


class Blocks:
    """PyTorch's own kernels on blocks of queries, each with its bias and the keys that it can see."""

    name = "blocks"
    dense = False

    def refuses(self, request: Request) -> str | None:
        if torch.compiler.is_compiling():
            return "a compiled graph would be bound to one number of blocks; sdpa serves there"
        if any(is_transformed(tensor) for tensor in _tensors(request)):
            return "inside torch.func transforms no block can be computed again; impl='reference' serves there"
        return None

    def declines(self, request: Request) -> str | None:
        return None if request.has_bias else "there is no bias to make in blocks; sdpa serves that"

    def describe(self, request: Request) -> str:
        kernel, rows = "torch's scaled_dot_product_attention", _rows(request)
        if rows >= request.shape[2]:
            return f"{kernel}, all queries in one block, with its bias as a dense tensor"
        again = ", each computed again in the backward pass" if _learns(request) else ""
        return f"{kernel} on blocks of {rows} queries, with the bias of one block at a time{again}"

    def error(self, request: Request) -> float:
        return 0.0

    def run(self, request: Request) -> Tensor:
        rows = _rows(request)
        if rows >= request.shape[2]:
            return SDPA().run(request)
        attend = _attend_twice if _learns(request) else SDPA().run
        return torch.cat([attend(block) for block in _blocks(request, rows)], dim=2)


def _rows(request: Request) -> int:
    """Queries in a block."""
    B, H, _, S = request.shape
    maps = max(len(torch.atleast_2d(positions)) for positions in request.positions)
    return max(FEWEST, BLOCK // max(1, S * (B * H + maps * HIDDEN)))


def _source(bias: Bias) -> PositionEncoding | Tensor | None:
    """What makes a bias, or is it."""
    if isinstance(bias, PreparedBias):
        return bias.encoding if bias.tensor is None else bias.tensor
    return bias


def _tensors(request: Request) -> list[Tensor]:
    """All that the result depends on, an encoding's parameters first."""
    bias = _source(request.bias)
    own = bias.parameters() if isinstance(bias, PositionEncoding) else [bias]
    tensors = (*own, request.q, request.k, request.v, request.key_mask, *request.positions)
    return [tensor for tensor in tensors if tensor is not None]


def _learns(request: Request) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(request))


def _blocks(request: Request, rows: int) -> Iterator[Request]:
    """A request for every block of queries. Its tensors are views."""
    in_order = request.in_order and request.causal  # then so is a block: its queries are the last of its keys
    all_q_positions, all_k_positions = request.positions
    queries = request.q.split(rows, dim=2)  # slices would each pad their gradient to the whole
    for number, (q, bias) in enumerate(zip(queries, _split_bias(request, rows, len(queries)), strict=True)):
        start, stop = number * rows, number * rows + q.shape[2]
        q_positions = all_q_positions[..., start:stop]
        keys = _keys_seen(request, stop, q_positions, all_k_positions)
        k_positions = all_k_positions[..., :keys]
        if isinstance(bias, Tensor):
            bias = bias[..., :keys]
        if isinstance(bias, PreparedBias):
            tensor = None if bias.tensor is None else bias.tensor[..., :keys]
            bias = replace(bias, q_positions=q_positions, k_positions=k_positions, in_order=in_order, tensor=tensor)
        yield replace(
            request,
            q=q,
            k=request.k[:, :, :keys],
            v=request.v[:, :, :keys],
            bias=bias,
            q_positions=None if in_order else q_positions,
            k_positions=None if in_order else k_positions,
            key_mask=None if request.key_mask is None else request.key_mask[:, :keys],
        )


def _split_bias(request: Request, rows: int, blocks: int) -> Sequence[Bias]:
    """The bias of every block, for all keys yet."""
    bias = request.bias
    if isinstance(bias, PreparedBias) and bias.tensor is not None:
        return [replace(bias, tensor=piece) for piece in bias.tensor.split(rows, dim=-2)]
    if isinstance(bias, Tensor):
        pieces = torch.atleast_2d(bias).split(rows, dim=-2)
        return pieces if len(pieces) == blocks else [pieces[0]] * blocks  # one row: the same for all queries
    return [bias] * blocks


def _keys_seen(request: Request, stop: int, q_positions: Tensor, k_positions: Tensor) -> int:
    """How many keys, from the first, hold all that a block can see: its queries end before `stop`."""
    _, _, T, S = request.shape
    if not request.causal:
        return S
    if request.in_order:
        return S - T + stop
    if not (can_check_values(q_positions) and can_check_values(k_positions)):
        return S
    seen = torch.atleast_2d(k_positions <= q_positions.amax(-1, keepdim=True)).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else 0


class _Attention(nn.Module):
    """SDPA as a module of its encoding, to be called with parameters of one's own."""

    def __init__(self, bias: Bias) -> None:
        super().__init__()
        source = _source(bias)
        self.encoding = source if isinstance(source, PositionEncoding) else None

    def forward(self, block: Request) -> Tensor:
        return SDPA().run(block)


def _attend_twice(block: Request) -> Tensor:
    """Now, keeping nothing, and again in the backward pass.

    The encoding may have other parameters by then (a functional_call is over, an optimiser has made a step). So they
    are kept, as arguments, and a tensor that was written to in between is an error, as without blocks.
    """
    module = _Attention(block.bias)
    names = [name for name, _ in module.named_parameters()]

    def attend(*tensors: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, tensors, strict=False)), (block,))  # type: ignore[no-any-return]

    return checkpoint(attend, *_tensors(block), use_reentrant=False)  # type: ignore[no-any-return]
