"""Tile shapes and pipelining for each kernel: what was fastest on an H200, by head size, precision and length."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Config:
    """How a kernel is cut and compiled."""

    BM: int = 64
    """Queries in a tile."""
    BN: int = 64
    """Keys in a tile."""
    warps: int = 4
    stages: int = 2
    """Of the pipeline."""
    near_stages: int | None = None
    """Of the pipeline where biases are near, if others: what is loaded ahead takes registers there."""
    registers: int | None = None
    """At most so many for a thread."""

    def launch(self) -> dict[str, int]:
        """As a launch takes it."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}

    def zones(self) -> dict[str, int]:
        """As a kernel with a loop for each zone takes it."""
        return {"STAGES": self.stages, "NEAR_STAGES": self.near_stages or self.stages}


NEAR_BYTES = 1 << 29
"""How much of the gradients of near biases is kept at a time; heads take turns."""
LONG = 16384
"""Keys from which a kernel is launched as for a long sequence."""

SHORT = {
    "forward": Config(registers=128),
    "queries": Config(registers=168),
    "keys": Config(stages=3, near_stages=1),
    "near_biases": Config(),
}
LONGER = {"forward": Config(stages=3), "keys": Config(stages=3)}
WIDE = {
    "forward": Config(),
    "queries": Config(),
    "keys": Config(stages=1),
    "near_biases": Config(stages=1),
}
"""Head sizes above 64."""


def config(kernel: str, D: int, dtype: torch.dtype, S: int) -> Config:
    """For one of the kernels "forward", "queries", "keys" and "near_biases"."""
    if dtype == torch.float32:
        return Config(warps=4 if D <= 64 else 8, stages=1)
    if D > 64:
        return WIDE[kernel]
    return SHORT[kernel] if S < LONG else {**SHORT, **LONGER}[kernel]
