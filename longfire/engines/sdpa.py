"""Attention by torch's scaled_dot_product_attention: the bias and the mask together are its attn_mask."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from longfire.engines.request import Request


class SDPA:
    """PyTorch's own kernels. With a bias they take it as a dense (B, H, T, S) mask."""

    name = "sdpa"

    def refuses(self, request: Request) -> str | None:
        return None

    def describe(self, request: Request) -> str:
        if _plainly_causal(request):
            return "torch's scaled_dot_product_attention, causal, with no mask to build"
        return "torch's scaled_dot_product_attention, with bias and mask as one dense tensor"

    def run(self, request: Request) -> Tensor:
        attend = partial(
            F.scaled_dot_product_attention,
            request.q,
            request.k,
            request.v,
            dropout_p=request.dropout_p,
            scale=request.scale,
            enable_gqa=request.group > 1,
        )
        if _plainly_causal(request):
            return attend(is_causal=True)
        bias, visible = request.dense_bias(), request.visible()
        sees = None
        if visible is not None and request.may_be_blind:
            sees = visible.any(-1, keepdim=True)
            visible = visible | ~sees  # a query with nothing to see looks at everything, and is zeroed below
        mask = visible
        if bias is not None:
            mask = bias.to(_mask_dtype(request.q))
            if visible is not None:
                mask = mask.masked_fill(~visible, float("-inf"))
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(0)  # the CPU's flash kernel takes four dimensions
        out = attend(attn_mask=mask)
        return out if sees is None else out.masked_fill(~sees, 0.0)


def _mask_dtype(q: Tensor) -> torch.dtype:
    """The CPU's kernels take a float32 bias beside low-precision queries; a GPU's want one dtype."""
    return torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype


def _plainly_causal(request: Request) -> bool:
    _, _, T, S = request.shape
    return request.causal and not request.has_bias and request.in_order and request.key_mask is None and T == S
