"""Speed of the whole model with each encoding: forward, training and decoding, in one run.

On a GPU every layer is compiled (for decoding the whole step, as `generate` does with a static cache). Encodings
without a bias use PyTorch's fastest kernel, the baseline all of them, and rows name the kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch import config as functorch
from torch.nn.attention import sdpa_kernel
from transformers import StaticCache

from longfire.bench.benchmark import (
    BACKENDS,
    DTYPES,
    FIRE_S,
    FORWARD,
    Benchmark,
    Case,
    Row,
    check_sizes,
    with_bias,
)
from longfire.bench.timing import Call, timed
from longfire.encodings import ENCODINGS
from longfire.engines import attention_plan
from longfire.model import SIZES, LongfireConfig, LongfireForCausalLM
from longfire.validation import one_of

TRAINING, DECODING = "training", "decoding"
BASELINE = "rope"
MAIN = (BASELINE, "fire", FIRE_S)
"""Encodings measured in training and decoding."""
SPARE = 2048
"""Free slots in a static cache."""


@dataclass(frozen=True, kw_only=True)
class ModelBenchmark(Benchmark):
    """Forward with every encoding; training and decoding with RoPE, FIRE and FIRE-S."""

    size: str
    forward: tuple[int, ...]
    """Sequence lengths."""
    training: tuple[int, ...]
    decoding: tuple[int, ...]
    """Tokens in the cache."""
    tokens: int
    """Total per batch, except for decoding, which has `decoding_batch` sequences."""
    compile: bool
    kernels: tuple[str, ...]
    """PyTorch's kernels for encodings without a bias, the fastest last."""
    decoding_batch: int = 8
    subject: str = "model"

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "cuda": {
            "dtype": "bfloat16",
            "size": "base",
            "forward": (2048,),
            "training": (2048, 8192),
            "decoding": (8192, 32768),
            "tokens": 32768,
            "compile": True,
            "kernels": ("flash", "cudnn"),  # PyTorch's default, and its fastest
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

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("the size", self.size, SIZES)
        check_sizes(
            tokens=self.tokens,
            decoding_batch=self.decoding_batch,
            lengths=(*self.forward, *self.training, *self.decoding),
        )

    def measurable(self) -> list[str]:
        return [*ENCODINGS, FIRE_S]

    def batch(self, case: Case) -> int:
        return self.decoding_batch if case.kind == DECODING else max(1, self.tokens // case.n)

    def cases(self) -> list[Case]:
        """The baseline, then FIRE, then the other encodings."""
        every = sorted(self.measurable(), key=lambda name: MAIN.index(name) if name in MAIN else len(MAIN))
        chosen = {FORWARD: self.encodings or every, TRAINING: MAIN, DECODING: MAIN}
        return [
            Case(n, name, kernel, kind)
            for kind, names in chosen.items()
            for n in getattr(self, kind)
            for name in names
            for kernel in self._kernels(kind, name)
        ]

    def _kernels(self, kind: str, name: str) -> tuple[str | None, ...]:
        if kind == DECODING or name in (*with_bias(), FIRE_S):
            return (None,)  # the same for all encodings
        return self.kernels if name == BASELINE else self.kernels[-1:]

    def config(self, case: Case) -> LongfireConfig:
        name = str(case.encoding_name)
        return LongfireConfig.of_size(
            self.size,
            position_encoding={"name": name, **ENCODINGS[name].example},
            share_position_encoding=case.encoding == FIRE_S,
            max_position_embeddings=case.n + SPARE,
        )

    def measure(self, case: Case, row: Row) -> None:
        torch.compiler.reset()
        with attention_kernel(case.engine):
            model: Any = LongfireForCausalLM(self.config(case))
            model.to(self.device)
            row["engine"] = engine_name(self, case, model)
            if self.compile and case.kind != DECODING:
                model.model.compile_layers()
            shape = (row["batch"], case.n if case.kind != DECODING else 1)
            ids = torch.randint(0, model.config.vocab_size, shape, device=self.device)  # (B, n)
            call = CALLS[str(case.kind)](self, model, ids, case.n)
            row.update(time_call(call, self.seconds, self.device, replay=case.kind == FORWARD))
        row["tokens/s"] = round(1e3 * ids.numel() / row["ms"])

    def add_ratios(self, rows: list[Row]) -> None:
        add_ratios(rows)


@contextmanager
def attention_kernel(name: str | None) -> Iterator[None]:
    """Restrict PyTorch's attention to one kernel. Compiled graphs are bound to theirs, so their cache is disabled."""
    chosen = sdpa_kernel(BACKENDS[name]) if name in BACKENDS else nullcontext()
    with chosen, functorch.patch(enable_autograd_cache=False):
        yield


def engine_name(benchmark: ModelBenchmark, case: Case, model: Any) -> str:
    """The engine that attention runs on, or the kernel of PyTorch's SDPA."""
    if case.engine is not None:
        return "sdpa" if case.engine == "sdpa" else f"sdpa {case.engine}"
    encoding, config = model.model.encodings[0], model.config
    H, D, T = config.num_attention_heads, config.head_dim, 1 if case.kind == DECODING else case.n
    device, dtype = benchmark.device, DTYPES[benchmark.dtype]
    q, k = (torch.empty(1, H, length, D, device=device, dtype=dtype) for length in (T, case.n))
    mask = torch.ones(1, case.n, dtype=torch.bool, device=device) if case.kind == DECODING else None
    with torch.set_grad_enabled(case.kind == TRAINING):
        return attention_plan(q, k, k, encoding if encoding.has_bias else None, key_mask=mask).engine


def forward_pass(benchmark: ModelBenchmark, model: Any, ids: Tensor, n: int) -> Call:
    """Logits of all tokens, without gradients."""
    model = model.to(DTYPES[benchmark.dtype]).eval()

    @torch.no_grad()
    def call() -> Any:
        return model(ids, use_cache=False).logits

    return call


def training_step(benchmark: ModelBenchmark, model: Any, ids: Tensor, n: int) -> Call:
    """One AdamW step with float32 weights under autocast, as in Hugging Face's Trainer."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    dtype = DTYPES[benchmark.dtype]

    def call() -> None:
        with torch.autocast(benchmark.device, dtype, enabled=dtype != torch.float32):
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def decoding_step(benchmark: ModelBenchmark, model: Any, ids: Tensor, n: int) -> Call:
    """One more token for every sequence, from a static cache that contains n."""
    device, dtype = torch.device(benchmark.device), DTYPES[benchmark.dtype]
    model = model.to(dtype).eval()
    config, batch, slots = model.config, len(ids), n + SPARE
    cache: Any = StaticCache(config, max_cache_len=slots)
    cache.early_initialization(batch, config.num_attention_heads, config.head_dim, dtype, device)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
        layer.cumulative_length.fill_(n)
    position_ids = torch.full((batch, 1), n, device=device)
    mask = (torch.arange(slots, device=device) <= n).expand(batch, 1, 1, slots).contiguous()
    step = torch.compile(model, fullgraph=True, mode="reduce-overhead") if benchmark.compile else model

    @torch.no_grad()
    def call() -> None:
        step(ids, past_key_values=cache, position_ids=position_ids, attention_mask=mask, use_cache=True)
        for layer in cache.layers:  # rewind, so that every step is the first after n
            layer.cumulative_length.fill_(n)

    return call


CALLS = {FORWARD: forward_pass, TRAINING: training_step, DECODING: decoding_step}


def time_call(call: Call, seconds: float, device: str, replay: bool) -> Row:
    """Warm up, then time the call; with `replay`, as a CUDA graph."""
    for _ in range(3):
        call()
    if device != "cuda":
        return dict(timed(call, seconds, device))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    found = timed(call, seconds, device, replay)
    return {**found, "peak_mb": round(torch.cuda.max_memory_allocated() / 1e6)}


def add_ratios(rows: list[Row]) -> None:
    """Add each row's time relative to the baseline on each of its kernels: `÷ rope (sdpa flash)`."""
    for base in (row for row in rows if row["encoding"] == BASELINE and "ms" in row):
        for row in rows:
            if "ms" in row and all(base[key] == row[key] for key in ("kind", "n")):
                row[f"÷ {BASELINE} ({base['engine']})"] = round(row["ms"] / base["ms"], 3)
