"""Compile the fused kernels for GPUs that need not be there, in `CASES` that default to all.

`python -m tests.engines.fused.compile_ahead '{"90": [], "80": ["T5, D = 64"]}'` prints a line of JSON for each kernel:
the chip, the kernel's name, its case, and bytes of shared memory. A process of its own, because importing Triton
decides whether kernels are interpreted.
"""

import json
import sys
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from longfire import FIRE, T5
from longfire.encodings.kernels.fire import fire_bias
from longfire.engines.fused import lookup
from longfire.engines.fused.backward import backward
from longfire.engines.fused.bias import sample_bias
from longfire.engines.fused.bias_kernels import expand
from longfire.engines.fused.forward import forward
from longfire.engines.fused.layout import lookup_layout
from longfire.engines.fused.segments import segment_table
from longfire.engines.fused.tiles import Call, Segments
from longfire.engines.layout import Span

HEADS, SCALE = 4, 0.125


class Absent:
    """Triton's view of a GPU that is only compiled for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # compiled kernels are kept by device

    def get_current_stream(self, _: object = None) -> int:
        return 0


def compile_only() -> None:
    """From now on, launching a kernel compiles it and prints how much shared memory it needs."""
    launch = jit.JITFunction.run

    def run(self: Any, *arguments: Any, warmup: bool = False, **options: Any) -> Any:
        kernel = launch(self, *arguments, warmup=True, **options)
        print(json.dumps([capability, self.__name__, case, kernel.metadata.shared]), flush=True)
        return kernel

    jit.JITFunction.run = run


def inputs(D: int, length: int) -> Tensor:
    """q, k and v."""
    return torch.randn(3, 1, HEADS, length, D).bfloat16()


def tiles(encoding: Any, D: int, length: int, documents: int | None = None, tabulate: bool = True) -> None:
    """Forward and backward of causal attention, or of both sides; of packed documents if their number is given."""
    q, k, v = inputs(D, length)
    table = None
    if documents is not None:
        table = segment_table(torch.arange(length)[None] // (length // documents), 128, None)
    keys = length if table is None else table.longest
    sampled = sample_bias(encoding, keys, 0, q.device, causal=not encoding.bidirectional, tabulate=tabulate)
    bias = expand(sampled.samples.detach(), sampled.zones, True, SCALE)
    segments = None if table is None else Segments(table.tiles, table.segments)
    call = Call(q, k, v, bias, None, None, None, segments, sampled.zones, SCALE, 0.0)
    out, lse = forward(call)
    backward(call, out, out, lse, True)


def look_ups(D: int) -> None:
    """Forward and backward at any positions."""
    q, k, v = inputs(D, 130)
    span = Span(2 * torch.arange(130), None)
    layout = lookup_layout(span, span, None, True, None, None)
    table = torch.randn(HEADS, layout.distances)
    call = lookup.LookupCall(q, k, v, table, layout, None, None, None, True, SCALE, 0.0)
    out, lse = lookup.forward(call)
    lookup.backward(call, out, out, lse, True)


def own_bias(fire: FIRE) -> None:
    """FIRE's bias and its gradients."""
    positions = torch.arange(200)
    fire_bias(fire, positions, positions).sum().backward()


capability = case = ""
CASES = {
    "FIRE, D = 64": lambda: tiles(FIRE(HEADS), 64, 4096),
    "FIRE on both sides of packed documents, D = 128": lambda: tiles(FIRE(HEADS, bidirectional=True), 128, 4096, 2),
    "T5, D = 64": lambda: tiles(T5(HEADS), 64, 4096),
    "T5 by distance, D = 64": lambda: tiles(T5(HEADS), 64, 4096, tabulate=False),
    "any positions, D = 128": lambda: look_ups(128),
    "the bias of FIRE": lambda: own_bias(FIRE(HEADS)),
}

if __name__ == "__main__":
    torch.manual_seed(0)
    compile_only()
    for capability, cases in json.loads(sys.argv[1]).items():
        driver.set_active(Absent(int(capability)))
        for case in cases or CASES:
            CASES[case]()
