"""The processes that torchrun started, by the environment: known before a process group exists."""

import os


def world_size() -> int:
    """Number of processes started by torchrun; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is torchrun's first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0
