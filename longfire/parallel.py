"""Attention over sequences that are split across the ranks of a process group (context parallelism).

A sequence of L tokens is cut into 2N chunks for N ranks. Rank r holds chunks r and 2N − 1 − r, an early and a late one,
so that causal attention is the same work on every rank:

    chunks of the sequence   0 1 2 3 4 5 6 7        rank 0: 0 7    rank 1: 1 6    rank 2: 2 5    rank 3: 3 4

Keys and values are gathered whole; queries, and all that is computed from them, stay where they are.
Shapes: B batch, H query heads, G key heads, T tokens of a rank, L = N·T of the sequence, D head size.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.distributed import ProcessGroup
from torch.func import functional_call

from longfire.encodings import PositionEncoding
from longfire.engines.dispatch import choose
from longfire.engines.engine import CallAround
from longfire.engines.prepared import PreparedBias
from longfire.engines.request import Request, split_bias


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: PositionEncoding | Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    key_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    impl: str = "auto",
    sum_bias_grad: bool = True,
) -> Tensor:
    """`longfire.attention` of the whole sequence, where each rank has its share of it → this rank's share (B, H, T, D).

    All ranks of the group must call it, with the same shapes and options. Gradients are those of the sum of all ranks'
    losses, and cannot be differentiated again.

    Args:
        q: (B, H, T, D), this rank's share as `shard` cuts it. So are all arguments with a dimension of tokens.
        k: (B, G, T, D).
        v: (B, G, T, D).
        bias: an encoding with a bias, or None; or a tensor that broadcasts to (B, H, T, L), for this rank's queries and
            all keys, in the order of the sequence. The gradient of a tensor is not summed over ranks.
        group: the ranks that share the sequence. Default: all.
        q_positions: (T,) or (B, T). By default tokens are counted from 0 along the sequence.
        k_positions: (T,) or (B, T).
        causal: as in `longfire.attention`.
        window: as in `longfire.attention`.
        segment_ids: (B, T).
        key_mask: (B, T).
        dropout_p: only 0: ranks with equal seeds would drop the same weights.
        scale: as in `longfire.attention`.
        impl: as in `longfire.attention`.
        sum_bias_grad: sum the gradients of the encoding's parameters over ranks, so that all ranks have the same. Pass
            False if something else does: DDP and FSDP average over all ranks, so multiply the loss by their number.
    """
    if isinstance(bias, PreparedBias):
        raise TypeError("a prepared bias is for all queries at once: pass the encoding itself.")
    encoding = bias if isinstance(bias, PositionEncoding) else None
    layout: dict[str, Any] = {"causal": causal, "dropout_p": dropout_p, "scale": scale, "window": window}
    own: dict[str, Any] = {
        "q_positions": q_positions,
        "k_positions": k_positions,
        "segment_ids": segment_ids,
        "key_mask": key_mask,
    }
    Request(q, k, v, encoding, **own, **layout)  # checks this rank's share
    if isinstance(bias, Tensor):
        Request(q, whole_like(k, group, 2), whole_like(v, group, 2), bias, None, None, **layout, key_mask=None)
    call = {"q": tuple(q.shape), "k": tuple(k.shape), "dtype": q.dtype, "bias": type(bias).__name__, "impl": impl}
    check_agreement({**call, **layout, **own, "sum_bias_grad": sum_bias_grad}, q.device, group)
    k, v = gather_keys(q, k, v, group)
    own = {name: None if tensor is None else unshard(tensor, -1, group) for name, tensor in own.items()}
    whole = Request(whole_like(q, group, dim=2), k, v, encoding, **own, **layout)
    whole.check_order()  # on all keys, so that every rank refuses them
    return attend(q, whole, group, impl, sum_bias_grad, bias if isinstance(bias, Tensor) else None)


def shard(tensor: Tensor, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """This rank's share of a whole sequence, along the dimension of its tokens."""
    N, rank = _size_and_rank(group)
    length = tensor.shape[dim]
    if length % (2 * N):
        raise ValueError(
            f"a sequence of {length} tokens cannot be cut into {2 * N} equal chunks, two for each of {N} ranks: pad it "
            f"to {-(-length // (2 * N)) * 2 * N}, or use another number of ranks."
        )
    chunks = tensor.chunk(2 * N, dim)
    return torch.cat([chunks[rank], chunks[2 * N - 1 - rank]], dim)


def unshard(tensor: Tensor, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """The whole sequence, on every rank, from each rank's share. The gradient is the sum over ranks, then sharded."""
    _size_and_rank(group)
    if tensor.shape[dim] % 2:
        raise ValueError(f"a rank's share is two chunks, so its length must be even, not {tensor.shape[dim]}.")
    return _Unshard.apply(tensor, dim, group)  # type: ignore[no-any-return]


def total(count: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The sum of a number over ranks, without a gradient."""
    count = count.detach().clone()
    dist.all_reduce(count, group=group)
    return count


def gather_keys(q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Keys and values of the whole sequence, (B, G, L, D) each, in one collective."""
    if k.shape[2] != q.shape[2]:
        raise ValueError(
            f"a rank holds the queries and keys of the same tokens, but q has {q.shape[2]} and k {k.shape[2]}."
        )
    whole = unshard(torch.stack([k, v]), 3, group)
    return whole[0], whole[1]


def whole_like(tensor: Tensor, group: ProcessGroup | None, dim: int) -> Tensor:
    """A tensor of the whole sequence's shape that takes no memory and has no values."""
    shape = list(tensor.shape)
    shape[dim] *= _size_and_rank(group)[0]
    return tensor.new_empty(()).expand(shape)


def attend(
    q: Tensor,
    whole: Request,
    group: ProcessGroup | None,
    impl: str = "auto",
    sum_bias_grad: bool = True,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention of this rank's queries (B, H, T, D) to the keys of a request for the whole sequence.

    The values of the request's own queries are not read. `bias` is a tensor for this rank's queries, in place of the
    request's.
    """
    N, rank = _size_and_rank(group)
    if whole.dropout_p:
        raise ValueError(
            f"dropout_p must be 0 where a sequence is split across ranks, not {whole.dropout_p}: ranks with equal "
            f"seeds would drop the same weights."
        )
    size = q.shape[2] // 2
    starts = rank * size, (2 * N - 1 - rank) * size
    chunks = zip(q.split(size, 2), split_bias(whole.bias if bias is None else bias, size, 2), starts, strict=True)
    early = whole.causal and whole.in_order  # then queries are the last of the keys that they may see
    halves = [
        whole.part(chunk, own, start, slice(0, start + size if early else whole.k.shape[2]))
        for chunk, own, start in chunks
    ]
    module = CallAround(whole.encoding, lambda: torch.cat([choose(half, impl).run(half) for half in halves], dim=2))
    learned = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not (sum_bias_grad and learned and torch.is_grad_enabled()):
        return module()  # type: ignore[no-any-return]
    summed = _SumGradients.apply(group, *learned.values())
    out: Tensor = functional_call(module, dict(zip(learned, summed, strict=True)))
    return out


def _size_and_rank(group: ProcessGroup | None) -> tuple[int, int]:
    """The number of ranks, and which this one is."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "there is no process group: start the program with torchrun, and call torch.distributed.init_process_group."
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the given group: pass each rank the group that it is in.")
    return dist.get_world_size(group), rank


def check_agreement(arguments: Mapping[str, Any], device: torch.device, group: ProcessGroup | None) -> None:
    """Refuse, on all ranks, arguments that differ between them (of tensors, shapes and dtypes). Waits for the device.

    They would exchange garbage, or gloo would abort the process.
    """
    described = {
        name: (*value.shape, value.dtype) if isinstance(value, Tensor) else value for name, value in arguments.items()
    }
    call = ", ".join(f"{name}={value}" for name, value in described.items())
    own = torch.tensor([crc32(call.encode())], device=device)
    found = [torch.empty_like(own) for _ in range(_size_and_rank(group)[0])]
    dist.all_gather(found, own, group)
    if len(set(torch.cat(found).tolist())) == 1:
        return
    ranks = dist.get_process_group_ranks(group)
    calls = [""] * len(ranks)
    dist.all_gather_object(calls, call, group)
    rank, other = next((rank, other) for rank, other in zip(ranks, calls, strict=True) if other != calls[0])
    raise ValueError(
        f"all ranks must pass the same shapes and options, but rank {ranks[0]} has {calls[0]}, and rank {rank} has "
        f"{other}."
    )


class _Unshard(torch.autograd.Function):
    """All-gather, in the order of the sequence."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor, dim: int, group: ProcessGroup | None) -> Tensor:
        ctx.dim, ctx.group = dim, group  # type: ignore[attr-defined]
        data = tensor.contiguous().view(torch.uint8)  # backends lack some types
        gathered = [torch.empty_like(data) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, data, group)
        halves = [part.view(tensor.dtype).chunk(2, dim) for part in gathered]
        return torch.cat([early for early, _ in halves] + [late for _, late in reversed(halves)], dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (total,) = _summed([grad], ctx.group)
        return shard(total, ctx.dim, ctx.group), None, None


class _SumGradients(torch.autograd.Function):
    """The same parameters, with gradients summed over ranks."""

    @staticmethod
    def forward(ctx: FunctionCtx, group: ProcessGroup | None, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group  # type: ignore[attr-defined]
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_summed(grads, ctx.group)


def _summed(tensors: Sequence[Tensor], group: ProcessGroup | None) -> list[Tensor]:
    """The sums over ranks, in at least float32 and in one collective."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    flat = torch.cat([tensor.reshape(-1).to(dtype) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]
