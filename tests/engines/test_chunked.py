"""Attention in chunks: equal to the reference, gradients included, with at most one chunk of rows at a time."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from longfire import FIRE, prepare_bias
from longfire.engines import chunked
from longfire.engines.chunked import Chunked
from longfire.engines.reference import Reference
from longfire.engines.request import Request
from longfire.engines.sdpa import SDPA
from tests.engines import oracle
from tests.memory import Largest, elements
from tests.samples import ADDITIVE, HEADS, LENGTH, make, sides

LENGTHS = [1, 63, 257]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    small_chunks(monkeypatch, rows=20)


def small_chunks(monkeypatch, rows):
    monkeypatch.setattr(chunked, "_rows", lambda request: rows)


def random(B=2, H=HEADS, G=None, T=47, S=None, **options):
    return oracle.random(B, H, G, T, S, **options)


def ask(
    q, k, v, bias, q_positions=None, k_positions=None, causal=True, key_mask=None, dropout_p=0.0, scale=None
) -> Request:
    return Request(q, k, v, bias, q_positions, k_positions, causal, key_mask, dropout_p, scale)


def assert_same(request, *learned):
    """Compare output and gradients of q, k, v and learned parameters with the reference."""
    ours, reference = Chunked().run(request), Reference().run(request)
    torch.testing.assert_close(ours, reference)
    inputs, weight = [request.q, request.k, request.v, *learned], torch.randn_like(reference)
    gradients = [
        torch.autograd.grad(out, inputs, weight, retain_graph=True, materialize_grads=True) if out.requires_grad else []
        for out in (ours, reference)
    ]
    torch.testing.assert_close(*map(tuple, gradients))
    with torch.no_grad():
        torch.testing.assert_close(Chunked().run(request), reference)


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_reference(name, length, causal):
    encoding = make(name, torch.float64, **sides(name, causal))
    assert_same(ask(*random(T=length, requires_grad=True), encoding, causal=causal), *encoding.parameters())


@pytest.mark.parametrize("bias", ["fire", "t5", "tensor", "prepared"])
@given(data=st.data())
def test_equals_the_reference_for_any_request(bias, data):
    """Any shapes, including empty ones, positions (unsorted, shared or per sequence), masks and kinds of bias."""
    B, T, S = (data.draw(st.integers(0, most), label) for most, label in ((3, "B"), (50, "T"), (50, "S")))
    q, k, v = random(B, HEADS, data.draw(st.sampled_from([1, HEADS]), "G"), T, S, requires_grad=True)
    options = {"causal": data.draw(st.booleans(), "causal"), "scale": data.draw(st.sampled_from([None, 0.7]))}
    rows = {n: data.draw(st.sampled_from([(n,), (1, n), (B, n)]), "rows") for n in (T, S)}
    positions = torch.randint(0, LENGTH, rows[T]), torch.randint(0, LENGTH, rows[S])
    if data.draw(st.booleans(), "sorted"):
        positions = tuple(tensor.sort(-1).values for tensor in positions)
    if T > S or data.draw(st.booleans(), "positions given"):
        options |= dict(zip(("q_positions", "k_positions"), positions, strict=True))
    if data.draw(st.booleans(), "key_mask"):
        options["key_mask"] = torch.rand(B, S) < data.draw(st.sampled_from([0.1, 0.9]))
    if bias == "tensor":
        dims = data.draw(
            st.sampled_from(["BHTS", "HTS", "TS", "H1S", "HT1", "1S", "1T1", "11", "S", "T1", "1", ""]), "dims"
        )
        shape = [{"B": B, "H": HEADS, "T": T, "S": S, "1": 1}[dim] for dim in dims]
        learned = [torch.randn(shape, dtype=torch.float64, requires_grad=True)]
        added = learned[0]
    else:
        name = "fire" if bias == "prepared" else bias
        encoding = make(name, torch.float64, **sides(name, options["causal"]))
        learned = list(encoding.parameters())
        added = prepare_bias(encoding, *positions, causal=options["causal"]) if bias == "prepared" else encoding
        if bias == "prepared":
            options.pop("q_positions", None), options.pop("k_positions", None)
    assert_same(ask(q, k, v, added, **options), *learned)


def test_a_bias_may_hide_all_keys():
    bias = torch.zeros(47, 47, dtype=torch.float64)
    bias[30:33] = float("-inf")
    request = ask(*random(requires_grad=True), bias)
    assert_same(request)
    assert (Chunked().run(request)[:, :, 30:33] == 0).all()


def test_gradients_by_finite_differences(monkeypatch):
    small_chunks(monkeypatch, rows=2)
    q, k, v = random(B=1, T=5, S=6, D=2, requires_grad=True)
    key_mask = torch.tensor([[True, False, True, True, True, False]])
    bias = torch.randn(HEADS, 5, 6, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda q, k, v, bias: Chunked().run(ask(q, k, v, bias, key_mask=key_mask)), (q, k, v, bias))
    fire = make("fire", torch.float64, init_L=2.0, mlp_width=3)
    assert gradcheck(lambda *_: Chunked().run(ask(q, k, v, fire)), (q, k, v, *fire.parameters()))


def test_dropout():
    """Weights are dropped or scaled up, the same ones for the same seed and in the backward pass.

    If v is the identity, the output is the weights, and the gradient of one of its rows with respect to v is that row.
    """
    T, fire = 47, make("fire", torch.float64)
    q, k, _ = random(B=1, T=T, D=T)
    v = torch.eye(T, dtype=torch.float64).repeat(1, HEADS, 1, 1).requires_grad_()
    request, seen = ask(q, k, v, fire, dropout_p=0.5), torch.ones(T, T).tril().bool()
    torch.manual_seed(5)
    weights, undropped = Chunked().run(request), Chunked().run(ask(q, k, v, fire))
    dropped = (weights == 0)[..., seen]
    assert 0.45 < dropped.double().mean() < 0.55
    torch.testing.assert_close(weights[..., seen][~dropped], undropped[..., seen][~dropped] / 0.5)
    before = torch.get_rng_state()
    for row in (0, 19, 20, 30, 46):
        g = torch.zeros_like(weights)
        g[..., row, 0] = 1
        (gradient,) = torch.autograd.grad(weights, v, g, retain_graph=True)
        torch.testing.assert_close(gradient[..., 0], weights[..., row, :])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert torch.equal(weights, Chunked().run(request))
    assert not torch.equal(weights, Chunked().run(request))


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("learning", [True, False])
def test_nothing_as_large_as_queries_by_keys(name, learning):
    n, D = 400, 4
    q, k, v = random(B=1, T=n, D=D, requires_grad=learning)
    encoding = make(name, torch.float64, **({"mlp_width": 4} if name == "fire" else {}))
    saved = []
    with (
        Largest() as made,
        torch.set_grad_enabled(learning),
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(elements(t)) or t, lambda t: t),
    ):
        out = Chunked().run(ask(q, k, v, encoding))
    if learning:
        with made:
            torch.autograd.grad(out.sum(), [q, k, v, *encoding.parameters()])
    assert made.elements <= 8 * 20 * n < n * n  # a chunk of 20 rows, with one map of 4 hidden units and 3 heads
    assert max(saved, default=0) <= HEADS * n * D


@pytest.mark.parametrize("given", [False, True])
def test_the_upper_triangle_is_not_computed(given, monkeypatch):
    n, made, bias = 400, [], FIRE.bias

    def counted(*args):
        result = bias(*args)
        made.append(result.shape[-2] * result.shape[-1])
        return result

    monkeypatch.setattr(FIRE, "bias", counted)
    positions = {"q_positions": torch.arange(n), "k_positions": torch.arange(n)} if given else {}
    request = ask(*random(T=n), make("fire", torch.float64, bidirectional=True), **positions)
    with torch.no_grad():
        Chunked().run(request)
    assert len(made) == n // 20
    assert sum(made) == n * (n + 20) // 2  # whole chunks on the diagonal
    made.clear()
    with torch.no_grad():
        Chunked().run(ask(request.q, request.k, request.v, request.bias, causal=False))
    assert sum(made) == n * n


def test_rows_of_a_chunk(monkeypatch):
    """Few enough for a small chunk, but at least one."""
    monkeypatch.undo()
    for n in (0, 1, 512, 2048, 8192, 1 << 20):
        q = torch.empty(1, 12, min(n, 9), 4, device="meta")
        kv = torch.empty(1, 12, n, 4, device="meta")
        rows = chunked._rows(ask(q, kv, kv, FIRE(12).to("meta")))
        assert rows >= 1
        assert rows * n * (12 + 32) <= chunked.CHUNK_ELEMENTS["cpu"] or rows == chunked.MIN_ROWS


def test_parameters_of_a_functional_call():
    """Gradients belong to the parameters of the functional_call, even if computed after it returns."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = make("fire", torch.float64)

        def forward(self, engine, *qkv):
            return engine.run(ask(*qkv, self.encoding))

    model, qkv = Model(), random()
    others = {
        name: torch.nn.Parameter(p.detach() * 1.5 if name != "encoding.c" else p.detach() + 1)
        for name, p in model.named_parameters()
    }
    ours, reference = (
        torch.autograd.grad(
            torch.func.functional_call(model, others, (engine, *qkv)).square().sum(), list(others.values())
        )
        for engine in (Chunked(), Reference())
    )
    torch.testing.assert_close(ours, reference)


@pytest.mark.parametrize("which", ["q", "a parameter", "the bias"])
def test_tensors_written_to_before_the_backward_pass(which):
    q, k, v = random(requires_grad=True)
    encoding = make("kerple_log", torch.float64)
    dense = torch.randn(HEADS, 47, 47, dtype=torch.float64)
    out = Chunked().run(ask(q, k, v, dense if which == "the bias" else encoding))
    with torch.no_grad():
        {"q": q, "a parameter": next(encoding.parameters()), "the bias": dense}[which].mul_(2)
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        out.sum().backward()


def test_second_derivatives():
    q, k, v = random(T=25, requires_grad=True)
    t5, found = make("t5", torch.float64), []  # learned: with a fixed bias torch uses a kernel that lacks them
    for engine in (Chunked(), Reference()):
        (first,) = torch.autograd.grad(engine.run(ask(q, k, v, t5)).square().sum(), q, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [q, k, v, t5.table]))
    torch.testing.assert_close(*found)


def test_a_single_chunk_is_not_recomputed(monkeypatch):
    monkeypatch.setattr(chunked, "checkpoint", lambda *_, **__: pytest.fail("computed again"))
    q, k, v = random(T=20, requires_grad=True)
    request = ask(q, k, v, make("fire", torch.float64))
    assert torch.equal(Chunked().run(request), SDPA().run(request))


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_prepared_bias_is_not_recomputed(causal, learning, monkeypatch):
    """Not evaluated again, even if the encoding has changed since."""
    fire = make("fire", torch.float64, **sides("fire", causal))
    positions, calls, bias = torch.arange(47), [], FIRE.bias
    monkeypatch.setattr(FIRE, "bias", lambda *args: calls.append(1) or bias(*args))
    prepared = prepare_bias(fire, positions, positions, causal=causal)
    with torch.no_grad():
        for parameter in fire.parameters():
            parameter.add_(1)
    request = ask(*random(requires_grad=learning), prepared, causal=causal)
    with torch.set_grad_enabled(learning):
        torch.testing.assert_close(Chunked().run(request), Reference().run(replace(request, bias=prepared.tensor)))
    assert len(calls) == 1


def test_description_and_refusals():
    engine, (q, k, v) = Chunked(), random()
    fire = make("fire")
    assert engine.refuses(ask(q, k, v, fire)) is None
    assert engine.describe(ask(q, k, v, fire)).endswith("one chunk at a time, recomputed in the backward pass")
    with torch.no_grad():
        assert engine.describe(ask(q, k, v, fire)).endswith(
            "chunks of 20 queries, with the bias of one chunk at a time"
        )
    assert "all queries in one chunk" in engine.describe(ask(q[:, :, :5], k, v, fire))
    for bias in (None, make("nope"), prepare_bias(make("nope"), torch.arange(47), torch.arange(47))):
        assert "no bias" in engine.declines(ask(q, k, v, bias))


def test_refuses_transforms_and_compilation():
    q, k, v = random()
    fire, answers = make("fire", torch.float64), []

    def note(q):
        answers.append(Chunked().refuses(ask(q, k, v, fire)))
        return q.sum()

    torch.func.grad(note)(q)
    torch.vmap(note)(q[None])
    assert all("torch.func" in answer for answer in answers)
    assert len(answers) == 2
    compiled = torch.compile(
        lambda q: q + 1 if Chunked().refuses(ask(q, k, v, fire)) else q, backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(q), q + 1)
