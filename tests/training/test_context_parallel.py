"""Pretraining with sequences split across ranks, against one process.

Four processes are started once and train several runs.
"""

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from longfire.training import pretrain
from tests.training.runs import QUIET, RECIPE, StopError, at_step, losses, raises, weights

WORLD = 4
PACKED = {"packing": "segments", "encoding": "kerple_log", "init": None, "horizon": None}
RUNS = {  # the run in one process, ranks that share a row, tokens of a forward pass on each rank
    "two groups of two": ("whole", 2, None),
    "one group of four": ("whole", 4, None),
    "accumulated": ("whole", 4, 8),
    "resumed in other groups": ("whole", 4, None),
    "packed": ("packed", 2, None),
}
RECIPES = {"whole": RECIPE, "packed": RECIPE.but(**PACKED, steps=6)}


def train(name, corpus, folder):
    recipe, ranks, tokens = RUNS[name]
    recipe = RECIPES[recipe].but(max_tokens_per_device=tokens)
    if name.startswith("resumed"):
        with at_step(6, raises(StopError)), pytest.raises(StopError):
            pretrain(recipe, corpus, folder / name, context_parallel=2, **QUIET)
    pretrain(recipe, corpus, folder / name, context_parallel=ranks, **QUIET)


def work(rank, corpus, folder, port):
    """One of the processes."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name in RUNS:
        train(name, corpus, folder)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The folder of the runs in four processes."""
    folder = tmp_path_factory.mktemp("ranks")
    store = dist.TCPStore("localhost", 0, is_master=True)
    port, store = str(store.port), None
    multiprocessing.set_forkserver_preload([__name__])
    mp.start_processes(work, (corpus, folder, port), nprocs=WORLD, start_method="forkserver")
    return folder


@pytest.fixture(scope="module")
def expected(corpus, undisturbed, tmp_path_factory):
    """The same runs in one process."""
    folder = tmp_path_factory.mktemp("whole")
    pretrain(RECIPES["packed"], corpus, folder, **QUIET)
    return {"whole": undisturbed, "packed": folder}


@pytest.mark.parametrize("name", RUNS)
def test_as_in_one_process(name, trained, expected):
    """Losses, gradient norms and weights, to rounding."""
    run, whole = trained / name, expected[RUNS[name][0]]
    for found, step in zip(losses(run), losses(whole), strict=True):
        print(name, found, step)
        assert found == pytest.approx(step, rel=1e-4)
    found = weights(run / "model")
    for weight, other in weights(whole / "model").items():
        print(weight, float((found[weight] - other).abs().max()), float(other.abs().max()))
    assert (run / "recipe.json").read_text() == (whole / "recipe.json").read_text()
