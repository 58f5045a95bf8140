"""On a GPU: the same numbers as on the CPU, and no synchronisation."""

import pytest
import torch

from longfire import FIRE, attention, attention_plan, random_positions
from longfire.engines import ENGINES
from longfire.theorem import as_fire
from tests.samples import ADDITIVE, HEAD_DIM, HEADS, LENGTH, NAMES, WIDTH, make
from tests.tolerance import assert_as_accurate

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grad", [False, True])
def test_same_as_on_the_cpu(name, grad):
    here, there = make(name), make(name).cuda()
    positions = torch.arange(LENGTH)
    x = torch.randn(1, LENGTH, WIDTH)
    heads = torch.randn(1, HEADS, LENGTH, HEAD_DIM)
    with torch.set_grad_enabled(grad):
        results = [
            (e.bias(p, p), e.embed(x.to(p.device), p), e.rotate(heads.to(p.device), p))
            for e, p in ((here, positions), (there, positions.cuda()))
        ]
    for cpu, gpu in zip(*results, strict=True):
        if cpu is not None:
            torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("impl", list(ENGINES))
def test_nothing_waits_for_the_device(name, impl):
    if impl == "fused" and name not in ADDITIVE:
        pytest.skip("there is no bias")
    encoding, positions = make(name).cuda(), torch.arange(LENGTH, device="cuda")
    where = {"q_positions": positions, "k_positions": positions}
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, HEAD_DIM, device="cuda")
    where["key_mask"] = torch.ones(2, LENGTH, dtype=torch.bool, device="cuda")
    embeddings = torch.randn(2, LENGTH, WIDTH, device="cuda")
    bias = encoding if encoding.has_bias else None
    attention(q, k, v, bias, impl=impl, **where)  # positions are read once per tensor
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoding.embed(embeddings, positions)
        q, k = encoding.rotate(q, positions), encoding.rotate(k, positions)
        out = attention(q, k, v, bias, impl=impl, **where)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(out).all()


def test_positions_are_asserted_in_a_captured_graph():
    """Values cannot be read there; keys in order pass, both at capture and in replays."""
    q, k, v = torch.randn(3, 1, HEADS, 9, HEAD_DIM, device="cuda")
    positions, graph = torch.arange(9, device="cuda"), torch.cuda.CUDAGraph()
    attention(q, k, v)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, q_positions=positions, k_positions=positions, impl="sdpa")
    positions.copy_(torch.arange(9, device="cuda") * 2)
    graph.replay()
    torch.testing.assert_close(out, attention(q, k, v, impl="sdpa"), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("impl", list(ENGINES))
def test_attention_and_gradients_equal_the_reference_on_the_cpu(name, impl):
    inputs = torch.randn(3, 2, HEADS, LENGTH, HEAD_DIM)
    found = []
    for device, engine in (("cpu", "reference"), ("cuda", impl)):
        encoding = make(name).to(device)
        q, k, v = (tensor.to(device).requires_grad_() for tensor in inputs)
        out = attention(q, k, v, encoding, impl=engine)
        gradients = torch.autograd.grad(out.square().sum(), [q, k, v, *encoding.parameters()])
        found.append([tensor.cpu() for tensor in (out, *gradients)])
    largest = max(tensor.abs().max().item() for tensor in found[0][4:]) if found[0][4:] else 0.0  # of the parameters
    for cpu, gpu in zip(*found, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-3, atol=1e-4 * max(largest, cpu.abs().max().item()))


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("compiled", [False, True])
def test_random_positions_equal_the_reference_on_the_cpu(name, compiled):
    """Exactly: functions of the distance are looked up, others are computed densely."""
    torch.compiler.reset()
    T, limit = 100, 1000
    inputs = torch.randn(3, 2, HEADS, T, HEAD_DIM)
    positions = random_positions(2, T, limit)
    attend = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    found = []
    for device, run, impl in (("cpu", attention, "reference"), ("cuda", attend, "auto")):
        encoding = make(name).to(device)
        q, k, v = (tensor.to(device).requires_grad_() for tensor in inputs)
        where = {"q_positions": positions.to(device), "k_positions": positions.to(device)}
        if device == "cuda":
            expected = "fused" if encoding.distance_only else "sdpa"
            assert attention_plan(q, k, v, encoding, **where).engine == expected
        out = run(q, k, v, encoding, impl=impl, **where)
        gradients = torch.autograd.grad(out.square().sum(), [q, k, v, *encoding.parameters()])
        found.append([tensor.cpu() for tensor in (out, *gradients)])
    largest = max(tensor.abs().max().item() for tensor in found[0][4:]) if found[0][4:] else 0.0  # of the parameters
    for cpu, gpu in zip(*found, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-3, atol=1e-4 * max(largest, cpu.abs().max().item()))


@pytest.mark.parametrize("length", [64, 300])
def test_random_positions_are_drawn_on_the_gpu(length):
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = random_positions(8, length, 2048, generator=generator)
    assert drawn.is_cuda
    assert (drawn.diff() > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < 2048
    assert torch.equal(drawn, random_positions(8, length, 2048, generator=generator.manual_seed(0)))


@pytest.mark.parametrize("impl", list(ENGINES))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 63, 257, 1024])
@pytest.mark.parametrize("groups", [1, 2])
def test_precision(impl, dtype, length, groups):
    fire = FIRE(4, init_L=64.0).init_as("kerple_log").cuda()
    q = torch.randn(2, 4, length, 64, device="cuda", dtype=dtype)
    k, v = torch.randn(2, 2, 4 // groups, length, 64, device="cuda", dtype=dtype)
    with torch.no_grad():
        result = attention(q, k, v, fire, impl=impl)
        exact = attention(q.double(), k.double(), v.double(), fire.double(), impl="reference")
        k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
        positions = torch.arange(length, device="cuda")
        logits = q @ k.mT * 64**-0.5 + fire.bias(positions, positions).to(dtype)
        hidden = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)
        eager = torch.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1) @ v
    assert result.dtype == dtype
    assert_as_accurate(result, eager, exact)


@pytest.mark.parametrize("name", ["alibi", "kerple_log", "kerple_power", "t5", "sandwich"])
def test_theorem(name):
    encoding = make(name).cuda()
    fire, positions = as_fire(encoding, LENGTH), torch.arange(LENGTH, device="cuda")
    expected = encoding.bias(positions, positions).tril()
    assert (fire.bias(positions, positions).tril() - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.fixture
def _tf32():
    torch.set_float32_matmul_precision("high")
    yield
    assert torch.get_float32_matmul_precision() == "high"  # restored
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("_tf32")
@pytest.mark.parametrize("name", ADDITIVE)
def test_tensor_float32_does_not_round_biases(name):
    """Many training scripts allow TF32, which would round distances and hidden units to ten bits."""
    encoding, positions = make(name), torch.arange(2000)
    expected = encoding.bias(positions, positions)
    bias = encoding.cuda().bias(positions.cuda(), positions.cuda()).cpu()
    assert (bias - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.usefixtures("_tf32")
def test_tensor_float32_does_not_round_the_reference():
    q, k, v = torch.randn(3, 1, HEADS, 200, 64)
    expected = attention(q, k, v, impl="reference")
    found = attention(q.cuda(), k.cuda(), v.cuda(), impl="reference").cpu()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_large_biases_in_float16():
    """A bias of −360,000 is beyond float16, but only its differences matter."""
    encoding = make("kerple_power").cuda()
    encoding.r1.data.fill_(1.0)
    encoding.r2.data.fill_(2.0)
    q, k, v = torch.randn(3, 1, HEADS, 600, 64, device="cuda", dtype=torch.float16)
    key_mask = torch.zeros(1, 600, dtype=torch.bool, device="cuda")
    key_mask[:, :10] = True
    with torch.no_grad():
        found = attention(q, k, v, encoding, key_mask=key_mask, impl="sdpa")
        exact = attention(q.double(), k.double(), v.double(), encoding, key_mask=key_mask, impl="reference")
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("name", ADDITIVE)
def test_compiled_by_inductor(name):
    encoding = make(name).cuda()
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, encoding), fullgraph=True)
    q, k, v = (tensor.requires_grad_() for tensor in torch.randn(3, 2, HEADS, LENGTH, HEAD_DIM, device="cuda"))
    torch.testing.assert_close(compiled(q, k, v), attention(q, k, v, encoding), rtol=1e-3, atol=1e-3)
