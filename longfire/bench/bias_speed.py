"""Time and peak memory of computing a bias: one sequence, float32, CPU, no gradients."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from longfire.bench.benchmark import Benchmark, Case, Row, check_sizes, with_bias
from longfire.bench.timing import added_memory, memory_shortage, timed
from longfire.encodings import build_encoding


@dataclass(frozen=True, kw_only=True)
class BiasBenchmark(Benchmark):
    """The bias of every encoding at every length."""

    lengths: tuple[int, ...]
    heads: int = 12
    head_dim: int = 64
    seconds: float = 2.0
    subject: str = "bias"

    defaults: ClassVar[dict[str, dict[str, Any]]] = {"cpu": {"dtype": "float32", "lengths": (512, 2048, 8192)}}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(heads=self.heads, head_dim=self.head_dim, lengths=self.lengths)

    def cases(self) -> list[Case]:
        return [Case(n, name) for n in self.lengths for name in self.encodings or with_bias()]

    @torch.no_grad()
    def measure(self, case: Case, row: Row) -> None:
        if shortage := memory_shortage(2 * self.heads * case.n**2 * 4):
            row["not run"] = shortage
            return
        torch.manual_seed(0)
        encoding = build_encoding(case.encoding, num_heads=self.heads, head_dim=self.head_dim)
        positions = torch.arange(case.n)

        def call() -> object:
            return encoding(positions, positions)

        memory = added_memory(call, "cpu")
        row |= timed(call, self.seconds, "cpu") | memory
