"""Replayed operators do what the recorded function does: with other tensors, in other shapes, on other threads."""

import json
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longfire import FIRE, T5, attention, replay
from longfire.replay import Replayed

device = "cuda" if torch.cuda.is_available() else "cpu"
GLOBAL = torch.ones(3)


def counted(function):
    """A replayed function and how often the function itself has run."""
    calls = []
    return Replayed(lambda *arguments: (calls.append(None), function(*arguments))[1]), calls


def mixed(x, y, number):
    """New tensors, views, lists of tensors, keyword arguments, in-place changes."""
    total = x.new_zeros(2, 3)
    total += number * x
    first, second = (total + y).chunk(2)
    scratch = torch.empty_like(first).fill_(number)
    return torch.cat([first, second * scratch], dim=0).sum(0, dtype=torch.float64), total[0]


def test_same_results():
    function, calls = counted(mixed)
    for _ in range(5):
        x, y = torch.randn(2, 2, 3)
        for found, expected in zip(function(x, y, 0.1), mixed(x, y, 0.1), strict=True):
            assert torch.equal(found, expected)
    assert len(calls) == 2  # once to see whether there is a second time, once recorded


def test_arguments_that_were_the_same_tensor():
    function, calls = counted(lambda x, y: x - y)
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(3):
        assert not function(x, x).any()
    assert torch.equal(function(x, y), x - y)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:2],
        lambda x: x.mT,
        lambda x: x.double(),
        lambda x: x.to("meta"),
        lambda x: torch.cat([x.flatten(), x[0]])[1:10].view(3, 3),
    ],
    ids=["shape", "strides", "dtype", "device", "alignment"],
)
def test_other_tensors_have_a_tape_of_their_own(change):
    function, calls = counted(lambda x: x + 1)
    x = torch.randn(3, 3)
    for _ in range(3):
        function(x)
    result = function(change(x))
    assert len(calls) == 3
    assert result.is_meta or torch.equal(result, change(x) + 1)


def test_numbers_are_constants():
    function, calls = counted(lambda x, number, text: x * number)
    x = torch.randn(3)
    for number in (0.1, float("inf"), -0.5, 3, True) * 3:
        assert torch.equal(function(x, number, "it's"), x * number)
    assert len(calls) == 10


@pytest.mark.parametrize("function", [lambda x: x * x.sum().item(), lambda x: x + GLOBAL], ids=["value", "global"])
def test_what_depends_on_more_is_not_replayed(function):
    function, calls = counted(function)
    for number in range(1, 5):
        GLOBAL.fill_(number)
        x = torch.full((3,), number)
        assert torch.equal(function(x), function.function(x))
    assert len(calls) == 8


def test_tensors_are_freed_after_their_last_use():
    alive = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            most.append(sum(tensor() is not None for tensor in alive))
            alive.append(weakref.ref(result))
            return result

    def long(x):
        for _ in range(6):
            x = x.sin()
        return x

    function = Replayed(long)
    for _ in range(3):
        most = []
        with Watch():
            function(torch.randn(3))
    assert max(most) <= 2


def test_the_oldest_tape_is_dropped(monkeypatch):
    monkeypatch.setattr(replay, "MOST_TAPES", 2)
    function, calls = counted(lambda x: x + 1)
    for size in (1, 2, 1, 1, 3, 2, 2, 1):
        function(torch.zeros(size))
    assert len(calls) == 6  # 3 took the place of 1, which is then new


def test_threads():
    function = Replayed(mixed)

    def work(seed):
        x, y = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(seed))
        results = [function(x, y, seed % 3) for _ in range(20)]
        return all(torch.equal(result[0], mixed(x, y, seed % 3)[0]) for result in results)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))


# --- kernels --------------------------------------------------------------------------------------------------------

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

LAYOUTS = {
    "grouped heads": {},
    "a mask, and dropout": {"key_mask": torch.arange(12, device=device)[None] != 7, "dropout_p": 0.25},
    "packed documents in a window": {"segment_ids": torch.arange(12, device=device)[None] // 5, "window": 4},
    "gaps": {"q_positions": torch.arange(8, 12, device=device) * 2, "k_positions": torch.arange(12, device=device) * 2},
}


@needs_triton
@pytest.mark.parametrize(("make", "layout"), [(FIRE, "grouped heads"), *((T5, layout) for layout in LAYOUTS)])
def test_attention(make, layout, monkeypatch):
    """Calls differ in their tensors alone, so the third is replayed, forward and backward."""
    encoding = make(2).to(device)
    if make is FIRE and device == "cpu":
        encoding.requires_grad_(False)  # its gradients take 20 seconds in the interpreter
    tapes = []
    record = replay.record
    monkeypatch.setattr(replay, "record", lambda *call: (tapes.append(record(*call)), tapes[-1])[1])

    def run(q, k, v):
        torch.manual_seed(1)
        out = attention(q, k, v, encoding, impl="fused", **LAYOUTS[layout])
        wanted = [q, k, v, *(parameter for parameter in encoding.parameters() if parameter.requires_grad)]
        return out, *torch.autograd.grad(out.square().sum(), wanted)

    for _ in range(3):
        q = torch.randn(1, 2, 4, 16, device=device, requires_grad=True)
        k, v = torch.randn(2, 1, 1, 12, 16, device=device).requires_grad_()
        replayed = run(q, k, v)
    assert len(tapes) >= 2
    assert all(tape.__name__ == "tape" for _, tape in tapes)
    monkeypatch.setattr(Replayed, "__call__", lambda self, *arguments: self.function(*arguments))
    assert all(map(torch.equal, replayed, run(q, k, v)))


LAUNCHES = """
import json
import torch
import triton
import triton.language as tl
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from typing import Any, NamedTuple
from longfire.replay import Kernel, Replayed
from tests.engines.fused.compile_ahead import Absent

class Row(NamedTuple):
    at: Any
    stride: Any

@Kernel
@triton.jit(do_not_specialize=["n"])
def scale(X, Out, Nothing, n, factor, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out.at + i * Out.stride, tl.load(X + i, mask=i < n) * factor, mask=i < n)

def plain(value):
    if isinstance(value, torch.Tensor):
        return "x" if value.data_ptr() == x.data_ptr() else "out"
    return [type(value).__name__, *map(plain, value)] if isinstance(value, tuple) else value

def run(*launch):
    print(json.dumps([*launch[1:5], *map(plain, launch[10:])]))

driver.set_active(Absent(90))
CompiledKernel._init_handles = lambda self: None
CompiledKernel.run = run

def doubled(x):
    out = torch.empty_like(x)
    scale[3, 2](X=x, Out=Row(out, out.stride(0)), Nothing=None, n=len(x), factor=2.0, N=16, num_warps=2)
    return out

function, x = Replayed(doubled), torch.zeros(10)
for _ in range(4):
    function(x)
"""


@needs_triton
def test_launches_have_the_same_arguments(tmp_path):
    """Compiled for a GPU that need not be there: what is replayed passes what Triton passed."""
    script = tmp_path / "launches.py"  # Triton reads the source of kernels
    script.write_text(LAUNCHES)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    launches = [json.loads(line) for line in ended.stdout.splitlines()]
    assert launches[0] == [3, 2, 1, 0, "x", ["Row", "out", 1], None, 10, 2.0, 16]
    assert launches == launches[:1] * 4
