"""One entry, several engines: which of them runs, and why."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from longfire.engines.chunked import Blocks
from longfire.engines.fused.engine import Fused
from longfire.engines.reference import Reference
from longfire.engines.request import Bias, Request
from longfire.engines.sdpa import SDPA
from longfire.validation import hint


class Engine(Protocol):
    """A way to compute attention."""

    name: str
    dense: bool
    """Whether it makes tensors of (heads × queries × keys)."""

    def refuses(self, request: Request) -> str | None:
        """Why it cannot serve this request; None if it can."""

    def declines(self, request: Request) -> str | None:
        """Why `auto` had better leave a request to another engine that this one could serve."""

    def describe(self, request: Request) -> str:
        """How it will serve this request."""

    def error(self, request: Request) -> float:
        """How far the bias that it adds is from the encoding's own, at most: measured now."""

    def run(self, request: Request) -> Tensor:
        """(B, H, T, D)."""


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Fused(), Blocks(), SDPA(), Reference())}
"""By name, in the order in which `auto` tries them."""


@dataclass(frozen=True)
class AttentionPlan:
    """Which engine runs, and why."""

    engine: str
    why: str
    error: float = 0.0
    """How far the bias that is added is from the encoding's own at most, measured; 0 where it is not interpolated."""

    def __str__(self) -> str:
        measured = f" by at most {self.error:.2g}" if self.error else ""
        return f"{self.engine}: {self.why}{measured}"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias = None,
    *,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    causal: bool = True,
    key_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """softmax(scale·q·kᵀ + bias)·v over the keys that each query may see → (B, H, T, D).

    Args:
        q: (B, H, T, D).
        k: (B, H or a divisor of it, S, D).
        v: as k.
        bias: a `PositionEncoding` with a bias (embedding and rotating are the caller's: RoPE is refused), a
            `PreparedBias`, a tensor that broadcasts to (B, H, T, S), or None.
        q_positions: (T,) or (B, T). Without positions, keys are 0…S−1 and queries the last T of them, as in cached
            decoding.
        k_positions: (S,) or (B, S). They must strictly increase along the keys that `key_mask` keeps: documents that
            share a row would see each other otherwise.
        causal: a query sees keys up to its own position.
        key_mask: (B, S), True is kept. A query with nothing to see gets 0.
        dropout_p: dropout of the attention weights. Pass 0 outside training.
        scale: of the logits; D^−½ unless given.
        impl: `"auto"`, `"fused"` (Triton, on a GPU), `"blocks"` (a block of queries at a time, on any device), `"sdpa"`
            (PyTorch's kernels) or `"reference"`. `attention_plan` says what `"auto"` chooses and why.
    """
    request = Request(q, k, v, bias, q_positions, k_positions, causal, key_mask, dropout_p, scale)
    request.check_order()
    return choose(request, impl).run(request)


def attention_plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias = None,
    *,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    causal: bool = True,
    key_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    impl: str = "auto",
) -> AttentionPlan:
    """Which engine `attention` would run with the same arguments, and why.

    Where the bias would be interpolated, by how much: measured now, for this encoding and length.
    """
    request = Request(q, k, v, bias, q_positions, k_positions, causal, key_mask, dropout_p, scale)
    request.check_order()
    engine = choose(request, impl)
    return AttentionPlan(engine.name, engine.describe(request), engine.error(request))


def choose(request: Request, impl: str = "auto") -> Engine:
    """The engine asked for, or the first that can serve; an error if there is none."""
    if impl != "auto" and impl not in ENGINES:
        raise ValueError(f"this version has no attention engine named {impl!r}. {hint(impl, ['auto', *ENGINES])}")
    tried = list(ENGINES.values()) if impl == "auto" else [ENGINES[impl]]
    refusals = []
    for engine in tried:
        refusal = engine.refuses(request) or (engine.declines(request) if impl == "auto" else None)
        if refusal is None:
            return engine
        refusals.append(f"{engine.name}: {refusal}")
    raise ValueError(f"impl={impl!r} cannot serve this request ({'; '.join(refusals)}). impl='reference' always can.")
