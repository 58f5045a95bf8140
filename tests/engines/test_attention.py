"""The reference against a loop over numbers, and SDPA against the reference. Other engines have their own tests."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from longfire import FIRE, attention, prepare_bias
from longfire.engines import chunked
from tests.engines.oracle import by_hand, random
from tests.samples import ADDITIVE, HEADS, LENGTH, increasing, make, sides
from tests.tolerance import assert_as_accurate

IMPLS = ["sdpa", "reference"]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize(("T", "S"), [(5, 5), (1, 6), (3, 6)])
def test_by_hand(impl, G, T, S):
    q, k, v = random(H=4, G=G, T=T, S=S)
    bias = torch.randn(2, 4, T, S, dtype=torch.float64)
    positions = [list(range(S - T, S))] * 2, [list(range(S))] * 2
    torch.testing.assert_close(attention(q, k, v, bias, impl=impl), by_hand(q, k, v, bias, *positions))
    torch.testing.assert_close(
        attention(q, k, v, bias, impl=impl, scale=0.3, causal=False),
        by_hand(q, k, v, bias, *positions, scale=0.3, causal=False),
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_by_hand_with_left_padding(impl):
    """The second sequence has two padding tokens on the left; its real ones count from 0."""
    q, k, v = random(T=6, S=6)
    fire = FIRE(HEADS, init_L=3.0).double()
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3]])
    key_mask = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    out = attention(q, k, v, fire, q_positions=positions, k_positions=positions, key_mask=key_mask, impl=impl)
    bias = fire.bias(positions, positions).detach()
    expected = by_hand(q, k, v, bias, positions.tolist(), positions.tolist(), key_mask)
    torch.testing.assert_close(out, expected)
    alone = attention(q[1:, :, 2:], k[1:, :, 2:], v[1:, :, 2:], fire, impl=impl)
    torch.testing.assert_close(out[1:, :, 2:], alone)


def test_queries_and_hidden_keys_may_be_anywhere():
    q, k, v = random()
    anywhere, key_mask = torch.tensor([[5, 5, 0, 1, 9, 2, 2]] * 2), torch.tensor([[False, True] * 3 + [False]] * 2)
    keys = torch.tensor([[9, 1, 0, 3, 3, 4, 0]] * 2)
    out = attention(q, k, v, q_positions=anywhere, k_positions=keys, key_mask=key_mask)
    expected = by_hand(q, k, v, torch.zeros(2, HEADS, 7, 7), anywhere.tolist(), keys.tolist(), key_mask)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("impl", IMPLS)
def test_hooks_on_an_encoding_take_effect(impl):
    """Called once per evaluation; what they return is the bias."""
    (q, k, v), positions, calls = random(), torch.arange(7), []
    fire = make("fire", torch.float64)
    expected = attention(q, k, v, 2 * fire.bias(positions, positions), impl="reference")
    fire.register_forward_hook(lambda _, given, bias: calls.append(given) or 2 * bias)
    torch.testing.assert_close(attention(q, k, v, fire, impl=impl), expected)
    assert len(calls) == 1
    prepared = prepare_bias(fire, positions, positions)
    for _ in range(2):
        torch.testing.assert_close(attention(q, k, v, prepared, impl=impl), expected)
    assert len(calls) == 2


def test_nope_is_no_bias():
    q, k, v = random()
    assert torch.equal(attention(q, k, v, make("nope")), attention(q, k, v))
    prepared = prepare_bias(make("nope"), torch.arange(7), torch.arange(7))
    torch.testing.assert_close(attention(q, k, v, prepared), attention(q, k, v))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("bias", [None, "fire"])
def test_a_query_that_sees_no_key_returns_zero(impl, bias):
    q, k, v = random(T=4, S=4)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    encoding = make("fire", torch.float64) if bias else None
    key_mask = torch.tensor([[False, False, True, True], [True] * 4])
    out = attention(q, k, v, encoding, key_mask=key_mask, impl=impl)
    assert (out[0, :, :2] == 0).all()
    assert (out[1] != 0).any()
    out.sum().backward()
    for tensor in (q, k, v):
        assert torch.isfinite(tensor.grad).all()
    assert (q.grad[0, :, :2] == 0).all()
    assert (k.grad[0, :, :2] == 0).all()
    before = attention(q, k, v, encoding, q_positions=torch.arange(4), k_positions=torch.arange(4) + 2, impl=impl)
    assert (before[:, :, :2] == 0).all()


@pytest.mark.parametrize("name", [*ADDITIVE, None])
@given(data=st.data())
def test_sdpa_equals_the_reference(name, data):
    """Any shapes, positions (more queries than keys, gaps, shared or per sequence) and masks."""
    B, T, S = (data.draw(st.integers(1, most)) for most in (3, 12, 12))
    q, k, v = random(B, HEADS, data.draw(st.sampled_from([1, HEADS])), T, S)
    options = {"causal": data.draw(st.booleans()), "scale": data.draw(st.sampled_from([None, 0.7]))}
    rows = {length: data.draw(st.sampled_from([(length,), (1, length), (B, length)])) for length in (T, S)}
    if T > S or data.draw(st.booleans()):
        options["q_positions"] = torch.randint(0, LENGTH, rows[T])
        options["k_positions"] = increasing(LENGTH, rows[S])
    if data.draw(st.booleans()):
        options["key_mask"] = torch.rand(B, S) < data.draw(st.sampled_from([0.1, 0.9]))
    encoding = None if name is None else make(name, torch.float64, **sides(name, options["causal"]))
    expected = attention(q, k, v, encoding, **options, impl="reference")
    torch.testing.assert_close(attention(q, k, v, encoding, **options, impl="sdpa"), expected)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_bias_may_hide_keys(impl):
    q, k, v = random(T=3, S=3, requires_grad=True)
    bias = torch.zeros(3, 3, dtype=torch.float64)
    bias[1] = float("-inf")
    bias[2, 0] = float("-inf")
    out = attention(q, k, v, bias, impl=impl)
    assert (out[:, :, 1] == 0).all()
    torch.testing.assert_close(out[:, :, 2:], attention(q[:, :, 2:], k[:, :, 1:], v[:, :, 1:], impl=impl))
    out.sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (7, 1), (1, 7)])
@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_of_few_dimensions(shape, causal):
    q, k, v = random()
    bias = torch.randn(shape, dtype=torch.float64)
    whole = bias.expand(2, HEADS, 7, 7)
    out = attention(q, k, v, bias, causal=causal, impl="sdpa")
    torch.testing.assert_close(out, by_hand(q, k, v, whole, [range(7)] * 2, [range(7)] * 2, causal=causal))


@pytest.mark.parametrize("name", ADDITIVE)
def test_gradients_of_sdpa_equal_the_reference(name):
    q, k, v = random(requires_grad=True)
    encoding = make(name, torch.float64)
    inputs = [q, k, v, *encoding.parameters()]
    weight = torch.randn(2, HEADS, 7, 8, dtype=torch.float64)
    ours, reference = (
        torch.autograd.grad((attention(q, k, v, encoding, impl=impl) * weight).sum(), inputs) for impl in IMPLS
    )
    torch.testing.assert_close(ours, reference)


def test_reference_gradients():
    q, k, v = random(T=3, S=4, requires_grad=True)
    bias = torch.randn(HEADS, 3, 4, dtype=torch.float64, requires_grad=True)
    key_mask = torch.tensor([[True, False, True, True], [False] * 4])
    assert gradcheck(lambda *args: attention(*args, key_mask=key_mask, impl="reference"), (q, k, v, bias))


@pytest.fixture
def _small_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "_rows", lambda request: 20)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("impl", [*IMPLS, "chunked"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("length", [1, 63, 111, 257])
def test_precision(impl, dtype, length):
    """At most twice the error of plain low-precision PyTorch against float64, including gradients."""
    q, k, v = (tensor.to(dtype) for tensor in random(1, 4, T=length, D=32))
    fire, exact_fire = FIRE(4, init_L=64.0).init_as("kerple_log"), FIRE(4, init_L=64.0).double()
    exact_fire.load_state_dict(fire.state_dict())
    positions = torch.arange(length)

    def eager(q, k, v):
        logits = q @ k.mT * 32**-0.5 + fire.bias(positions, positions).to(dtype)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        return torch.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1) @ v

    def with_gradients(attend, *inputs):
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        out = attend(*inputs)
        return out, *torch.autograd.grad(out.float().square().sum(), inputs)

    exact = with_gradients(lambda *qkv: attention(*qkv, exact_fire, impl="reference"), *(t.double() for t in (q, k, v)))
    found = with_gradients(lambda *qkv: attention(*qkv, fire, impl=impl), q, k, v)
    for result, plain, truth in zip(found, with_gradients(eager, q, k, v), exact, strict=True):
        assert result.dtype == dtype
        assert_as_accurate(result, plain, truth)


@pytest.mark.parametrize("impl", IMPLS)
def test_cached_decoding_equals_a_full_pass(impl):
    """One query at a time with a growing cache, and chunked prefill, return the rows of one full pass."""
    q, k, v = random(T=11, S=11)
    fire = make("fire", torch.float64, init_L=4.0)
    whole = attention(q, k, v, fire, impl=impl)
    for n in range(1, 12):
        step = attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], fire, impl=impl)
        torch.testing.assert_close(step, whole[:, :, n - 1 : n])
    chunk = attention(q[:, :, 4:9], k[:, :, :9], v[:, :, :9], fire, impl=impl)
    torch.testing.assert_close(chunk, whole[:, :, 4:9])


@pytest.mark.parametrize("impl", IMPLS)
def test_dropout(impl):
    """Weights are dropped with probability p, the others scaled up; without dropout nothing is random."""
    T = 400
    q = k = torch.zeros(1, 1, T, T)
    v = torch.eye(T)[None, None]
    weights = attention(q, k, v, causal=False, dropout_p=0.25, impl=impl)[0, 0]
    assert (weights == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(weights.unique(), torch.tensor([0.0, 1 / T / 0.75]))
    torch.manual_seed(5)
    first = attention(q, k, v, dropout_p=0.5, impl=impl)
    torch.manual_seed(5)
    assert torch.equal(first, attention(q, k, v, dropout_p=0.5, impl=impl))
    assert not torch.equal(first, attention(q, k, v, dropout_p=0.5, impl=impl))


@pytest.mark.parametrize("bias", [None, "fire"])
def test_function_transforms(bias):
    """`auto` chooses an engine with the derivative: forward and reverse mode, first and second order."""
    q, k, v = random()
    encoding = make("fire", torch.float64) if bias else None

    def loss(q, impl="auto"):
        return attention(q, k, v, encoding, impl=impl).square().sum()

    leaf, direction = q.clone().requires_grad_(), torch.randn_like(q)
    (gradient,) = torch.autograd.grad(loss(leaf, "reference"), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient, leaf, direction)
    torch.testing.assert_close(torch.func.grad(loss)(q), gradient)
    torch.testing.assert_close(torch.func.jvp(loss, (q,), (direction,))[1], (gradient * direction).sum())
    torch.testing.assert_close(torch.func.jvp(torch.func.grad(loss), (q,), (direction,))[1], second)
    torch.testing.assert_close(torch.vmap(loss)(torch.stack([q, -q])), torch.stack([loss(q), loss(-q)]))


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("impl", [*IMPLS, "chunked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast(impl, dtype):
    """The result has q's dtype; engines may compute in autocast's, and the bias stays exact."""
    q, k, v = (tensor.to(dtype) for tensor in random(T=47, dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v, make("fire"), impl=impl)
    assert out.dtype == dtype
    exact = attention(q, k, v, make("fire"), impl="reference")
    torch.testing.assert_close(out, exact, rtol=0.05, atol=0.05)
    if impl == "reference":
        assert torch.equal(out, exact)


@pytest.mark.parametrize(
    ("name", "impl", "dynamic", "backend"),
    [
        *((name, "auto", None, "aot_eager") for name in ("fire", "t5", "nope")),  # symbolic from the second length on
        ("fire", "auto", True, "eager"),
        ("fire", "reference", None, "eager"),
    ],
)
def test_compiles_without_graph_breaks(name, impl, dynamic, backend):
    torch.compiler.reset()
    encoding = make(name)
    compiled = torch.compile(
        lambda *args, **options: attention(*args, encoding, impl=impl, **options),
        fullgraph=True,
        backend=backend,
        dynamic=dynamic,
    )
    for T, S, options in [
        (7, 7, {}),
        (1, 9, {}),
        (5, 9, {"key_mask": torch.tensor([[True] * 9, [False] * 3 + [True] * 6])}),
    ]:
        q, k, v = random(T=T, S=S, G=1, dtype=torch.float32, requires_grad=True)
        torch.testing.assert_close(compiled(q, k, v, **options), attention(q, k, v, encoding, impl=impl, **options))
