"""Time and memory of attention with every encoding on every engine, on the CPU or a CUDA GPU.

Everything is counted: an encoding's bias is made inside the timed call. An engine whose result is wrong is not timed.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longfire.bench import correctness
from longfire.bench.bias_speed import check_setting, with_bias
from longfire.bench.timing import added_memory, available_memory, release_memory, timed, total_memory
from longfire.encodings import PositionEncoding
from longfire.encodings.registry import SHARED
from longfire.engines import ENGINES, PreparedBias, attention, attention_plan, prepare_bias
from longfire.evaluation.record import Save, record_of
from longfire.validation import at_least, hint, one_of

NO_BIAS, FIRE_S = "no bias", f"fire{SHARED}"
FORWARD, BOTH, MEMORY = "forward", "forward + backward", "memory"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
BASELINES = {"cuda": ("flash", "cudnn"), "cpu": ("sdpa",)}
"""Attention without a bias by PyTorch itself, measured beside the engines."""
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
RATIOS = {"flash": "÷ flash", "cudnn": "÷ cudnn", "sdpa": "÷ sdpa without bias"}
"""Baselines to the name of a row's ratios."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"dtype": "bfloat16", "lengths": (2048, 8192, 32768), "tokens": 32768, "shared_layers": 12},
    "cpu": {"dtype": "float32", "lengths": (512, 2048), "tokens": None, "shared_layers": 0},
}


@dataclass(frozen=True)
class Case:
    """One row to be."""

    n: int
    encoding: str
    engine: str
    layers: int = 1

    def __str__(self) -> str:
        return f"{self.encoding} {self.engine} n={self.n}"


@dataclass(frozen=True)
class Setting:
    """What is measured: causal attention. `Setting.on` knows what is usual on a device."""

    device: str
    dtype: str
    lengths: tuple[int, ...]
    tokens: int | None
    """In all sequences together. None: one sequence."""
    shared_layers: int
    """Layers of FIRE-S, in an additional row. 0: no such row."""
    heads: int = 12
    head_dim: int = 64
    seconds: float = 1.0
    engines: tuple[str, ...] | None = None
    """None: all."""
    encodings: tuple[str, ...] | None = None
    """None: all that have a bias."""
    subject: str = "attention"

    @classmethod
    def on(cls, device: str | None = None, **options: Any) -> Self:
        """For a device (None: the GPU if there is one). Options that are None have the device's default."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        one_of("the device", device, DEFAULTS)
        given = {name: value for name, value in options.items() if value is not None}
        return cls(device, **(DEFAULTS[device] | given))

    def __post_init__(self) -> None:
        one_of("the device", self.device, DEFAULTS)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("there is no CUDA device here that torch can use. Measure on the cpu.")
        one_of("the dtype", self.dtype, DTYPES)
        if self.tokens is not None:
            at_least("tokens", self.tokens, 1)
        at_least("shared_layers", self.shared_layers, 0)
        for name in self.engines or ():
            if name not in ENGINES:
                raise ValueError(f"there is no engine named {name!r}. {hint(name, ENGINES)}")
        check_setting(self.lengths, self.heads, self.head_dim, self.seconds, self.encodings or ())

    def batch(self, n: int) -> int:
        """How many sequences of this length."""
        return max(1, (self.tokens or 0) // n)

    def cases(self) -> list[Case]:
        """Every measurement: for each length the baselines first, then FIRE, then the others."""
        names = self.encodings or sorted(with_bias(), key=lambda name: name != "fire")
        labels = [(name, 1) for name in names]
        if "fire" in names and self.shared_layers:
            labels.insert(labels.index(("fire", 1)) + 1, (FIRE_S, self.shared_layers))
        return [
            case
            for n in self.lengths
            for case in (
                *(Case(n, NO_BIAS, engine) for engine in BASELINES[self.device]),
                *(Case(n, label, engine, layers) for label, layers in labels for engine in self.engines or ENGINES),
            )
        ]


def measure(setting: Setting, save: Save = lambda record: None) -> dict[str, Any]:
    """Every case of the setting as a row of a record, which is saved after each."""
    return record_of(setting, measure_case, add_ratios, save)


def measure_case(setting: Setting, case: Case) -> dict[str, Any]:
    """A row: errors, times and memory, or why there are none."""
    row: dict[str, Any] = {
        "encoding": case.encoding,
        "engine": case.engine,
        "n": case.n,
        "batch": setting.batch(case.n),
    }
    if case.layers > 1:
        row["layers"] = case.layers
    try:
        release_memory(setting.device)
        _fill(row, setting, case)
    except torch.OutOfMemoryError:
        row["not run"] = f"{_stage(row)}: out of memory ({total_memory(setting.device) / 1e9:.0f} GB)"
    except Exception as error:  # one engine's failure, whatever it is, must not cost the other rows
        reason = f"{_stage(row)}: {type(error).__name__}: {str(error).strip()}".splitlines()[0]
        row["not run" if case.encoding == NO_BIAS else "failed"] = reason
    return row


def _fill(row: dict[str, Any], setting: Setting, case: Case) -> None:
    if too_big := _too_big(setting, case, FORWARD):
        row["not run"] = too_big
        return
    layers, encoding = _inputs(setting, case)
    if encoding is not None:
        q, k, v = layers[0]
        with torch.no_grad():
            bias = _bias(case, encoding)
        try:
            attention_plan(q, k, v, bias, impl=case.engine)
        except ValueError as refusal:
            row["not run"] = str(refusal)
            return
        del bias
    errors = _errors(setting, case)
    row["errors"] = {name: [_rounded(error) for error in pair] for name, pair in errors.items()}
    interpolated = encoding is not None and getattr(ENGINES[case.engine], "interpolates", _never)(encoding)
    wrong = correctness.verdict(errors, interpolated, DTYPES[setting.dtype])
    if wrong is not None and encoding is not None:  # PyTorch's own attention is measured as it is
        row["wrong"] = wrong
        return

    def forward() -> list[Tensor]:
        return _attend(case, layers, encoding)

    wanted = [tensor for layer in layers for tensor in layer]
    wanted += [] if encoding is None else list(encoding.parameters())
    upstream = [torch.randn_like(layers[0][0])] * case.layers

    def both() -> Sequence[Tensor]:
        return torch.autograd.grad(forward(), wanted, upstream)

    replay = encoding is None or getattr(ENGINES[case.engine], "replays", False)
    with torch.no_grad():
        forward()
        row[FORWARD] = _per_layer(timed(forward, setting.seconds, setting.device, replay), case)
    if too_big := _too_big(setting, case, BOTH):
        row["not run"] = too_big
        return
    memory = added_memory(both, setting.device)
    row[BOTH] = _per_layer(timed(both, setting.seconds, setting.device, replay) | memory, case)


def _never(_encoding: PositionEncoding) -> bool:
    return False


def _stage(row: dict[str, Any]) -> str:
    """What a row that is not whole was at."""
    return BOTH if FORWARD in row else FORWARD if "errors" in row else "check against the reference"


def _too_big(setting: Setting, case: Case, what: str) -> str | None:
    """Why a case is not tried on the CPU, where too much would end the process. A GPU says so itself."""
    if setting.device != "cpu" or case.encoding == NO_BIAS:
        return None
    if case.layers == 1 and not getattr(ENGINES[case.engine], "dense", True):
        return None
    maps, hidden = (5, 0) if what == FORWARD else (7, 96)  # what was measured; hidden are FIRE's layers in training
    numbers = maps * setting.batch(case.n) * case.layers * setting.heads + hidden
    need = numbers * case.n**2 * 4
    free = available_memory()
    return f"{what}: needs about {need / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free" if need > 0.9 * free else None


def _inputs(setting: Setting, case: Case) -> tuple[list[tuple[Tensor, ...]], PositionEncoding | None]:
    """q, k and v of every layer, and the encoding."""
    torch.manual_seed(0)
    shape = (setting.batch(case.n), setting.heads, case.n, setting.head_dim)
    options: dict[str, Any] = {"device": setting.device, "dtype": DTYPES[setting.dtype], "requires_grad": True}
    layers = [tuple(torch.randn(shape, **options) for _ in range(3)) for _ in range(case.layers)]
    name = _encoding_name(case)
    if name is None:
        return layers, None
    return layers, correctness.build_for(name, setting.heads, setting.head_dim, case.n).to(setting.device)


def _encoding_name(case: Case) -> str | None:
    return {NO_BIAS: None, FIRE_S: "fire"}.get(case.encoding, case.encoding)


def _attend(case: Case, layers: Sequence[Sequence[Tensor]], encoding: PositionEncoding | None) -> list[Tensor]:
    """The output of every layer. What is timed."""
    if encoding is None:
        with sdpa_kernel(BACKENDS[case.engine]) if case.engine in BACKENDS else nullcontext():
            return [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in layers]
    bias = _bias(case, encoding)
    return [attention(q, k, v, bias, impl=case.engine) for q, k, v in layers]


def _bias(case: Case, encoding: PositionEncoding) -> PositionEncoding | PreparedBias:
    """What attention is given: the encoding, or its bias made once for all layers."""
    if case.encoding != FIRE_S:
        return encoding
    positions = torch.arange(case.n, device=next(encoding.parameters()).device)
    return prepare_bias(encoding, positions, positions, in_order=True)


def _errors(setting: Setting, case: Case) -> dict[str, tuple[float, float]]:
    sample = correctness.make_sample(
        _encoding_name(case), case.n, setting.head_dim, DTYPES[setting.dtype], setting.device
    )
    return correctness.check(lambda q, k, v, encoding: _attend(case, [(q, k, v)], encoding)[0], sample)


def _rounded(error: float) -> float | None:
    """With three digits; None, which JSON knows, for what is not finite."""
    return float(f"{error:.3g}") if math.isfinite(error) else None


def _per_layer(found: dict[str, float], case: Case) -> dict[str, float]:
    return {name: value if name == "calls" else round(value / case.layers, 3) for name, value in found.items()}


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Give every row what it takes relative to attention without a bias at its length, from the same run.

    Layers that share are also compared with those that do not. What is missing on either side is left out.
    """
    by_case = {(row["encoding"], row["engine"], row["n"]): row for row in rows}
    for row in rows:
        against = {ratio: (NO_BIAS, baseline) for baseline, ratio in RATIOS.items()}
        if row["encoding"] == FIRE_S:
            against["÷ not shared"] = ("fire", row["engine"])
        for name, (encoding, engine) in against.items():
            other = by_case.get((encoding, engine, row["n"]))
            if other is not None and (found := _ratios(row, other)):
                row[name] = found


def _ratios(row: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    places = {FORWARD: (FORWARD, "ms"), BOTH: (BOTH, "ms"), MEMORY: (BOTH, "peak_mb")}
    found = {}
    for name, (part, key) in places.items():
        over, under = row.get(part, {}).get(key), other.get(part, {}).get(key)
        if over is not None and under:
            found[name] = round(over / under, 3)
    return found
