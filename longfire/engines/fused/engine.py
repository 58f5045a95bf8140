"""Decide which requests the kernels can serve, and call them."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from longfire.custom_ops import HAS_TRITON, INTERPRETED
from longfire.encodings import PositionEncoding
from longfire.encodings.positions import in_transform
from longfire.engines.engine import Engine
from longfire.engines.fused.bias import (
    SampledBias,
    compute_dtype,
    interpolates,
    interpolation_error,
    refuses,
    sample_bias,
)
from longfire.engines.fused.layout import (
    LARGEST_TABLE,
    LookupLayout,
    counts_segments,
    lookup_layout,
    padding_before,
)
from longfire.engines.fused.segments import SegmentTable, segment_table
from longfire.engines.fused.zones import Zones, decode_nodes, smooth_width
from longfire.engines.prepared import PreparedBias
from longfire.engines.request import Request

LARGEST_HEAD = 128
NO_LEFT_PADDING = "with causal=False, it supports padding on the right only"
WIDE_MEMORY = 160 << 10
"""Bytes of shared memory that a program uses in float32 with head sizes above 64."""
LEAST_SCALE = 2e-5  # its reciprocal fits float16


class Fused(Engine):
    """One kernel for logits, bias, softmax and values; no (queries × keys) tensor, forward or backward."""

    name = "fused"
    replays = True

    def interpolates(self, encoding: PositionEncoding, keys: int, window: int | None, dtype: torch.dtype) -> bool:
        return interpolates(encoding, keys, window, dtype)

    def refuses(self, request: Request) -> str | None:
        refusal = _refuses_call(request)
        if refusal is not None or _is_decoding(request):
            return refusal
        if isinstance(request.bias, Tensor):
            return "a bias passed as a tensor is already dense; use sdpa"
        if (refusal := refuses(_encoding(request), request.shape[3])) is not None:
            return refusal
        refusal = _refuses_tiles(request)
        return None if refusal is None or _looks_up(request) else refusal

    def declines(self, request: Request) -> str | None:
        if request.q.device.type != "cuda":
            return "Triton's interpreter is only for tests"
        if _is_decoding(request):
            plain = not (request.has_bias or request.hides_keys)
            return "there is no bias and no mask; sdpa has a kernel for that" if plain else None
        encoding = _encoding(request)
        if compute_dtype(request.q) == torch.float32 and _interpolates(request) and not _looks_up(request):
            return f"q is float32, and {type(encoding).__name__}'s bias would be interpolated"
        return None

    def describe(self, request: Request) -> str:
        if _is_decoding(request):
            bias = "the bias is exact" if request.has_bias else "no bias"
            bias = "the bias is interpolated along the distance" if _interpolates_row(request) else bias
            return f"a Triton kernel for single queries that reads keys and values once; {bias}"
        encoding = _encoding(request)
        if _looks_up(request):
            return f"Triton kernels for any positions; every pair looks up {type(encoding).__name__}'s bias, exactly"
        if not _interpolates(request):
            return f"Triton kernels; {type(encoding).__name__}'s bias is read from a table of distances, exactly"
        W = smooth_width(encoding)
        return f"Triton kernels; the bias is interpolated (smooth_beyond={W}; {2 * W} would be more exact)"

    def error(self, request: Request) -> float:
        if _is_decoding(request):
            return _row_error(request) if _interpolates_row(request) else 0.0
        if _looks_up(request) or not _interpolates(request):
            return 0.0
        return interpolation_error(_encoding(request), _bias(request, _shift(request)), request.window)[0]

    def run(self, request: Request) -> Tensor:
        from longfire.engines.fused.ops import fused_attention

        decoding = _is_decoding(request)
        if decoding:
            request = _within_window(request)
        dtype = compute_dtype(request.q)
        q, k, v = (_with_contiguous_rows(tensor.to(dtype)) for tensor in (request.q, request.k, request.v))
        if decoding:
            return _decode(request, q, k, v).to(request.q.dtype)
        seed = torch.randint(0, 2**62, (1,), device=q.device) if request.dropout_p else None
        key_mask = None if request.key_mask is None else request.key_mask.to(torch.uint8).contiguous()
        if _looks_up(request):
            return _look_up(request, q, k, v, key_mask, seed).to(request.q.dtype)
        shift = _shift(request)
        bias = _bias(request, shift)
        request.check_heads(bias.heads, type(_encoding(request)).__name__)
        table = _segments(request)
        expanded = bias.expanded(dtype != torch.float32, request.scaling, request.window)
        optional = key_mask, shift, seed, *((None, None) if table is None else (table.tiles, table.segments))
        scalars = *bias.numbers(request.window), request.scaling, request.dropout_p
        out: Tensor = fused_attention(q, k, v, bias.samples, *expanded, *optional, *scalars)[0]
        return out.to(request.q.dtype)


def _refuses_call(request: Request) -> str | None:
    q, decoding = request.q, _is_decoding(request)
    if not HAS_TRITON:
        return "it needs Triton: pip install triton"
    if q.device.type != "cuda" and not INTERPRETED:
        return f"it needs a CUDA device, but q is on {q.device}"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it needs float32, float16 or bfloat16, but q is {q.dtype}"
    if q.shape[-1] > LARGEST_HEAD:
        return f"its largest head size is {LARGEST_HEAD}, but q has {q.shape[-1]}"
    if not request.has_bias and not decoding:
        return "there is no bias; sdpa has faster kernels for that"
    if request.scaling < LEAST_SCALE:
        return f"scale must be at least {LEAST_SCALE}, not {request.scaling}"
    if not q.numel() or not request.k.numel():
        return "there is nothing to compute"
    if in_transform():
        return "it cannot run inside torch.func transforms"
    if q.is_cuda and not torch.compiler.is_compiling():
        return _refuses_device(q.device, q.shape[-1] > 64 and compute_dtype(q) == torch.float32)
    return None


@lru_cache(maxsize=64)
def _refuses_device(device: torch.device, wide: bool) -> str | None:
    """Why a GPU cannot run the kernels; `wide`: in float32, with head sizes above 64."""
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs an NVIDIA GPU, A100 or newer"
    memory = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", WIDE_MEMORY)
    if wide and memory < WIDE_MEMORY:
        return (
            f"float32 with head sizes above 64 needs {WIDE_MEMORY // 1024} KiB of shared memory, and this GPU has "
            f"{memory // 1024}; bfloat16 needs less"
        )
    return None


def _refuses_tiles(request: Request) -> str | None:
    """Why positions cannot be told from a tile's place in the sequence; None if they can."""
    if request.in_order:
        return None
    segmented = request.segment_ids is not None
    if _padding(request) is not None and not segmented:
        return None if request.causal else NO_LEFT_PADDING
    if torch.compiler.is_compiling():
        return "positions cannot be read while compiling; pass none if they are 0, 1, 2, …"
    if segmented:
        in_order = counts_segments(*request.spans, request.key_mask)
        return None if in_order else "with segment_ids, it supports positions that count up from 0 in each segment"
    shift, refusal = _padding_before(request)
    return refusal if shift is None or request.causal else NO_LEFT_PADDING


def _padding(request: Request) -> Tensor | None:
    """Padding after which positions are in order, as passed to `prepare_bias`."""
    return request.bias.padding if isinstance(request.bias, PreparedBias) else None


def _padding_before(request: Request) -> tuple[Tensor | None, str | None]:
    return padding_before(*request.positions, request.key_mask, request.shape[0])


def _shift(request: Request) -> Tensor | None:
    """Padding before each sequence's first key, (B,) int32; None if there is none."""
    if request.in_order or request.segment_ids is not None:
        return None
    padding = _padding(request)
    return _padding_before(request)[0] if padding is None else padding.int()


def _segments(request: Request) -> SegmentTable | None:
    """Where packed documents are; None without segments."""
    if request.segment_ids is None:
        return None
    return segment_table(request.segment_ids, Zones.of(_encoding(request), 1, 0).smooth, request.window)


def _encoding(request: Request) -> PositionEncoding:
    assert request.encoding is not None
    return request.encoding


def _bias(request: Request, shift: Tensor | None) -> SampledBias:
    if (prepared := _prepared(request)) is not None:
        return prepared.for_causal() if request.causal else prepared
    (_, _, T, S), device = request.shape, request.q.device
    if (table := _segments(request)) is not None:
        return sample_bias(_encoding(request), table.longest, 0, device, request.causal)
    first = S - T if shift is None else 0
    return sample_bias(_encoding(request), S, first, device, request.causal, tabulate=not _interpolates(request))


def _prepared(request: Request) -> SampledBias | None:
    """The bias as prepared. None for segments if it was prepared without: then it was sampled for whole rows."""
    bias, ids = request.bias, request.segment_ids
    if isinstance(bias, PreparedBias) and (ids is None or bias.segment_ids is not None):
        return bias.fused
    return None


def _interpolates(request: Request) -> bool:
    """Whether the bias is interpolated. That of a segment is not if it depends only on the distance."""
    if (prepared := _prepared(request)) is not None:
        return not prepared.zones.exact
    if request.segment_ids is not None:
        return not _encoding(request).distance_only
    return interpolates(_encoding(request), request.shape[3], request.window, compute_dtype(request.q))


def _with_contiguous_rows(tensor: Tensor) -> Tensor:
    fits = tensor.shape[2] * tensor.stride(2) < 2**31  # offsets within a head are 32-bit
    return tensor if tensor.stride(-1) == 1 and fits else tensor.contiguous()


# --- any positions --------------------------------------------------------------------------------------------------


def _looks_up(request: Request) -> bool:
    """Whether every pair's bias is looked up: the positions are not in order, and the bias is one of the distance."""
    if request.in_order or not _encoding(request).distance_only:
        return False
    if request.position_limit is None and (torch.compiler.is_compiling() or _refuses_tiles(request) is None):
        return False
    return _lookup_layout(request).distances <= min(LARGEST_TABLE, _encoding(request).max_length or LARGEST_TABLE)


def _lookup_layout(request: Request) -> LookupLayout:
    queries, keys = request.spans
    layout = request.key_mask, request.causal, request.window, request.position_limit
    return lookup_layout(queries, keys, *layout, _encoding(request).max_length)


def _look_up(request: Request, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, seed: Tensor | None) -> Tensor:
    from longfire.engines.fused.ops import lookup_attention

    found = _lookup_layout(request)
    bias = sample_bias(_encoding(request), found.distances, 0, q.device, request.causal)
    request.check_heads(bias.heads, type(_encoding(request)).__name__)
    table, window = bias.samples[0], request.window or 0
    numbers = window if window < found.distances else 0, request.causal, request.scaling, request.dropout_p
    out: Tensor = lookup_attention(q, k, v, table, table.detach(), *found.tensors, key_mask, seed, *numbers)[0]
    return out


# --- decoding -------------------------------------------------------------------------------------------------------


def _is_decoding(request: Request) -> bool:
    """A single query per sequence, without gradients."""
    return request.shape[2] == 1 and not request.dropout_p and not torch.is_grad_enabled()


def _within_window(request: Request) -> Request:
    """The request without the keys that the window hides from its query, if positions say which: they are not read."""
    S, window = request.shape[3], request.window
    if window is None or window >= S or not request.in_order:
        return request
    return replace(request.part(request.q, request.bias, 0, slice(S - window, S)), window=None)


def _interpolates_row(request: Request) -> bool:
    """Whether a single query's bias is interpolated: in low precision, with fewer nodes than keys."""
    if isinstance(request.bias, PreparedBias):
        return request.bias.interpolated_row
    if request.encoding is None or compute_dtype(request.q) == torch.float32:
        return False
    if not (request.causal or request.in_order):  # keys after the query have different biases
        return False
    nodes = decode_nodes(request.encoding)
    return nodes is not None and nodes < request.shape[3]


def _interpolated_row(request: Request) -> tuple[Tensor, Tensor | None]:
    """The bias (1 or B, H, S), and the key mask if the bias does not include it."""
    from longfire.engines.fused.decode import decode_biases

    if isinstance(request.bias, PreparedBias):
        assert request.bias.tensor is not None
        return request.bias.tensor[:, :, 0], None if request.bias.key_mask is not None else request.key_mask
    return decode_biases([_encoding(request)], *request.positions, request.key_mask)[0], None


def _row_error(request: Request) -> float:
    own, visible = _encoding(request)(*request.positions), request.visible()
    assert own is not None
    error = _interpolated_row(request)[0][:, :, None] - own
    return float((error if visible is None else error.masked_fill(~visible, 0.0)).abs().max())


def _decode(request: Request, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from longfire.engines.fused.decode import decode_attention

    B, H, _, S = request.shape
    bias, kept, interpolates = None, None, _interpolates_row(request)
    if interpolates:
        bias, kept = _interpolated_row(request)
        request.check_heads(bias.shape[1], type(_encoding(request)).__name__)
    elif (dense := request.dense_bias()) is not None:
        bias = dense.expand(-1, H, 1, S)[:, :, 0].float().contiguous()
    if not interpolates or request.window is not None or request.segment_ids is not None:
        visible = request.visible()
        kept = None if visible is None else visible.expand(B, 1, 1, S)[:, 0, 0]
    mask = None if kept is None else kept.to(torch.uint8).contiguous()
    out: Tensor = decode_attention(q, k, v, bias, mask, request.scaling)
    return out
