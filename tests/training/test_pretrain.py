"""Pretraining: the result of a run, accumulated, and as CUDA graphs."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longfire.data import load_corpus
from longfire.training import pretrain
from longfire.training.pretrain import uses_cuda_graphs
from tests.training.runs import QUIET, RECIPE, losses


def test_a_run(undisturbed, corpus):
    assert {path.name for path in undisturbed.iterdir()} - {".lock"} == {
        "recipe.json",
        "losses.jsonl",
        "model",
        "done.json",
    }
    done = json.loads((undisturbed / "done.json").read_text())
    assert done["tokens_seen"] == 12 * 4 * 32
    assert done["corpus"]["fingerprint"] == corpus.fingerprint
    assert done["provenance"]["versions"]["torch"] == torch.__version__
    found = losses(undisturbed)
    assert [step for step, *_ in found] == list(range(1, 13))
    assert found[-1][1] < found[0][1] - 0.3
    model = AutoModelForCausalLM.from_pretrained(undisturbed / "model")
    tokenizer = AutoTokenizer.from_pretrained(undisturbed / "model")
    ids = tokenizer("def main():", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape == (1, ids.shape[1], model.config.vocab_size)
    assert model.config.position_encoding == {"name": "fire", "init_L": 8.0, "horizon": 32, "init": "kerple_log"}


def test_tensorboard_is_written(corpus, tmp_path):
    pretrain(RECIPE.but(steps=2), corpus, tmp_path / "run", progress=False)
    (events,) = (tmp_path / "run" / "tensorboard").rglob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


def test_too_little_text(tmp_path):
    (tmp_path / "short.txt").write_text("word " * 200)
    corpus = load_corpus(tmp_path / "short.txt", tokenizer="bytes", cache_dir=tmp_path / "cache", progress=False)
    with pytest.raises(ValueError, match="training sequences of 512 tokens, but a step needs 4"):
        pretrain(RECIPE.but(length=512), corpus, tmp_path / "run", **QUIET)
    assert not (tmp_path / "run").exists()


def test_accumulation_changes_nothing_over_epochs(tmp_path):
    """28 sequences and a batch of 12: two whole steps per epoch, with and without accumulation."""
    (tmp_path / "text.txt").write_text("".join(chr(97 + n * n % 23) for n in range(1000)))
    corpus = load_corpus(tmp_path / "text.txt", cache_dir=tmp_path / "cache", progress=False)
    sequences = len(corpus.train.sequences(32))
    assert sequences % 12
    recipe = RECIPE.but(batch_size=12, steps=6)
    assert recipe.steps * 12 > 2 * sequences
    for name, tokens in (("whole", 12 * 32), ("parts", 4 * 32)):
        pretrain(recipe.but(max_tokens_per_device=tokens), corpus, tmp_path / name, **QUIET)
    for found, expected in zip(losses(tmp_path / "parts"), losses(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("device", "processes", "passes", "asked", "expected"),
    [
        ("cuda", 1, 1, None, True),
        ("cuda", 1, 2, None, False),
        ("cuda", 2, 1, None, False),
        ("cpu", 1, 1, None, False),
        ("cuda", 1, 1, False, False),
        ("cuda", 2, 1, True, True),
    ],
)
def test_when_cuda_graphs_are_used(device, processes, passes, asked, expected):
    args = SimpleNamespace(device=torch.device(device), world_size=processes, gradient_accumulation_steps=passes)
    assert uses_cuda_graphs(RECIPE.but(cuda_graphs=asked), args) is expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fire", "rope", "t5"])
def test_cuda_graphs_change_no_loss(name, corpus, tmp_path):
    found = {}
    for graphs in (False, True):
        torch.compiler.reset()
        recipe = RECIPE.but(encoding=name, cuda_graphs=graphs, length=128, steps=20)
        pretrain(recipe, corpus, tmp_path / str(graphs), **QUIET)
        found[graphs] = losses(tmp_path / str(graphs))
    if name == "rope":  # PyTorch's flash kernel adds gradients in no fixed order
        torch.testing.assert_close(torch.tensor(found[True]), torch.tensor(found[False]), rtol=1e-3, atol=0)
    else:
        assert found[True] == found[False]
    assert found[True][-1][1] < found[True][0][1]
