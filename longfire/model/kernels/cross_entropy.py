"""Cross-entropy of a block of logits and, in place, its gradient: two passes over each row."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def row_loss(
    Logits,  # (n, V)
    Labels,  # (n,)
    Loss,  # (n,)
    V, stride, GRADIENT: tl.constexpr, IGNORED: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One token's loss. With GRADIENT, its logits are overwritten with softmax minus one-hot."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(Labels + row)  # []
    Logits += row * stride
    v = tl.arange(0, N)
    top = tl.full([N], float("-inf"), tl.float32)
    total = tl.zeros([N], tl.float32)
    for start in range(0, V, N):
        x = tl.load(Logits + start + v, mask=start + v < V, other=float("-inf")).to(tl.float32)  # [N]
        highest = tl.maximum(top, x)
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        total = total * tl.exp(top - finite) + tl.exp(x - finite)
        top = highest
    best = tl.max(top, 0)
    total = tl.sum(total * tl.exp(top - best), 0)
    counts = label != IGNORED
    there = (label >= 0) & (label < V)  # any other label makes the loss nan
    chosen = tl.load(Logits + label, mask=there, other=float("nan")).to(tl.float32)  # []
    tl.store(Loss + row, tl.where(counts, best + tl.log(total) - chosen, 0.0))  # []
    if GRADIENT:
        for start in range(0, V, N):
            at = start + v
            x = tl.load(Logits + at, mask=at < V, other=float("-inf")).to(tl.float32)  # [N]
            gradient = tl.exp(x - best) / total - tl.where(at == label, 1.0, 0.0)
            tl.store(Logits + at, tl.where(counts, gradient, 0.0).to(Logits.dtype.element_ty), mask=at < V)  # [N]


def losses_and_gradient(logits: Tensor, labels: Tensor, learns: bool) -> Tensor:
    """The losses (n,) of logits (n, V). If `learns`, the logits are overwritten with their gradient."""
    from longfire.model.loss import IGNORED

    n, V = logits.shape
    loss = logits.new_empty(n, dtype=torch.float32)
    with torch.cuda.device_of(logits):
        row_loss[(n,)](
            Logits=logits, Labels=labels, Loss=loss, V=V, stride=logits.stride(0), GRADIENT=learns, IGNORED=IGNORED,
            N=min(4096, triton.next_power_of_2(V)), num_warps=8,
        )  # fmt: skip
    return loss
