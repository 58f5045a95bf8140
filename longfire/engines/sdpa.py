"""Attention with torch's scaled_dot_product_attention, passing bias and mask as attn_mask."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longfire.encodings.positions import in_transform
from longfire.engines.engine import Engine
from longfire.engines.request import Request


class SDPA(Engine):
    """PyTorch's kernels. They take a bias as a dense (B, H, T, S) mask."""

    name = "sdpa"
    dense = True

    def declines(self, request: Request) -> str | None:
        if in_transform():
            return "torch's kernels lack some derivatives inside torch.func transforms; impl='reference' has them all"
        return None

    def describe(self, request: Request) -> str:
        kernel = "torch's scaled_dot_product_attention"
        if request.has_bias:
            return f"{kernel}, with the bias as a dense tensor of (heads × queries × keys)"
        if _is_plain_causal(request):
            return f"{kernel}, causal, no bias and no mask to build"
        return f"{kernel}, no bias{', the mask as a dense tensor' if request.hides_keys else ' and no mask to build'}"

    def run(self, request: Request) -> Tensor:
        # not enable_gqa=group > 1: in a compiled graph, the number of heads may be symbolic, but the flag may not
        grouped = {"enable_gqa": True} if request.group > 1 else {}
        options: dict[str, Any] = {"dropout_p": request.dropout_p, "scale": request.scale, **grouped}
        attend = partial(F.scaled_dot_product_attention, request.q, request.k, request.v, **options)
        if _is_plain_causal(request):
            return attend(is_causal=True).to(request.q.dtype)
        mask, blind = _mask(request)
        out = attend(attn_mask=mask).to(request.q.dtype)
        return out if blind is None else out.masked_fill(blind, 0.0)


def _is_plain_causal(request: Request) -> bool:
    _, _, T, S = request.shape
    limits = request.window, request.segment_ids, request.key_mask
    unlimited = request.in_order and all(limit is None for limit in limits)
    return request.causal and not request.has_bias and unlimited and T == S


def _mask(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """Bias and mask in one tensor, and which queries (…, T, 1) see no key: they attend to all, and are zeroed later."""
    bias, visible = request.dense_bias(), request.visible()
    if bias is None:
        if visible is None or not request.may_be_blind:
            return visible, None
        sees_nothing = ~visible.any(-1, keepdim=True)
        return visible | sees_nothing, sees_nothing
    mask = bias if visible is None else bias.masked_fill(~visible, float("-inf"))
    blind: Tensor | None = None
    if request.may_be_blind:
        blind = mask.isneginf().all(-1, keepdim=True)
        mask = mask.masked_fill(blind, 0.0)
    if request.q.device.type == "cpu":  # CPU kernels take a float32 bias with low-precision queries
        mask = mask.to(torch.promote_types(request.q.dtype, torch.float32))
    else:
        if mask.numel():  # shifting a row keeps its softmax, and large biases do not overflow
            mask = mask - mask.detach().amax(-1, keepdim=True)
        mask = mask.to(request.q.dtype)
    return mask, blind
