"""Choose the engine that runs a call of attention, and explain the choice."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from longfire.engines.chunked import Chunked
from longfire.engines.engine import Engine
from longfire.engines.fused.engine import Fused
from longfire.engines.reference import Reference
from longfire.engines.request import Bias, Request
from longfire.engines.sdpa import SDPA
from longfire.validation import hint

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Fused(), Chunked(), SDPA(), Reference())}
"""Engines by name, in the order in which `auto` tries them."""

RENAMED_ENGINES = {"blocks": "chunked"}
"""Old names of engines, accepted for one release and found in older records."""


@dataclass(frozen=True)
class AttentionPlan:
    """Which engine runs, and why."""

    engine: str
    why: str
    error: float = 0.0
    """Largest measured difference between the added bias and the encoding's own; 0 if nothing is interpolated."""
    others: tuple[str, ...] = ()
    """Why not the engines that are tried before it."""

    def __str__(self) -> str:
        measured = f", off by at most {self.error:.2g}" if self.error else ""
        others = "".join(f"; not {reason}" for reason in self.others)
        return f"{self.engine}: {self.why}{measured}{others}"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias = None,
    *,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    key_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """softmax(scale·q·kᵀ + bias)·v over the keys that each query may see → (B, H, T, D).

    Args:
        q: (B, H, T, D).
        k: (B, G, S, D), where G divides H.
        v: (B, G, S, D).
        bias: a `PositionEncoding` with a bias (RoPE is refused: the caller embeds and rotates), a
            `PreparedBias`, a tensor that broadcasts to (B, H, T, S), or None.
        q_positions: (T,) or (B, T). By default keys are at 0…S−1 and queries are the last T of them, as in cached
            decoding. With `segment_ids`, keys count up from 0 in each segment.
        k_positions: (S,) or (B, S). They must strictly increase along the keys that `key_mask` keeps, within a
            segment; otherwise, documents that share a row would see each other.
        causal: a query sees keys up to its own position. Otherwise it sees keys on both sides, and `bias` must tell
            them apart or treat them alike by design: `FIRE(…, bidirectional=True)`, not FIRE.
        window: a query sees keys at fewer than this many positions before it, itself included (and, if not causal,
            after it).
        segment_ids: (B, S), integers, of the keys; queries are the last T of them. Documents packed into a row: a
            query sees its own segment only. They must not decrease along a row.
        key_mask: (B, S), True to keep. The output of a query that sees no key is 0.
        dropout_p: dropout of the attention weights. Pass 0 outside training.
        scale: of the logits. Default: D^−½.
        impl: `"auto"`, `"fused"` (Triton, on a GPU), `"chunked"` (a few queries at a time, on any device), `"sdpa"`
            (PyTorch's kernels) or `"reference"`. `attention_plan` says what `"auto"` chooses, and why.
    """
    request = Request(q, k, v, bias, q_positions, k_positions, causal, key_mask, dropout_p, scale, window, segment_ids)
    request.check_order()
    return _chosen(request, impl)[0].run(request)


def attention_plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias = None,
    *,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    key_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    impl: str = "auto",
) -> AttentionPlan:
    """Which engine `attention` would run with the same arguments, and why.

    If the bias would be interpolated, its error is measured for this encoding and length.
    """
    request = Request(q, k, v, bias, q_positions, k_positions, causal, key_mask, dropout_p, scale, window, segment_ids)
    request.check_order()
    engine, others = _chosen(request, impl)
    return AttentionPlan(engine.name, engine.describe(request), engine.error(request), others)


def choose(request: Request, impl: str = "auto") -> Engine:
    """The requested engine, or the first that serves the request. Raises a ValueError if there is none."""
    return _chosen(request, impl)[0]


def _chosen(request: Request, impl: str) -> tuple[Engine, tuple[str, ...]]:
    """The engine, and why not those tried before it."""
    tried = list(ENGINES.values()) if impl == "auto" else [ENGINES[engine_name(impl, ("auto", *ENGINES), stacklevel=4)]]
    refusals: list[str] = []
    for engine in tried:
        refusal = engine.refuses(request) or (engine.declines(request) if impl == "auto" else None)
        if refusal is None:
            return engine, tuple(refusals)
        refusals.append(f"{engine.name}: {refusal}")
    raise ValueError(
        f"impl={impl!r} cannot serve this request ({'; '.join(refusals)}). Use impl='reference', which always can."
    )


def engine_name(name: str, known: Sequence[str], stacklevel: int = 3) -> str:
    """The engine's current name. Warns if it was renamed, and raises a ValueError if it is unknown."""
    if name in RENAMED_ENGINES:
        warnings.warn(f"the engine {name!r} is now {RENAMED_ENGINES[name]!r}.", FutureWarning, stacklevel=stacklevel)
        return RENAMED_ENGINES[name]
    if name not in known:
        raise ValueError(f"there is no attention engine named {name!r}. {hint(name, known)}")
    return name
