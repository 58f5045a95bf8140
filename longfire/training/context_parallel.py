"""Split the sequences of a pretraining run across ranks: which recipes allow it, and each rank's share of a batch."""

import os
from typing import Any

import torch.distributed as dist
from accelerate.data_loader import BatchSamplerShard  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from longfire.model.loss import IGNORED
from longfire.parallel import shard
from longfire.training.processes import world_size
from longfire.training.recipes import Recipe
from longfire.validation import at_least


def check_context_parallel(recipe: Recipe, ranks: int) -> None:
    """Refuse a recipe whose sequences cannot be split across this many ranks."""
    at_least("--context-parallel (ranks that share a sequence)", ranks, 1)
    if ranks == 1:
        return
    with_it, length = f"with --context-parallel {ranks}", recipe.length
    if recipe.task is not None:
        raise ValueError(
            f"{with_it}, train on text: rows of the task {recipe.task} are too short to be worth splitting."
        )
    if length % (2 * ranks):
        raise ValueError(
            f"{with_it}, the length must be a multiple of {2 * ranks}, not {length}: use "
            f"{-(-length // (2 * ranks)) * 2 * ranks}, or another number of ranks."
        )
    for name in ("dropout", "attention_dropout"):
        if value := getattr(recipe, name):
            raise ValueError(
                f"{with_it}, {name} must be 0, not {value}: ranks would drop the same units (--set {name}=0)."
            )
    if recipe.random_positions is not None:
        raise ValueError(
            f"{with_it}, random_positions must be None, not {recipe.random_positions}: each rank would draw its own."
        )
    for name in ("compile", "cuda_graphs"):
        if getattr(recipe, name):
            raise ValueError(f"{with_it}, {name} must be False: compiled layers cannot exchange keys between ranks.")


def check_processes(ranks: int) -> None:
    """Refuse to run without the processes that share the sequences."""
    processes = world_size()
    if processes % ranks:
        started = "torchrun starts" if "WORLD_SIZE" in os.environ else "without torchrun, there is"
        raise ValueError(
            f"--context-parallel {ranks} needs a multiple of {ranks} processes, but {started} {processes}. Use "
            f"torchrun --nproc-per-node {-(-processes // ranks) * ranks} -m longfire pretrain …"
        )


def assign_rows(loader: DataLoader[Any], ranks: int) -> None:
    """Give the ranks of a group the same rows: they count as one process of accelerate's data loader."""
    sampler = loader.batch_sampler
    assert isinstance(sampler, BatchSamplerShard)
    sampler.num_processes = dist.get_world_size() // ranks
    sampler.process_index = dist.get_rank() // ranks


def own_share(batch: dict[str, Any], group: dist.ProcessGroup) -> dict[str, Any]:
    """This rank's share of a batch of whole rows. Labels are shifted first: the next token may be on another rank."""
    whole: dict[str, Tensor] = dict(batch)
    if "labels" in whole:
        whole["shift_labels"] = pad(whole.pop("labels")[:, 1:], (0, 1), value=IGNORED)
    return {**{name: shard(tensor, 1, group) for name, tensor in whole.items()}, "sequence_group": group}
