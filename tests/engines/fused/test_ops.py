"""The torch operators: well formed, compiled without graph breaks, one graph for many lengths."""

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from longfire import FIRE, T5, attention
from longfire.engines.fused import ops
from longfire.engines.fused.bias import sample_bias
from tests.engines.fused.cases import device


def test_operators_are_well_formed():
    bias = sample_bias(T5(1).to(device), 20, 0, torch.device(device))
    samples = bias.samples.detach()
    expanded = ops.expand_bias(samples, *bias.numbers(None), False, 0.25)
    q, k, v = (tensor.requires_grad_() for tensor in torch.randn(3, 1, 1, 20, 16, device=device))
    torch.library.opcheck(ops.expand_bias.op, (samples, *bias.numbers(None), False, 0.25))
    nothing = [None] * 5
    arguments = (q, k, v, samples.requires_grad_(), *expanded, *nothing, *bias.numbers(None), 0.25, 0.0)
    torch.library.opcheck(ops.fused_attention.op, arguments, raise_exception=True)


def test_grouped_heads_compile_with_gradients():
    encoding = T5(4).to(device)
    x, y = torch.randn(1, 8, 4, 16, device=device), torch.randn(1, 8, 2, 16, device=device)

    def loss(x, y):
        k = y.transpose(1, 2)
        return attention(x.transpose(1, 2), k, k, encoding, impl="fused").square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for tensor in (x, y):
        tensor.requires_grad_()
    found, expected = (torch.autograd.grad(f(x, y), (x, y)) for f in (compiled, loss))
    for got, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(got, exact)


def test_a_table_compiles_once_for_many_lengths():
    encoding, counter = T5(1).to(device), CompileCounterWithBackend("eager")
    torch.compiler.reset()
    compiled = torch.compile(lambda *qkv: attention(*qkv, encoding, impl="fused"), fullgraph=True, backend=counter)
    for n in (20, 33, 47, 60):
        qkv = torch.randn(3, 1, 1, n, 16, device=device)
        torch.testing.assert_close(compiled(*qkv), attention(*qkv, encoding, impl="reference"), rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2  # the first length, then any other


def test_fire_compiles_once_for_an_octave():
    """Only traced: the backend returns something of the right shape."""
    encoding, graphs = FIRE(2).to(device), []
    torch.compiler.reset()

    def stand_in(graph, _):
        graphs.append(graph)
        return lambda *inputs: (next(torch.empty_like(x) for x in inputs if getattr(x, "ndim", 0) == 4),)

    compiled = torch.compile(lambda q: attention(q, q, q, encoding, impl="fused"), fullgraph=True, backend=stand_in)
    for length in (600, 700, 777, 900, 1000):
        with torch.no_grad():
            compiled(torch.randn(1, 2, length, 16, device=device))
    assert len(graphs) == 2  # the first treats lengths as constants
