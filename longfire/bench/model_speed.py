"""Speed of the whole model with each encoding: forward, training and decoding, side by side in one run.

On a GPU every layer is compiled (decoding: the whole step, as `generate` does with a static cache). Encodings that have
no bias are measured with the fastest of PyTorch's kernels, the baseline with each, and the kernel is named.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch._functorch import config as functorch
from torch.nn.attention import sdpa_kernel
from transformers import StaticCache

from longfire.bench.attention_speed import BACKENDS, DTYPES, FIRE_S
from longfire.bench.timing import release_memory, timed
from longfire.encodings import ENCODINGS
from longfire.engines import attention_plan
from longfire.evaluation.record import Save, record_of
from longfire.model import SIZES, LongfireConfig, LongfireForCausalLM
from longfire.validation import at_least, hint, one_of, positive

FORWARD, TRAINING, DECODING = "forward", "training", "decoding"
BASELINE = "rope"
MAIN = (BASELINE, "fire", FIRE_S)
"""Measured in training and decoding."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {
        "dtype": "bfloat16",
        "size": "base",
        "forward": (2048,),
        "training": (2048, 8192),
        "decoding": (8192, 32768),
        "tokens": 32768,
        "compile": True,
        "kernels": ("flash", "cudnn"),  # PyTorch's own choice, and the fastest there is
    },
    "cpu": {
        "dtype": "float32",
        "size": "tiny",
        "forward": (512,),
        "training": (512,),
        "decoding": (512,),
        "tokens": 2048,
        "compile": False,
        "kernels": ("sdpa",),
    },
}
SPARE = 2048
"""Places in a static cache beyond what it holds, for the tokens that are decoded while the clock runs."""


@dataclass(frozen=True)
class Case:
    """One row to be."""

    kind: str
    n: int
    encoding: str
    kernel: str | None = None
    """Of PyTorch, where there is no bias."""

    def __str__(self) -> str:
        return f"{self.kind} {self.encoding} {self.kernel or ''} n={self.n}".replace("  ", " ")


@dataclass(frozen=True)
class ModelSetting:
    """What is measured. `ModelSetting.on` knows what is usual on a device."""

    device: str
    dtype: str
    size: str
    forward: tuple[int, ...]
    """Lengths of sequences."""
    training: tuple[int, ...]
    decoding: tuple[int, ...]
    """Tokens in the cache."""
    tokens: int
    """In all sequences together; decoding has `decoding_batch` sequences."""
    compile: bool
    kernels: tuple[str, ...]
    decoding_batch: int = 8
    seconds: float = 1.0
    encodings: tuple[str, ...] | None = None
    """In forward. None: all."""
    subject: str = "model"

    @classmethod
    def on(cls, device: str | None = None, **options: Any) -> Self:
        """For a device (None: the GPU if there is one). Options that are None have the device's default."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        one_of("the device", device, DEFAULTS)
        given = {name: value for name, value in options.items() if value is not None}
        return cls(device, **(DEFAULTS[device] | given))

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("there is no CUDA device here that torch can use. Measure on the cpu.")
        one_of("the dtype", self.dtype, DTYPES)
        one_of("the size", self.size, SIZES)
        at_least("tokens", self.tokens, 1)
        at_least("decoding_batch", self.decoding_batch, 1)
        positive("seconds", self.seconds)
        for n in (*self.forward, *self.training, *self.decoding):
            at_least("a length", n, 1)
        for name in self.encodings or ():
            if name not in (*ENCODINGS, FIRE_S):
                raise ValueError(f"there is no encoding named {name!r}. {hint(name, [*ENCODINGS, FIRE_S])}")

    def batch(self, case: Case) -> int:
        """How many sequences."""
        return self.decoding_batch if case.kind == DECODING else max(1, self.tokens // case.n)

    def config(self, case: Case) -> LongfireConfig:
        """Of the model that is measured."""
        name = "fire" if case.encoding == FIRE_S else case.encoding
        return LongfireConfig.of_size(
            self.size,
            position_encoding={"name": name, **ENCODINGS[name].example},
            share_position_encoding=case.encoding == FIRE_S,
            max_position_embeddings=case.n + SPARE,
        )

    def cases(self) -> list[Case]:
        """Every measurement, the baseline first."""
        every = sorted((*ENCODINGS, FIRE_S), key=lambda name: MAIN.index(name) if name in MAIN else len(MAIN))
        chosen = {FORWARD: self.encodings or every, TRAINING: MAIN, DECODING: MAIN}
        return [
            Case(kind, n, name, kernel)
            for kind, names in chosen.items()
            for n in getattr(self, kind)
            for name in names
            for kernel in self._kernels(kind, name)
        ]

    def _kernels(self, kind: str, name: str) -> tuple[str | None, ...]:
        if name == FIRE_S or ENCODINGS[name].bias is not ENCODINGS["nope"].bias:
            return (None,)
        if kind == DECODING:
            return (None,)  # it has one kernel for all
        return self.kernels if name == BASELINE else self.kernels[-1:]


def measure_model(setting: ModelSetting, save: Save = lambda record: None) -> dict[str, Any]:
    """Every case of the setting as a row of a record, which is saved after each."""
    return record_of(setting, measure_case, add_ratios, save)


def measure_case(setting: ModelSetting, case: Case) -> dict[str, Any]:
    """A row: milliseconds and tokens a second, or why there are none."""
    row: dict[str, Any] = {"kind": case.kind, "encoding": case.encoding, "n": case.n, "batch": setting.batch(case)}
    try:
        release_memory(setting.device)
        torch.compiler.reset()
        with kernel(case.kernel):
            model: Any = LongfireForCausalLM(setting.config(case))
            model.to(setting.device)
            row["engine"] = engine(setting, case, model)
            row.update(CALLS[case.kind](setting, case, model))
    except torch.OutOfMemoryError:
        row["failed"] = "out of memory"
    except Exception as error:  # one encoding's failure, whatever it is, must not cost the other rows
        row["failed"] = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
    if "ms" in row:
        tokens = row["batch"] * (1 if case.kind == DECODING else case.n)
        row["tokens/s"] = round(1e3 * tokens / row["ms"])
    return row


@contextmanager
def kernel(name: str | None) -> Iterator[None]:
    """PyTorch's attention by this kernel alone. A compiled graph is bound to one, and its cache does not know which."""
    chosen = sdpa_kernel(BACKENDS[name]) if name in BACKENDS else nullcontext()
    with chosen, functorch.patch(enable_autograd_cache=False):
        yield


def engine(setting: ModelSetting, case: Case, model: Any) -> str:
    """What attention runs on, as a person would name it."""
    if case.kernel is not None:
        return f"sdpa {case.kernel}".replace("sdpa sdpa", "sdpa")
    encoding, config = model.model.encodings[0], model.config
    T = 1 if case.kind == DECODING else case.n
    shape = (1, config.num_attention_heads, config.head_dim)
    q, k = (torch.empty(*shape[:2], length, shape[2], device="meta") for length in (T, case.n))
    q, k = (torch.empty_like(x, device=setting.device, dtype=DTYPES[setting.dtype]) for x in (q, k))
    mask = torch.ones(1, case.n, dtype=torch.bool, device=setting.device) if case.kind == DECODING else None
    with torch.set_grad_enabled(case.kind == TRAINING):
        return attention_plan(q, k, k, encoding if encoding.has_bias else None, key_mask=mask).engine


def measure_forward(setting: ModelSetting, case: Case, model: Any) -> dict[str, Any]:
    """Logits of all tokens, without gradients."""
    model = model.to(DTYPES[setting.dtype]).eval()
    if setting.compile:
        model.model.compile_layers()
    ids = some_tokens(setting, case, model)

    @torch.no_grad()
    def call() -> Any:
        return model(ids, use_cache=False).logits

    return run(setting, call, replay=True)


def measure_training(setting: ModelSetting, case: Case, model: Any) -> dict[str, Any]:
    """A step of AdamW: weights in float32, products in the setting's precision, as Hugging Face's Trainer does it."""
    model.train()
    if setting.compile:
        model.model.compile_layers()
    ids = some_tokens(setting, case, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    dtype = DTYPES[setting.dtype]

    def call() -> None:
        with torch.autocast(setting.device, dtype, enabled=dtype != torch.float32):
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run(setting, call)


def measure_decoding(setting: ModelSetting, case: Case, model: Any) -> dict[str, Any]:
    """One more token for every sequence, from a static cache that holds n."""
    model = model.to(DTYPES[setting.dtype]).eval()
    config, batch = model.config, setting.batch(case)
    slots = case.n + SPARE
    cache: Any = StaticCache(config, max_cache_len=slots)
    cache.early_initialization(
        batch, config.num_attention_heads, config.head_dim, DTYPES[setting.dtype], torch.device(setting.device)
    )
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
        layer.cumulative_length.fill_(case.n)
    ids = some_tokens(setting, case, model)[:, :1].contiguous()
    position_ids = torch.full((batch, 1), case.n, device=setting.device)
    mask = (torch.arange(slots, device=setting.device) <= case.n).expand(batch, 1, 1, slots).contiguous()
    step = torch.compile(model, fullgraph=True, mode="reduce-overhead") if setting.compile else model

    @torch.no_grad()
    def call() -> Any:
        return step(ids, past_key_values=cache, position_ids=position_ids, attention_mask=mask, use_cache=True).logits

    def rewound() -> None:  # every step is the first after n
        call()
        for layer in cache.layers:
            layer.cumulative_length.fill_(case.n)

    return run(setting, rewound)


CALLS = {FORWARD: measure_forward, TRAINING: measure_training, DECODING: measure_decoding}


def some_tokens(setting: ModelSetting, case: Case, model: Any) -> Tensor:
    """(B, n)."""
    return torch.randint(0, model.config.vocab_size, (setting.batch(case), case.n), device=setting.device)


def run(setting: ModelSetting, call: Callable[[], object], replay: bool = False) -> dict[str, Any]:
    """Warm up, and time: with `replay`, as a CUDA graph."""
    for _ in range(3):
        call()
    if setting.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = timed(call, setting.seconds, setting.device, replay)
    if setting.device == "cuda":
        found["peak_mb"] = round(torch.cuda.max_memory_allocated() / 1e6)
    return found


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """To each row, by which factor it is slower than the baseline on each of its engines: `÷ rope (sdpa flash)`."""
    for base in (row for row in rows if row["encoding"] == BASELINE and "ms" in row):
        for row in rows:
            if "ms" in row and all(base[key] == row[key] for key in ("kind", "n")):
                row[f"÷ {BASELINE} ({base['engine']})"] = round(row["ms"] / base["ms"], 3)
