"""Processes of a process group, forked from one that has imported what they need."""

import multiprocessing

import torch.multiprocessing as mp

WORK = ["tests.test_parallel", "tests.training.test_context_parallel"]
"""All modules with functions to run: a test process has one server to fork from, whichever module asks first."""


def start_ranks(function, arguments, processes):
    """Run function(rank, *arguments) in several processes."""
    multiprocessing.set_forkserver_preload(WORK)
    mp.start_processes(function, arguments, nprocs=processes, start_method="forkserver")
