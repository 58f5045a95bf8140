"""Base of all benchmarks: measure cases one by one and save the record after each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch.nn.attention import SDPBackend
from tqdm import tqdm

from longfire.bench.timing import release_memory, total_memory
from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.encodings.registry import SHARED
from longfire.evaluation.record import Save, interruptible
from longfire.provenance import kernel_hash, provenance
from longfire.validation import at_least, error_summary, hint, one_of, positive

NO_BIAS, FIRE_S = "no bias", f"fire{SHARED}"
FORWARD, BOTH = "forward", "forward + backward"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
"""PyTorch's attention kernels by name."""

Row = dict[str, Any]


def with_bias() -> list[str]:
    """Names of the encodings that have a bias."""
    return [name for name, cls in ENCODINGS.items() if cls.bias is not PositionEncoding.bias]


@dataclass(frozen=True)
class Case:
    """One measurement."""

    n: int
    """Tokens in a sequence, or in the cache when decoding."""
    encoding: str
    engine: str | None = None
    """An engine of `longfire.attention` or, without a bias, a kernel of PyTorch. None: not chosen."""
    kind: str | None = None
    """What a model does: forward, training or decoding."""
    layers: int = 1
    """Layers that share one encoding."""
    arrangement: str | None = None
    """How tokens are laid out, as in `layouts.ARRANGEMENTS`. None: causal rows."""

    def __str__(self) -> str:
        return name_of(self.kind, self.arrangement, self.encoding, self.engine, self.n)

    @property
    def encoding_name(self) -> str | None:
        """The name in the registry; None without a bias."""
        return {NO_BIAS: None, FIRE_S: "fire"}.get(self.encoding, self.encoding)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure and where. The fields are stored in the record; `on` fills in a device's defaults.

    Subclasses list their cases, measure one case, and compare rows with their baseline.
    """

    device: str
    dtype: str
    seconds: float = 1.0
    """Duration of each measurement."""
    encodings: tuple[str, ...] | None = None
    """None: all measurable ones."""
    subject: str = ""

    defaults: ClassVar[dict[str, dict[str, Any]]]
    """Default options by device."""

    @classmethod
    def on(cls, device: str | None = None, **options: Any) -> Self:
        """Build with a device's defaults for missing and None options. Default device: the GPU, if there is one."""
        device = device or ("cuda" if "cuda" in cls.defaults and torch.cuda.is_available() else "cpu")
        one_of("the device", device, cls.defaults)
        chosen = {name: value for name, value in options.items() if value is not None}
        return cls(device=device, **(cls.defaults[device] | chosen))

    def __post_init__(self) -> None:
        one_of("the device", self.device, self.defaults)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("torch finds no CUDA device. Use --device cpu.")
        one_of("the dtype", self.dtype, DTYPES)
        positive("seconds", self.seconds, zero_too=True)
        known = self.measurable()
        for name in self.encodings or ():
            if name in ENCODINGS and name not in known:
                raise ValueError(f"{name!r} has no bias to measure. Known: {', '.join(known)}.")
            if name not in known:
                raise ValueError(f"there is no encoding named {name!r}. {hint(name, known)}")

    def measurable(self) -> list[str]:
        """Valid names for `encodings`."""
        return with_bias()

    def cases(self) -> list[Case]:
        raise NotImplementedError

    def batch(self, case: Case) -> int:
        """Sequences per batch."""
        return 1

    def labels(self, case: Case) -> Row:
        """The row before anything is measured."""
        row: Row = {"kind": case.kind} if case.kind else {"engine": case.engine}
        row |= {"arrangement": case.arrangement} if case.arrangement else {}
        row |= {"encoding": case.encoding, "n": case.n, "batch": self.batch(case)}
        return row | ({"layers": case.layers} if case.layers > 1 else {})

    def measure(self, case: Case, row: Row) -> None:
        """Add the measurements to the row, or the reason under `not run` or `wrong`."""
        raise NotImplementedError

    def stage(self, row: Row) -> str:
        """The stage at which an unfinished row failed, such as `forward: `."""
        return ""

    def add_ratios(self, rows: list[Row]) -> None:
        """Add each row's ratios to the baseline, under the baseline's name."""

    def run(self, save: Save = lambda record: None) -> dict[str, Any]:
        """Measure all cases and save the record after each. An interrupted record has `interrupted`."""
        origin = provenance() | {"kernels": kernel_hash()}
        record: dict[str, Any] = {"provenance": origin, "setting": asdict(self), "rows": []}
        cases = tqdm(self.cases(), unit="case", desc=f"bench {self.subject}", disable=None)
        with interruptible(record, save), cases as progress:
            for case in progress:
                progress.set_postfix_str(str(case))
                record["rows"].append(self.measured(case))
                self.add_ratios(record["rows"])
                save(record)
        return record

    def measured(self, case: Case) -> Row:
        """Measure a case. Errors are recorded in its row and do not stop the others."""
        row = self.labels(case)
        try:
            release_memory(self.device)
            self.measure(case, row)
        except torch.OutOfMemoryError:
            row["not run"] = f"{self.stage(row)}out of memory ({total_memory(self.device) / 1e9:.0f} GB)"
        except Exception as error:
            row["not run" if case.encoding == NO_BIAS else "failed"] = f"{self.stage(row)}{error_summary(error)}"
        return row


def name_of(kind: str | None, arrangement: str | None, encoding: str, engine: str | None, n: int) -> str:
    """A case in a sentence."""
    where = arrangement and f"{arrangement},"
    return " ".join(part for part in (kind, where, encoding, engine, f"n={n}") if part)


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Refuse sizes and lengths below 1."""
    for name, value in sizes.items():
        if isinstance(value, int):
            at_least(name, value, 1)
        else:
            for length in value:
                at_least("a length", length, 1)
