"""Kernels compile for chips that are not there, within their shared memory."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from longfire.engines.fused import engine

SHARED_MEMORY = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}
"""Bytes that a program may have on A100; L4 and RTX 4090; H100 and H200; B200."""

CASES = {80: ["FIRE, D = 64"], 89: [], 90: [], 100: ["FIRE, D = 64"]}
"""[] is all: sm_89 has the least memory, and on sm_90 kernels use the most."""


@pytest.fixture(scope="module")
def kernels():
    """By capability: name, case and shared memory of every kernel."""
    command = [sys.executable, "-m", "tests.engines.fused.compile_ahead", json.dumps(CASES)]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = {capability: [] for capability in CASES}
    for capability, *kernel in map(json.loads, ended.stdout.splitlines()):
        found[int(capability)].append(kernel)
    return found


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_fits(capability, kernels):
    assert len({name for name, *_ in kernels[capability]}) == (11 if CASES[capability] else 24)
    too_large = [kernel for kernel in kernels[capability] if kernel[2] > SHARED_MEMORY[capability]]
    assert not too_large


@pytest.mark.parametrize(
    ("capability", "memory", "wide", "message"),
    [
        ((7, 5), 65_536, False, "A100 or newer"),
        ((8, 0), SHARED_MEMORY[80], True, None),
        ((8, 9), SHARED_MEMORY[89], False, None),
        ((8, 9), SHARED_MEMORY[89], True, "float32 with head sizes above 64 needs 160 KiB of shared memory.* has 99"),
    ],
)
def test_gpus_that_are_refused(capability, memory, wide, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    properties = SimpleNamespace(shared_memory_per_block_optin=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    refusal = engine._refuses_device.__wrapped__(torch.device("cuda"), wide)
    assert refusal is None if message is None else re.search(message, refusal)
