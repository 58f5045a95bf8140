"""Attention: the reference against a loop over numbers, the other engines against the reference."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from longfire import FIRE, attention, attention_plan, prepare_bias
from longfire.encodings import ALiBi, PositionEncoding
from longfire.engines import ENGINES, PreparedBias
from tests.samples import ADDITIVE, HEADS, LENGTH, increasing, make
from tests.tolerance import assert_as_accurate

IMPLS = [name for name in ENGINES if name != "fused"]  # that one has tests of its own
FAST = [name for name in IMPLS if name != "reference"]


def random(B=2, H=HEADS, G=None, T=7, S=7, D=8, dtype=torch.float64, **options):
    q = torch.randn(B, H, T, D, dtype=dtype, **options)
    k, v = (torch.randn(B, G or H, S, D, dtype=dtype, **options) for _ in range(2))
    return q, k, v


def by_hand(q, k, v, bias, q_positions, k_positions, key_mask=None, scale=None, causal=True):
    """One query, one key, one number at a time. Positions are lists of lists, one per sequence."""
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    out = torch.zeros(B, H, T, D, dtype=torch.float64)
    scale = D**-0.5 if scale is None else scale
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            for t in range(T):
                seen = [
                    s
                    for s in range(S)
                    if (not causal or k_positions[b][s] <= q_positions[b][t])
                    and (key_mask is None or bool(key_mask[b, s]))
                ]
                logits = [scale * float(q[b, h, t] @ k[b, g, s]) + float(bias[b, h, t, s]) for s in seen]
                weights = [math.exp(x - max(logits)) for x in logits]
                for weight, s in zip(weights, seen, strict=True):
                    out[b, h, t] += weight / sum(weights) * v[b, g, s]
    return out


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


@pytest.mark.parametrize("impl", IMPLS)
def test_hooks_on_an_encoding_count(impl):
    """Called once for each evaluation; what they return is the bias."""
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


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("bias", [None, "fire"])
def test_a_query_with_nothing_to_see_gets_zero(impl, bias):
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
@pytest.mark.parametrize("impl", FAST)
@given(data=st.data())
def test_engines_equal_the_reference(name, impl, data):
    """Any shapes, any positions (more queries than keys, with gaps, one row for all or each its own), any mask."""
    B, T, S = (data.draw(st.integers(1, most)) for most in (3, 12, 12))
    q, k, v = random(B, HEADS, data.draw(st.sampled_from([1, HEADS])), T, S)
    options = {"causal": data.draw(st.booleans()), "scale": data.draw(st.sampled_from([None, 0.7]))}
    rows = {length: data.draw(st.sampled_from([(length,), (1, length), (B, length)])) for length in (T, S)}
    if T > S or data.draw(st.booleans()):
        options["q_positions"] = torch.randint(0, LENGTH, rows[T])
        options["k_positions"] = increasing(LENGTH, rows[S])
    if data.draw(st.booleans()):
        options["key_mask"] = torch.rand(B, S) < data.draw(st.sampled_from([0.1, 0.9]))
    encoding = None if name is None else make(name, torch.float64)
    expected = attention(q, k, v, encoding, **options, impl="reference")
    torch.testing.assert_close(attention(q, k, v, encoding, **options, impl=impl), expected)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_bias_may_hide_keys_and_all_of_them(impl):
    q, k, v = random(T=3, S=3, requires_grad=True)
    bias = torch.zeros(3, 3, dtype=torch.float64)
    bias[1] = float("-inf")
    bias[2, 0] = float("-inf")
    out = attention(q, k, v, bias, impl=impl)
    assert (out[:, :, 1] == 0).all()
    torch.testing.assert_close(out[:, :, 2:], attention(q[:, :, 2:], k[:, :, 1:], v[:, :, 1:], impl=impl))
    out.sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("impl", FAST)
def test_gradients_equal_the_reference(name, impl):
    q, k, v = random(requires_grad=True)
    encoding = make(name, torch.float64)
    inputs = [q, k, v, *encoding.parameters()]
    weight = torch.randn(2, HEADS, 7, 8, dtype=torch.float64)
    ours = torch.autograd.grad((attention(q, k, v, encoding, impl=impl) * weight).sum(), inputs)
    reference = torch.autograd.grad((attention(q, k, v, encoding, impl="reference") * weight).sum(), inputs)
    for one, other in zip(ours, reference, strict=True):
        torch.testing.assert_close(one, other)


def test_reference_gradients():
    q, k, v = random(T=3, S=4, requires_grad=True)
    bias = torch.randn(HEADS, 3, 4, dtype=torch.float64, requires_grad=True)
    key_mask = torch.tensor([[True, False, True, True], [False] * 4])
    assert gradcheck(lambda *args: attention(*args, key_mask=key_mask, impl="reference"), (q, k, v, bias))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("length", [1, 63, 111, 257])
def test_precision(impl, dtype, length):
    """No further from float64 than twice what plain low-precision PyTorch is."""
    exact_q, exact_k, exact_v = random(1, 4, None, length, length, 32)
    q, k, v = (tensor.to(dtype) for tensor in (exact_q, exact_k, exact_v))
    fire = FIRE(4, init_L=64.0).init_as("kerple_log")
    exact_fire = FIRE(4, init_L=64.0).double()
    exact_fire.load_state_dict(fire.state_dict())
    exact = attention(*(tensor.double() for tensor in (q, k, v)), exact_fire, impl="reference")
    positions = torch.arange(length)
    with torch.no_grad():
        logits = q @ k.mT * 32**-0.5 + fire.bias(positions, positions).to(dtype)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        eager = torch.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1) @ v
        result = attention(q, k, v, fire, impl=impl)
    assert result.dtype == dtype
    assert_as_accurate(result, eager, exact)


@pytest.mark.parametrize("impl", IMPLS)
def test_cached_decoding_is_the_whole(impl):
    """One query at a time over a growing cache, and a chunked prefill, give the rows of one full pass."""
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
    """Weights are dropped with probability p and the others scaled up; no dropout, no randomness."""
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


@pytest.mark.parametrize("impl", IMPLS)
def test_prepared_bias_is_made_once_and_gathers_gradients(impl, monkeypatch):
    q, k, v = random()
    fire, positions = make("fire", torch.float64), torch.arange(7)
    separate = sum(attention(q * layer, k, v, fire, impl=impl).sum() for layer in (1, 2, 3))
    expected = torch.autograd.grad(separate, list(fire.parameters()))
    calls = []
    bias = FIRE.bias
    monkeypatch.setattr(FIRE, "bias", lambda *args: calls.append(1) or bias(*args))
    prepared = prepare_bias(fire, positions, positions)
    shared = sum(attention(q * layer, k, v, prepared, impl=impl).sum() for layer in (1, 2, 3))
    torch.testing.assert_close(shared, separate)
    for one, other in zip(torch.autograd.grad(shared, list(fire.parameters())), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert len(calls) == 1


@pytest.mark.parametrize(("name", "call"), [("rope", "rotate"), ("yarn", "rotate"), ("sinusoidal", "embed")])
def test_an_encoding_without_a_bias_is_refused(name, call):
    """It would be ignored, and the model would have no positions."""
    encoding, positions = make(name), torch.arange(7)
    for attend in (
        lambda: attention(*random(), encoding),
        lambda: attention_plan(*random(), encoding),
        lambda: prepare_bias(encoding, positions, positions),
    ):
        with pytest.raises(ValueError, match=rf"has no bias for attention to add\. Call .*encoding\.{call}\("):
            attend()


def test_nope_has_nothing_to_ignore():
    q, k, v = random()
    assert torch.equal(attention(q, k, v, make("nope")), attention(q, k, v))
    prepared = prepare_bias(make("nope"), torch.arange(7), torch.arange(7))
    torch.testing.assert_close(attention(q, k, v, prepared), attention(q, k, v))


RESTART = {
    "packed documents": ([0, 1, 2, 3, 0, 1, 2], None),
    "documents of one token": ([0, 1, 2, 3, 4, 0, 0], None),
    "two equal ones": ([0, 1, 2, 2, 3, 4, 5], None),
    "documents on both sides of padding": ([0, 1, 2, 0, 0, 1, 2], [1, 1, 1, 0, 1, 1, 1]),
}


@pytest.mark.parametrize(("positions", "kept"), RESTART.values(), ids=RESTART)
@pytest.mark.parametrize("impl", [*IMPLS, "auto"])
def test_keys_whose_positions_do_not_go_up_are_refused(positions, kept, impl):
    """Causality goes by positions: the first of two documents would see the second's later tokens."""
    q, k, v = random()
    positions = torch.tensor([list(range(7)), positions])
    where = {"q_positions": positions, "k_positions": positions}
    if kept:
        where["key_mask"] = torch.tensor([[True] * 7, [bool(one) for one in kept]])
    for bias in (None, make("fire", torch.float64)):
        for ask in (attention, attention_plan):
            with pytest.raises(ValueError, match=r"must strictly increase .* in sequence 1 (\d) follows (\d)"):
                ask(q, k, v, bias, **where, impl=impl)
    with pytest.raises(ValueError, match="must strictly increase"):
        attention(q, k, v, prepare_bias(make("alibi"), positions, positions), key_mask=where.get("key_mask"))
    with pytest.raises(ValueError, match="must strictly increase"):
        torch.vmap(lambda k_positions: attention(q, k, v, impl=impl, **{**where, "k_positions": k_positions}))(
            torch.stack([positions, positions])
        )


def test_queries_and_hidden_keys_may_be_anywhere():
    q, k, v = random()
    anywhere, key_mask = torch.tensor([[5, 5, 0, 1, 9, 2, 2]] * 2), torch.tensor([[False, True] * 3 + [False]] * 2)
    keys = torch.tensor([[9, 1, 0, 3, 3, 4, 0]] * 2)
    out = attention(q, k, v, q_positions=anywhere, k_positions=keys, key_mask=key_mask)
    expected = by_hand(q, k, v, torch.zeros(2, HEADS, 7, 7), anywhere.tolist(), keys.tolist(), key_mask)
    torch.testing.assert_close(out, expected)


def test_keys_out_of_order_in_a_compiled_graph():
    q, k, v = random(dtype=torch.float32)
    compiled = torch.compile(
        lambda positions: attention(q, k, v, q_positions=positions, k_positions=positions),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.testing.assert_close(compiled(torch.arange(7)), attention(q, k, v))
    with pytest.raises(RuntimeError, match="must strictly increase"):
        compiled(torch.tensor([0, 1, 2, 0, 1, 2, 3]))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (7, 1), (1, 7)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("impl", FAST)
def test_a_bias_of_few_dimensions(shape, causal, impl):
    q, k, v = random()
    bias = torch.randn(shape, dtype=torch.float64)
    whole = bias.expand(2, HEADS, 7, 7)
    out = attention(q, k, v, bias, causal=causal, impl=impl)
    torch.testing.assert_close(out, by_hand(q, k, v, whole, [range(7)] * 2, [range(7)] * 2, causal=causal))


@pytest.mark.parametrize("bias", [None, "fire"])
def test_function_transforms(bias):
    """`auto` finds an engine that has the derivative: forward and reverse, first and second."""
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


def test_prepared_for_other_positions():
    q, k, v = random()
    prepared = prepare_bias(make("fire"), torch.arange(7), torch.arange(7))
    same = {"q_positions": torch.arange(7), "k_positions": torch.arange(7)}
    attention(q, k, v, prepared, **same)
    with pytest.raises(ValueError, match="prepared for other k_positions"):
        attention(q, k, v, prepared, **{**same, "k_positions": torch.arange(7) + 1})
    with pytest.raises(ValueError, match="the prepared bias's q_positions have shape"):
        attention(*random(T=3), prepared)
    with pytest.raises(ValueError, match="the prepared bias has 3 heads"):
        attention(*random(H=6), prepared)
    assert repr(prepared) == "PreparedBias((3, 7, 7): 7 queries, 7 keys)"
    with pytest.raises(TypeError, match="positional"):  # two of its fields could be taken for each other
        PreparedBias(prepared.encoding, torch.arange(7), torch.arange(7))
    with pytest.raises(TypeError, match="takes a PositionEncoding, not Tensor"):
        prepare_bias(torch.zeros(3), torch.arange(7), torch.arange(7))


def test_a_promise_of_order_that_is_not_kept():
    fire, order = make("fire"), torch.arange(7)
    prepare_bias(fire, order[2:], order, in_order=True)
    padded = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    prepare_bias(fire, padded, padded, in_order=True, padding=torch.tensor([2, 0]))
    for q_positions, k_positions, padding in [
        (order, order + 1, None),
        (order[:3], order, None),
        (torch.cat([order, order]), order, None),
        (padded, padded, torch.tensor([1, 0])),
    ]:
        with pytest.raises(ValueError, match="in_order promises keys at 0…6"):
            prepare_bias(fire, q_positions, k_positions, in_order=True, padding=padding)


def test_promised_padding_that_no_mask_hides():
    padded = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    prepared = prepare_bias(make("fire"), padded, padded, in_order=True, padding=torch.tensor([2, 0]))
    key_mask = torch.arange(7) >= torch.tensor([[2], [0]])
    attention(*random(), prepared, key_mask=key_mask)
    with pytest.raises(ValueError, match="give key_mask"):
        attention(*random(), prepared)
    with pytest.raises(ValueError, match="in sequence 0 0 follows 0"):
        attention(*random(), prepared, key_mask=torch.ones(2, 7, dtype=torch.bool))


def test_plan():
    q, k, v = random()
    mask = torch.ones(2, 7, dtype=torch.bool)
    plan = attention_plan(q, k, v, make("fire"))
    assert plan.engine == "blocks"
    assert "all queries in one block" in str(plan)
    assert "the bias as a dense tensor" in str(attention_plan(q, k, v, ALiBi(HEADS), impl="sdpa"))
    for options, why in [
        ({"bias": make("nope")}, "causal, no bias and no mask to build"),
        ({"causal": False}, "no bias and no mask to build"),
        ({"q": q[:, :, -1:]}, "no bias and no mask to build"),
        ({"key_mask": mask}, "no bias, the mask as a dense tensor"),
        ({"q": q[:, :, 3:]}, "no bias, the mask as a dense tensor"),
    ]:
        assert attention_plan(**{"q": q, "k": k, "v": v, **options}).why.endswith(why)
    assert attention_plan(q, k, v, impl="reference").engine == "reference"
    with pytest.raises(ValueError, match="ALiBi has 12 heads"):
        attention_plan(q, k, v, ALiBi(12))


def test_an_engine_that_cannot_serve_says_why(monkeypatch):
    class Picky:
        name = "picky"

        def refuses(self, request):
            return "it takes no keys" if request.k.shape[2] else None

        def describe(self, request):
            return "picky"

        def run(self, request):
            return request.q

    before = dict(ENGINES)
    ENGINES.clear()
    ENGINES.update({"picky": Picky(), **before})
    try:
        q, k, v = random()
        assert attention_plan(q, k, v).engine == "sdpa"  # auto passes it over
        with pytest.raises(ValueError, match=r"impl='picky' cannot serve this request \(picky: it takes no keys\)"):
            attention(q, k, v, impl="picky")
    finally:
        ENGINES.clear()
        ENGINES.update(before)


def test_plan_computes_nothing(monkeypatch):
    monkeypatch.setattr(FIRE, "bias", lambda *_: pytest.fail("the bias was made"))
    attention_plan(*random(), make("fire"))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast(impl, dtype):
    """The result has q's dtype; engines may compute in autocast's, and the bias stays exact."""
    q, k, v = (tensor.to(dtype) for tensor in random(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v, make("fire"), impl=impl)
    assert out.dtype == dtype
    exact = attention(q, k, v, make("fire"), impl="reference")
    torch.testing.assert_close(out, exact, rtol=0.05, atol=0.05)
    if impl == "reference":
        assert torch.equal(out, exact)


@pytest.mark.parametrize(
    ("name", "impl", "dynamic"),
    [
        *((name, impl, None) for name in ("fire", "t5", "nope") for impl in ("auto", "reference")),  # auto is sdpa here
        *(("fire", impl, True) for impl in ("auto", "reference")),
        *((name, "auto", True) for name in ("t5", "nope")),
    ],
)
def test_compiles_whole(name, impl, dynamic):
    torch.compiler.reset()
    encoding = make(name)
    compiled = torch.compile(
        lambda *args, **options: attention(*args, encoding, impl=impl, **options),
        fullgraph=True,
        backend="aot_eager",
        dynamic=dynamic,
    )
    for T, S, options in [
        (7, 7, {}),
        (1, 9, {}),
        (5, 9, {"key_mask": torch.tensor([[True] * 9, [False] * 3 + [True] * 6])}),
    ]:
        q, k, v = random(T=T, S=S, G=1, dtype=torch.float32, requires_grad=True)
        torch.testing.assert_close(compiled(q, k, v, **options), attention(q, k, v, encoding, impl=impl, **options))


@pytest.mark.parametrize("shape", [(7, 7), (HEADS, 7, 6), (HEADS, 1, 7)])
def test_a_users_encoding_with_a_bias_of_the_wrong_shape(shape):
    class Wrong(PositionEncoding):
        def bias(self, q_positions, k_positions):
            return torch.zeros(shape)

    with pytest.raises(ValueError, match=r"Wrong\.bias must be \(H, T, S\) or \(B, H, T, S\), not"):
        attention(*random(), Wrong())


def test_prepared_biases_are_told_apart():
    first, second = (prepare_bias(make("fire"), torch.arange(7), torch.arange(7)) for _ in range(2))
    assert first == first
    assert first != second


MASK = torch.ones(2, 7, dtype=torch.bool)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"impl": "fast"}, ValueError, "this version has no attention engine named 'fast'"),
        ({"impl": "spda"}, ValueError, "Did you mean 'sdpa'"),
        ({"q": torch.zeros(2, 7, 8)}, ValueError, r"q must have shape \(B, heads, length, D\), not \(2, 7, 8\)"),
        ({"q": None}, TypeError, "q must be a tensor, not NoneType"),
        ({"q": torch.zeros(2, 3, 7, 8, dtype=torch.long)}, TypeError, "q must be floating point, not torch.int64"),
        ({"k": torch.zeros(2, 3, 7, 8)}, ValueError, "q is dtype torch.float64 and k is torch.float32"),
        ({"v": torch.zeros(2, 3, 7, 8, device="meta").double()}, ValueError, "q is device cpu and v is meta"),
        ({"v": torch.zeros(2, 3, 6, 8).double()}, ValueError, "k and v must have the same shape"),
        ({"q": torch.zeros(1, 3, 7, 8).double()}, ValueError, "differ in batch or head size"),
        ({"q": torch.zeros(2, 4, 7, 8).double()}, ValueError, "4 query heads cannot share 3 key heads"),
        ({"q": torch.zeros(2, 3, 9, 8).double()}, ValueError, "9 queries but only 7 keys"),
        ({"q_positions": torch.arange(7)}, ValueError, "give both q_positions and k_positions"),
        (
            {"q_positions": torch.arange(6), "k_positions": torch.arange(7)},
            ValueError,
            r"q_positions have shape \(6,\)",
        ),
        ({"q_positions": torch.arange(7.0), "k_positions": torch.arange(7)}, TypeError, "int64 or int32"),
        ({"key_mask": MASK.long()}, TypeError, "key_mask must be bool .* not torch.int64"),
        ({"key_mask": MASK[:1]}, ValueError, r"shape \(B, S\) = \(2, 7\), not \(1, 7\)"),
        ({"key_mask": MASK.to("meta")}, ValueError, "key_mask is on meta"),
        ({"key_mask": [[True] * 7] * 2}, TypeError, "key_mask must be a bool tensor, not list"),
        *(
            ({"scale": scale}, ValueError, "scale must be a Python number above 0")
            for scale in (float("nan"), 0.0, -0.3)
        ),
        ({"bias": torch.ones(7, 7, dtype=torch.bool)}, TypeError, "must be floating point, not torch.bool.* key_mask"),
        (dict.fromkeys("kv", torch.zeros(2, 0, 7, 8).double()), ValueError, "share 0 key heads"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p must be at least 0 and below 1, not 1.0"),
        ({"bias": "fire"}, TypeError, "PositionEncoding, a PreparedBias, a tensor or None, not str"),
        ({"bias": torch.zeros(7, 6)}, ValueError, r"bias of shape \(7, 6\) does not broadcast"),
        ({"bias": torch.zeros(3, 7, 7, device="meta")}, ValueError, "bias is on meta"),
        ({"bias": ALiBi(12)}, ValueError, r"ALiBi has 12 heads and q \(2, 3, 7, 8\) has 3"),
    ],
)
def test_bad_input(change, error, message):
    q, k, v = random()
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(error, match=message):
        attention(**arguments)
