"""Attention written out: the specification that every other engine is tested against.

softmax(scale·q·kᵀ + bias, over the keys a query may see) · v
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longfire.encodings.base import full_precision
from longfire.engines.engine import Engine
from longfire.engines.request import Request


class Reference(Engine):
    """Plain PyTorch in at least float32, or float64 if q is. Keeps the (B, H, T, S) weights."""

    name = "reference"
    dense = True

    def describe(self, request: Request) -> str:
        return "plain PyTorch, in at least float32"

    def run(self, request: Request) -> Tensor:
        dtype = torch.promote_types(request.q.dtype, torch.float32)
        q, k, v = (tensor.to(dtype) for tensor in (request.q, request.k, request.v))
        k, v = (tensor.repeat_interleave(request.group, dim=1) for tensor in (k, v))
        with full_precision(q.device):
            logits = request.scaling * (q @ k.mT)  # (B, H, T, S)
            bias, visible = request.dense_bias(), request.visible()
            if bias is not None:
                logits = logits + bias.to(dtype)
            if visible is not None:
                logits = logits.masked_fill(~visible, float("-inf"))
            if request.may_be_blind:  # a query that sees no key: any finite row, its weights become 0
                blind = logits.isneginf().all(-1, keepdim=True)
                weights = torch.softmax(logits.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)
            else:
                weights = torch.softmax(logits, dim=-1)
            return (F.dropout(weights, request.dropout_p) @ v).to(request.q.dtype)
