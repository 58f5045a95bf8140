"""The processes that torchrun started, by the environment: known before a process group exists."""

import os


def world_size() -> int:
    """Number of processes started by torchrun; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_sharding() -> None:
    """Refuse --fsdp without processes to shard a model across."""
    if "WORLD_SIZE" not in os.environ:
        raise ValueError(
            "--fsdp needs torchrun, even for one GPU: torchrun --nproc-per-node 8 -m longfire …; or omit --fsdp."
        )


def is_first() -> bool:
    """Whether this is torchrun's first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0
