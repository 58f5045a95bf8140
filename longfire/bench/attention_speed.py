"""Time and memory of causal attention with every encoding on every engine, on the CPU or a CUDA GPU.

The timed call includes computing the bias. An engine with a wrong result is not timed.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from longfire.bench import correctness
from longfire.bench.benchmark import (
    BACKENDS,
    BOTH,
    DTYPES,
    FIRE_S,
    FORWARD,
    NO_BIAS,
    Benchmark,
    Case,
    Row,
    check_sizes,
    with_bias,
)
from longfire.bench.layouts import PLAIN, Arrangement
from longfire.bench.timing import added_memory, memory_shortage, timed
from longfire.encodings import PositionEncoding
from longfire.engines import ENGINES, PreparedBias, attention, attention_plan, engine_name, prepare_bias
from longfire.validation import at_least

MEMORY = "memory"
BASELINES = {"cuda": ("flash", "cudnn"), "cpu": ("sdpa",)}
"""PyTorch's own attention without a bias, by device."""
RATIOS = {"flash": "÷ flash", "cudnn": "÷ cudnn", "sdpa": "÷ sdpa without bias"}
"""Keys of a row's ratios to each baseline."""


@dataclass(frozen=True, kw_only=True)
class AttentionBenchmark(Benchmark):
    """Attention forward and forward + backward at every length, compared with PyTorch's without a bias."""

    lengths: tuple[int, ...]
    tokens: int | None
    """Total per batch. None: one sequence."""
    shared_layers: int
    """Number of layers that share one FIRE in the FIRE-S row. 0: no such row."""
    heads: int = 12
    head_dim: int = 64
    engines: tuple[str, ...] | None = None
    """None: all."""
    subject: str = "attention"

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "cuda": {"dtype": "bfloat16", "lengths": (2048, 8192, 32768), "tokens": 32768, "shared_layers": 12},
        "cpu": {"dtype": "float32", "lengths": (512, 2048), "tokens": None, "shared_layers": 0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(heads=self.heads, head_dim=self.head_dim, lengths=self.lengths)
        if self.tokens is not None:
            at_least("tokens", self.tokens, 1)
        at_least("shared_layers", self.shared_layers, 0)
        if self.engines is not None:
            object.__setattr__(self, "engines", tuple(engine_name(name, tuple(ENGINES)) for name in self.engines))

    def batch(self, case: Case) -> int:
        return max(1, (self.tokens or 0) // case.n)

    def cases(self) -> list[Case]:
        """For each length: the baselines, then FIRE, then the other encodings."""
        names = self.encodings or sorted(with_bias(), key=lambda name: name != "fire")
        labels = [(name, 1) for name in names]
        if "fire" in names and self.shared_layers:
            labels.insert(labels.index(("fire", 1)) + 1, (FIRE_S, self.shared_layers))
        return [
            case
            for n in self.lengths
            for case in (
                *(Case(n, NO_BIAS, engine) for engine in BASELINES[self.device]),
                *(Case(n, name, engine, layers=k) for name, k in labels for engine in self.engines or ENGINES),
            )
        ]

    def arrangement(self, case: Case) -> Arrangement:
        """How the tokens are laid out, and which keys a query sees."""
        return PLAIN

    def stage(self, row: Row) -> str:
        stage = BOTH if FORWARD in row else FORWARD if "errors" in row else "check against the reference"
        return f"{stage}: "

    def measure(self, case: Case, row: Row) -> None:
        if shortage := self.shortage(case, FORWARD):
            row["not run"] = shortage
            return
        layers, encoding = self.inputs(case)
        options = self.arrangement(case).options(self.batch(case))
        if encoding is not None and (refusal := _refusal(case, layers[0], encoding, options)):
            row["not run"] = refusal
            return
        if wrong := self._check(case, row, encoding):
            row["wrong"] = wrong
            return

        def forward() -> list[Tensor]:
            return attend(case, layers, encoding, options)

        inputs = [tensor for layer in layers for tensor in layer]
        inputs += [] if encoding is None else list(encoding.parameters())
        by_shape = {q.shape: torch.randn_like(q) for q, *_ in layers}
        upstream = [by_shape[q.shape] for q, *_ in layers]

        def both() -> Sequence[Tensor]:
            return torch.autograd.grad(forward(), inputs, upstream)

        replay = encoding is None or ENGINES[str(case.engine)].replays
        with torch.no_grad():
            forward()
            row[FORWARD] = _per_layer(timed(forward, self.seconds, self.device, replay), case)
        if shortage := self.shortage(case, BOTH):
            row["not run"] = shortage
            return
        memory = added_memory(both, self.device)
        row[BOTH] = _per_layer(timed(both, self.seconds, self.device, replay) | memory, case)

    def shortage(self, case: Case, stage: str) -> str | None:
        """Why to skip a case on the CPU, where running out of memory kills the process; a GPU raises an error."""
        if self.device != "cpu" or case.encoding == NO_BIAS:
            return None
        if case.layers == 1 and not ENGINES[str(case.engine)].dense:
            return None
        maps, hidden = (5, 0) if stage == FORWARD else (7, 96)  # measured; hidden is FIRE's MLP in training
        numbers = maps * self.batch(case) * case.layers * self.heads + hidden
        shortage = memory_shortage(numbers * case.n**2 * 4)
        return shortage and f"{stage}: {shortage}"

    def inputs(self, case: Case) -> tuple[list[tuple[Tensor, ...]], PositionEncoding | None]:
        """q, k and v of every layer or call, each (B, H, n, D), and the encoding."""
        torch.manual_seed(0)
        arrangement, batch = self.arrangement(case), self.batch(case)
        calls = arrangement.calls or ((1, case.n),) * case.layers
        shapes = [(batch * rows, self.heads, n, self.head_dim) for rows, n in calls]
        options: dict[str, Any] = {"device": self.device, "dtype": DTYPES[self.dtype], "requires_grad": True}
        layers = [tuple(torch.randn(shape, **options) for _ in range(3)) for shape in shapes]
        if (name := case.encoding_name) is None:
            return layers, None
        encoding = correctness.build_for(name, self.heads, self.head_dim, case.n, arrangement.causal)
        return layers, encoding.to(self.device)

    def _check(self, case: Case, row: Row, encoding: PositionEncoding | None) -> str | None:
        """Add the errors to the row and return what is wrong. PyTorch's own attention is never called wrong."""
        dtype, arrangement = DTYPES[self.dtype], self.arrangement(case)
        n = max((length for _, length in arrangement.calls), default=case.n)
        sample = correctness.make_sample(case.encoding_name, n, self.head_dim, dtype, self.device, arrangement)
        options = arrangement.options()
        errors = correctness.check(lambda q, k, v, encoding: attend(case, [(q, k, v)], encoding, options)[0], sample)
        row["errors"] = {name: [_rounded(error) for error in pair] for name, pair in errors.items()}
        if encoding is None:
            return None
        interpolated = ENGINES[str(case.engine)].interpolates(encoding, n, arrangement.window, dtype)
        return correctness.verdict(errors, interpolated, dtype)

    def add_ratios(self, rows: list[Row]) -> None:
        add_ratios(rows)


def attend(
    case: Case,
    layers: Sequence[Sequence[Tensor]],
    encoding: PositionEncoding | None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> list[Tensor]:
    """The timed call: the output of every layer. `options` are arguments of `attention`."""
    if encoding is None:
        backend = BACKENDS.get(str(case.engine))
        with nullcontext() if backend is None else sdpa_kernel(backend):
            causal = options.get("causal", True)
            return [F.scaled_dot_product_attention(q, k, v, is_causal=causal) for q, k, v in layers]
    bias = _bias(case, encoding)
    return [attention(q, k, v, bias, **options, impl=str(case.engine)) for q, k, v in layers]


def _bias(case: Case, encoding: PositionEncoding) -> PositionEncoding | PreparedBias:
    """The encoding or, for FIRE-S, its bias prepared once for all layers."""
    if case.encoding != FIRE_S:
        return encoding
    positions = torch.arange(case.n, device=next(encoding.parameters()).device)
    return prepare_bias(encoding, positions, positions, in_order=True)


def _refusal(case: Case, layer: Sequence[Tensor], encoding: PositionEncoding, options: Mapping[str, Any]) -> str | None:
    """Why the engine cannot serve this case."""
    q, k, v = layer
    with torch.no_grad():
        bias = _bias(case, encoding)
    try:
        attention_plan(q, k, v, bias, **options, impl=str(case.engine))
    except ValueError as refusal:
        return str(refusal)
    return None


def _rounded(error: float) -> float | None:
    """Rounded to three digits; None if not finite, because JSON has no such numbers."""
    return float(f"{error:.3g}") if math.isfinite(error) else None


def _per_layer(found: dict[str, float], case: Case) -> dict[str, float]:
    return {name: value if name == "calls" else round(value / case.layers, 3) for name, value in found.items()}


def add_ratios(rows: list[Row]) -> None:
    """Add each row's ratios to attention without a bias at the same length; for FIRE-S also those to FIRE.

    Ratios are skipped where either side has no number.
    """
    by_case = {(row["encoding"], row["engine"], row["n"]): row for row in rows}
    for row in rows:
        against = {ratio: (NO_BIAS, baseline) for baseline, ratio in RATIOS.items()}
        if row["encoding"] == FIRE_S:
            against["÷ not shared"] = ("fire", row["engine"])
        for name, (encoding, engine) in against.items():
            other = by_case.get((encoding, engine, row["n"]))
            if other is not None and (quotients := ratios(row, other)):
                row[name] = quotients


def ratios(row: Row, other: Row) -> dict[str, float]:
    """Times and memory of a row divided by another's, where both have them."""
    keys = {FORWARD: (FORWARD, "ms"), BOTH: (BOTH, "ms"), MEMORY: (BOTH, "peak_mb")}
    found = {}
    for name, (part, key) in keys.items():
        value, baseline = row.get(part, {}).get(key), other.get(part, {}).get(key)
        if value is not None and baseline:
            found[name] = round(value / baseline, 3)
    return found
