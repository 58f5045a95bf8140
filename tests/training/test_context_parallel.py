"""Pretraining with sequences split across ranks, against one process.

Four processes are started once and train several runs.
"""

import os
import re

import pytest
import torch
import torch.distributed as dist

from longfire.cli import main
from longfire.training import pretrain
from longfire.training.context_parallel import own_share
from tests.ranks import start_ranks
from tests.training.runs import QUIET, RECIPE, StopError, assert_same_to_rounding, at_step, raises

WORLD = 4
PACKED = RECIPE.but(encoding="kerple_log", packing="segments", steps=6)
RUNS = {  # ranks that share a row, tokens of a forward pass on each rank
    "accumulated": (4, 8),
    "resumed in larger groups": (4, None),
    "packed": (2, None),
}


def work(rank, corpus, documents, folder):
    """One of the processes."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # accelerate wants them; the group exists
    for name, (ranks, tokens) in RUNS.items():
        recipe, text = (PACKED, documents) if name == "packed" else (RECIPE, corpus)
        arguments = recipe.but(max_tokens_per_device=tokens), text, folder / name
        if name.startswith("resumed"):
            with at_step(6, raises(StopError)), pytest.raises(StopError):
                pretrain(*arguments, context_parallel=2, **QUIET)
            assert (folder / name / "checkpoint-4").exists()
        pretrain(*arguments, context_parallel=ranks, **QUIET)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(corpus, documents, tmp_path_factory):
    """The folder of the runs in four processes."""
    folder = tmp_path_factory.mktemp("ranks")
    start_ranks(work, (corpus, documents, folder), WORLD)
    return folder


@pytest.fixture(scope="module")
def packed(documents, tmp_path_factory):
    run = tmp_path_factory.mktemp("packed")
    pretrain(PACKED, documents, run, **QUIET)
    return run


@pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL refuses several processes on one GPU")
@pytest.mark.parametrize("name", RUNS)
def test_as_in_one_process(name, trained, undisturbed, packed):
    assert_same_to_rounding(trained / name, packed if name == "packed" else undisturbed)


def test_labels_across_the_edges_of_shares():
    """Shifted in the whole row: the last token of a chunk is labelled with the first of the next."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ids = torch.arange(16).view(2, 8)
    share = own_share({"input_ids": ids, "labels": ids}, dist.group.WORLD)
    dist.destroy_process_group()
    assert set(share) == {"input_ids", "shift_labels", "sequence_group"}
    assert torch.equal(share["shift_labels"][:, :-1], ids[:, 1:])
    assert share["shift_labels"][:, -1].tolist() == [-100, -100]


@pytest.mark.parametrize(
    ("options", "processes", "message"),
    [
        (
            [],
            None,
            "needs a multiple of 2 processes, but without torchrun, there is 1. Use torchrun --nproc-per-node 2",
        ),
        ([], 3, "needs a multiple of 2 processes, but torchrun starts 3. Use torchrun --nproc-per-node 4"),
        (["--context-parallel", "0"], 2, r"--context-parallel \(ranks that share a sequence\) must be .*not 0"),
        (["--length", "66"], 2, "the length must be a multiple of 4, not 66: use 68, or another number of ranks"),
        (["--set", "attention_dropout=0.1"], 2, r"attention_dropout must be 0, not 0.1.*--set attention_dropout=0"),
        (["--set", "dropout=0.1"], 2, "dropout must be 0, not 0.1"),
        (["--set", "compile=True"], 2, "compile must be False"),
        (["--set", "cuda_graphs=True"], 2, "cuda_graphs must be False"),
        (["--set", "random_positions=128"], 2, "random_positions must be None, not 128"),
        (["--task", "copy", "--length", "8"], 2, "train on text: rows of the task copy"),
    ],
)
def test_refused_before_any_text_is_read(options, processes, message, monkeypatch, capsys, tmp_path):
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", str(processes))
    missing = ["--out", str(tmp_path / "run"), "--context-parallel", "2", *options]
    assert main(["pretrain", "tiny", *missing]) != 0
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
