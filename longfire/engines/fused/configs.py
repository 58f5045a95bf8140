"""Tile shapes and pipelining for each kernel: what was fastest on an H200, by head size and precision."""

from typing import NamedTuple

import torch


class Config(NamedTuple):
    """Rows and columns of a tile, warps, stages."""

    BM: int
    BN: int
    warps: int
    stages: int
    more: dict[str, int] = {}  # noqa: RUF012


def config(kernel: str, D: int, dtype: torch.dtype) -> Config:
    """For one of the kernels "forward", "queries", "keys" and "near_biases"."""
    if dtype == torch.float32:
        return Config(64, 64, 4 if D <= 64 else 8, 1)
    return TABLE[kernel, D <= 64]


TABLE = {
    ("forward", True): Config(128, 64, 4, 3),
    ("forward", False): Config(128, 64, 8, 3),
    ("queries", True): Config(128, 64, 8, 2),
    ("queries", False): Config(64, 64, 4, 2),
    ("keys", True): Config(64, 128, 8, 2),
    ("keys", False): Config(64, 64, 4, 2),
    ("near_biases", True): Config(64, 64, 4, 2),
    ("near_biases", False): Config(64, 64, 4, 1),
}
