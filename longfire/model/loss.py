"""Cross-entropy of a linear layer, computed in blocks of tokens so that the full logits never exist.

The logits of 32,768 tokens and a vocabulary of 50,304 are 6.6 GB in float32, several times over. Here each block's
logits are turned into loss and gradients at once, then dropped.
Shapes: N tokens, C width, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longfire.custom_ops import HAS_TRITON, Operator
from longfire.encodings.positions import can_check_values

BLOCK = 1 << 27
"""Number of logits per block."""
IGNORED = -100
"""The label of tokens without a loss."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Σ −log softmax(hidden · weightᵀ)[label] over tokens with a label other than −100, in float32.

    Args:
        hidden: (N, C).
        weight: (V, C).
        labels: (N,).
    """
    _check_labels(labels, weight.shape[0])
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    weight = weight.to(hidden.dtype)
    learns = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss: Tensor = _cross_entropy(hidden, weight, labels, learns)[0]
    return loss


def logits_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ −log softmax(logits)[label] over tokens with a label other than −100, in float32: (N, V), (N,) → ()."""
    _check_labels(labels, logits.shape[-1])
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(exact, labels, ignore_index=IGNORED, reduction="sum")


@torch.no_grad()
def token_losses(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> Tensor:
    """−log softmax(hidden · weightᵀ + bias)[label] of each token (N,), in at least float32, without gradients.

    Args:
        hidden: (N, C).
        weight: (V, C).
        labels: (N,); −100 has a loss of 0.
        bias: (V,).
    """
    rows = max(1, BLOCK // weight.shape[0])
    blocks = zip(hidden.split(rows), labels.split(rows), strict=True)
    return torch.cat([logit_losses(F.linear(block, weight, bias), chosen) for block, chosen in blocks])


@torch.no_grad()
def logit_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """−log softmax(logits)[label] of each token: (N, V), (N,) → (N,), in at least float32, without gradients."""
    return _losses_and_gradient(logits.contiguous(), labels, learns=False)


def _check_labels(labels: Tensor, V: int) -> None:
    if can_check_values(labels) and (wrong := labels[((labels < 0) & (labels != IGNORED)) | (labels >= V)]).numel():
        raise ValueError(
            f"label {int(wrong[0])} is outside the vocabulary of {V} tokens: labels are 0…{V - 1}, or {IGNORED} for "
            f"tokens without a loss."
        )


def _forward(hidden: Tensor, weight: Tensor, labels: Tensor, learns: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and, if `learns`, the gradients of hidden and weight (accumulated in float32)."""
    N, V = hidden.shape[0], weight.shape[0]
    accumulated = torch.promote_types(hidden.dtype, torch.float32)
    loss = hidden.new_zeros((), dtype=accumulated)
    dhidden = torch.empty_like(hidden) if learns else hidden.new_empty(0)
    dweight = weight.new_zeros(weight.shape, dtype=accumulated) if learns else weight.new_empty(0)
    rows = max(1, BLOCK // V)
    for start in range(0, N, rows):
        block = slice(start, start + rows)
        logits = hidden[block] @ weight.T  # (n, V)
        loss += _losses_and_gradient(logits, labels[block], learns).sum()
        if learns:  # the logits now contain their own gradient
            torch.mm(logits, weight, out=dhidden[block])
            dweight += logits.T @ hidden[block]
    return loss, dhidden, dweight


def _losses_and_gradient(logits: Tensor, labels: Tensor, learns: bool) -> Tensor:
    """A block's losses (n,). If `learns`, its logits (n, V) are overwritten with their gradients."""
    if logits.is_cuda and HAS_TRITON and logits.dtype != torch.float64:  # the kernel accumulates in float32
        from longfire.model.kernels.cross_entropy import losses_and_gradient

        return losses_and_gradient(logits, labels, learns)
    counted = labels != IGNORED
    exact = torch.promote_types(logits.dtype, torch.float32)
    logs = F.log_softmax(logits, dim=-1, dtype=exact)
    chosen = labels.clamp(min=0)[:, None]
    losses = -logs.gather(1, chosen)[:, 0].masked_fill(~counted, 0.0)
    if learns:
        gradient = logs.exp_()
        gradient.scatter_add_(1, chosen, torch.full_like(gradient[:, :1], -1.0))
        logits.copy_(gradient.mul_(counted[:, None]))
    return losses


def _fake(hidden: Tensor, weight: Tensor, labels: Tensor, learns: bool) -> tuple[Tensor, Tensor, Tensor]:
    accumulated = torch.promote_types(hidden.dtype, torch.float32)
    loss = hidden.new_empty((), dtype=accumulated)
    if not learns:
        return loss, hidden.new_empty(0), weight.new_empty(0)
    return loss, torch.empty_like(hidden), weight.new_empty(weight.shape, dtype=accumulated)


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    _, dhidden, dweight = output
    ctx.mark_non_differentiable(dhidden, dweight)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(dhidden, dweight)


def _backward(
    ctx: torch.autograd.function.FunctionCtx, dloss: Tensor | None, *_: object
) -> tuple[Tensor | None, Tensor | None, None, None]:
    if dloss is None:
        return None, None, None, None
    dhidden, dweight = ctx.saved_tensors  # type: ignore[attr-defined]
    return dhidden * dloss.to(dhidden.dtype), (dweight * dloss).to(dhidden.dtype), None, None


_cross_entropy = Operator("longfire::linear_cross_entropy", _forward, _fake, _setup, _backward)
