"""A small recipe, and helpers to interrupt and compare its runs."""

import sys
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from longfire.training import RECIPES, callbacks
from longfire.training.callbacks import read_losses

RECIPE = RECIPES["tiny"].but(steps=12, batch_size=4, length=32, log_every=1, checkpoint_every=4)
OPTIONS = ["--steps", "12", "--batch", "4", "--length", "32", "--set", "log_every=1", "checkpoint_every=4"]
QUIET = {"tracker": "none", "progress": False}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip


class StopError(Exception):
    pass


def raises(error):
    def function(*_, **__):
        raise error

    return function


def command(text, out, *more):
    """The same recipe on the command line."""
    return [sys.executable, "-m", "longfire", "pretrain", "tiny", "--corpus", str(text), "--tokenizer", "bytes",
            "--out", str(out), "--tracker", "none", *OPTIONS, *more]  # fmt: skip


@contextmanager
def at_step(step, act):
    """Call `act` when a step ends."""
    original = callbacks.TrainingMonitor.on_step_end

    def on_step_end(self, args, state, control, **options):
        original(self, args, state, control, **options)
        if state.global_step == step:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks.TrainingMonitor, "on_step_end", on_step_end)
        yield


def losses(run):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in read_losses(run / "losses.jsonl")]


def weights(folder):
    return load_file(folder / "model.safetensors")


def same_weights(found, expected):
    return set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


def same_result(run, other):
    """The same losses and the same model, bit for bit."""
    return losses(run) == losses(other) and same_weights(weights(run / "model"), weights(other / "model"))


def assert_same_to_rounding(run, other):
    for found, expected in zip(losses(run), losses(other), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    found, expected = weights(run / "model"), weights(other / "model")
    assert set(found) == set(expected)
    for name, weight in found.items():
        if not name.endswith("mlp.4.bias"):  # softmax ignores it, so its gradient is rounding alone
            torch.testing.assert_close(weight, expected[name], atol=2e-5, rtol=0, msg=name)
    assert (run / "recipe.json").read_text() == (other / "recipe.json").read_text()
