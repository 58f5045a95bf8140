"""The contract of every encoding."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck

from longfire import ENCODINGS, attention, build_encoding, position_parameters, prepare_bias
from longfire.encodings import DistanceBias, PositionEncoding, RoPE
from tests.samples import ADDITIVE, HEAD_DIM, HEADS, LENGTH, NAMES, RELATIVE, WIDTH, bias_with, make

positions_of = st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=12)
keys_of = st.sets(st.integers(0, LENGTH - 4), min_size=1, max_size=12).map(sorted)
ROTARY, ABSOLUTE = ["rope", "rope_pi", "yarn"], ["sinusoidal", "learned"]
BOTH = {"bidirectional": True}


def attend(encoding, x, q, k, v, q_positions, k_positions):
    """One layer as a model would call it: embed, rotate, bias."""
    mixed = encoding.embed(x, k_positions)  # (B, S, C)
    k = k + mixed.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    q, k = encoding.rotate(q, q_positions), encoding.rotate(k, k_positions)
    bias = encoding if encoding.has_bias else None
    return attention(q, k, v, bias, q_positions=q_positions, k_positions=k_positions, impl="reference")


def all_hooks(encoding, length=LENGTH, call=None):
    """What the three hooks return for fixed inputs."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, length, WIDTH, generator=generator)
    heads = torch.randn(1, HEADS, length, HEAD_DIM, generator=generator)
    return (call or hooks)(encoding, x, heads, torch.arange(length))


def hooks(encoding, x, heads, positions):
    return encoding.embed(x, positions), encoding.rotate(heads, positions), encoding.bias(positions, positions)


def assert_all_equal(results, expected):
    for result, other in zip(results, expected, strict=True):
        assert (result is None and other is None) or torch.equal(result, other)


def inputs(batch, queries, keys, dtype=torch.float64):
    x = torch.randn(batch, keys, WIDTH, dtype=dtype)
    q = torch.randn(batch, HEADS, queries, HEAD_DIM, dtype=dtype)
    k, v = torch.randn(2, batch, HEADS, keys, HEAD_DIM, dtype=dtype)
    return x, q, k, v


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_dtypes(name):
    encoding = copy.deepcopy(make(name))
    assert isinstance(encoding, PositionEncoding)
    bias = encoding.bias(torch.arange(5), torch.arange(7))
    batched = encoding.bias(torch.arange(5).expand(2, -1), torch.arange(7).expand(2, -1))
    assert encoding.has_bias == (bias is not None) == (name in ADDITIVE)
    if bias is not None:
        assert bias.shape == (HEADS, 5, 7)
        assert batched.shape == (2, HEADS, 5, 7)
        assert bias.dtype == torch.float32
        assert torch.isfinite(bias).all()  # including keys after the query
        assert make(name, torch.float64).bias(torch.arange(5), torch.arange(5)).dtype == torch.float64
    x = torch.randn(2, 5, WIDTH)
    assert encoding.embed(x, torch.arange(5)).shape == x.shape
    x = torch.randn(2, HEADS, 5, HEAD_DIM)
    assert encoding.rotate(x, torch.arange(5)).shape == x.shape
    embeds = type(encoding).embed is not PositionEncoding.embed
    assert encoding.scope == ("model" if embeds else "layer")
    assert "=" in repr(encoding) or name == "nope"
    assert all(parameter.ndim > 0 for parameter in encoding.parameters())  # sharded training refuses scalars
    moved = encoding.to("meta", torch.bfloat16)
    assert {tensor.device.type for tensor in moved.state_dict().values()} <= {"meta"}


@pytest.mark.parametrize("name", NAMES)
@given(q=positions_of, k=keys_of)
def test_batched_equals_unbatched(name, q, k):
    encoding = make(name, torch.float64)
    q, k = torch.tensor(q), torch.tensor(k)
    q2, k2 = torch.stack([q, (q + 1) % LENGTH]), torch.stack([k, k + 3])
    x, queries, keys, values = inputs(2, len(q), len(k))
    together = attend(encoding, x, queries, keys, values, q2, k2)
    for b in range(2):
        alone = attend(encoding, *(t[b : b + 1] for t in (x, queries, keys, values)), q2[b], k2[b])
        torch.testing.assert_close(together[b : b + 1], alone)
    if encoding.has_bias:
        bias = encoding.bias(q2, k2)
        for b in range(2):
            torch.testing.assert_close(bias[b], encoding.bias(q2[b], k2[b]))
        torch.testing.assert_close(encoding.bias(q, k2)[1], encoding.bias(q, k2[1]))
        torch.testing.assert_close(encoding.bias(q2, k)[1], encoding.bias(q2[1], k))


@pytest.mark.parametrize("name", NAMES)
def test_int32_positions_and_a_batch_of_one(name):
    """Hugging Face's position_ids often have shape (1, T)."""
    encoding, positions = make(name, torch.float64), torch.arange(9)
    data = inputs(2, 9, 9)
    expected = attend(encoding, *data, positions, positions)
    for same in (positions.int(), positions[None]):
        torch.testing.assert_close(attend(encoding, *data, same, same), expected)


@pytest.mark.parametrize("name", ADDITIVE)
@given(q=positions_of, k=positions_of)
def test_one_row_equals_the_same_row_of_all(name, q, k):
    """A cached decoding step computes one row."""
    encoding = make(name)
    q, k = torch.tensor(q), torch.tensor(k)
    whole = encoding.bias(q, k)
    for row in range(len(q)):
        torch.testing.assert_close(encoding.bias(q[row : row + 1], k)[:, 0], whole[:, row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@given(length=st.integers(2, 20), changed=st.integers(1, 19))
def test_causality(name, length, changed):
    changed = min(changed, length - 1)
    encoding = make(name, torch.float64)
    positions = torch.arange(length)
    x, q, k, v = inputs(1, length, length)
    before = attend(encoding, x, q, k, v, positions, positions)
    for tensor in (x, k, v):
        tensor[..., changed:, :] += 1.0
    after = attend(encoding, x, q, k, v, positions, positions)
    assert torch.equal(before[:, :, :changed], after[:, :, :changed])
    assert not torch.allclose(before[:, :, changed:], after[:, :, changed:])


@pytest.mark.parametrize("name", RELATIVE)
@given(shift=st.integers(0, 10_000_000), length=st.integers(1, 30))
def test_relative_encodings_ignore_a_common_shift(name, shift, length):
    encoding = make(name, torch.float64)
    positions = torch.arange(length)
    data = inputs(1, length, length)
    here = attend(encoding, *data, positions, positions)
    there = attend(encoding, *data, positions + shift, positions + shift)
    torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-6)


@given(shift=st.integers(0, 30), length=st.integers(1, 30))
def test_fire_ignores_a_shift_only_below_its_threshold(shift, length):
    fire, positions = make("fire", torch.float64, init_L=60.0), torch.arange(length)
    torch.testing.assert_close(fire.bias(positions + shift, positions + shift), fire.bias(positions, positions))
    fire, positions = make("fire", torch.float64, init_L=10.0), torch.arange(20)
    here, there = fire.bias(positions, positions), fire.bias(positions + 40, positions + 40)
    assert (here - there).abs()[:, 15].max() > 0.01


@pytest.mark.parametrize("name", [name for name in ADDITIVE if ENCODINGS[name].distance_only])
def test_distance_only_means_toeplitz(name):
    bias = make(name, torch.float64).bias(torch.arange(40), torch.arange(40))
    torch.testing.assert_close(bias[:, 1:, 1:], bias[:, :-1, :-1], rtol=1e-9, atol=1e-9)


def test_declarations():
    declared = {name: (make(name).distance_only, make(name).smooth_beyond, make(name).symmetric) for name in ADDITIVE}
    expected = {
        "fire": (False, 128, False),
        "alibi": (True, 0, True),
        "kerple_log": (True, 128, True),
        "kerple_power": (True, None, True),
        "t5": (True, 20, False),
        "sandwich": (True, None, True),
    }
    assert declared.items() >= expected.items()
    assert {name for name in NAMES if make(name).bidirectional} == {*ROTARY, *ABSOLUTE}


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in NAMES), *((one, BOTH) for one in ("fire", "t5"))]
)
def test_directions_are_declared(name, options):
    """Symmetric: a function of |i − j|. Bidirectional: the two sides differ. Neither: causal attention only."""
    encoding = make(name, torch.float64, **options)
    assert not (encoding.symmetric and encoding.bidirectional)
    _, q, k, v = inputs(1, 9, 9)
    if not encoding.has_bias:
        assert encoding.symmetric or encoding.bidirectional
        return
    if encoding.symmetric or encoding.bidirectional:
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.add_(0.1 * torch.rand_like(parameter))
        bias, positions = encoding.bias(torch.arange(9), torch.arange(9)), torch.arange(9)
        assert torch.allclose(bias, bias.mT) == encoding.symmetric
        torch.testing.assert_close(attention(q, k, v, encoding, causal=False), attention(q, k, v, bias, causal=False))
        prepare_bias(encoding, positions, positions, causal=False)
        return
    for ask in (
        lambda: attention(q, k, v, encoding, causal=False),
        lambda: prepare_bias(encoding, torch.arange(9), torch.arange(9), causal=False),
    ):
        with pytest.raises(ValueError, match=r"cannot tell keys after the query .*, bidirectional=True\)"):
            ask()


def test_an_encoding_that_declares_no_direction_is_causal_only():
    class Mute(DistanceBias):
        def of_distance(self, distance):
            return -distance.double().expand(HEADS, *distance.shape[-2:])

    _, q, k, v = inputs(1, 5, 5)
    attention(q, k, v, Mute())
    with pytest.raises(ValueError, match=r"Declare bidirectional = True in Mute .* or symmetric = True if it need not"):
        attention(q, k, v, Mute(), causal=False)


def interpolation_error(encoding, nearest):
    """Error of linear interpolation between every eighth key, for keys at least `nearest` from the query."""
    keys = torch.arange(8 * 250 + 1)
    bias = encoding.bias(keys[-1:] + nearest, keys)[:, 0]  # (H, S)
    weight = torch.arange(8) / 8
    nodes = bias[:, ::8]
    between = (nodes[:, :-1, None] * (1 - weight) + nodes[:, 1:, None] * weight).flatten(1)
    return (between - bias[:, :-1]).abs().max().item()


@pytest.mark.parametrize("name", [name for name in ADDITIVE if make(name).smooth_beyond])
def test_smooth_beyond_is_correct_and_tight(name):
    encoding = make(name, torch.float64)
    if name == "fire":
        encoding.init_as("kerple_log", slopes=[2.0, 2.0, 2.0])
    if name == "kerple_log":
        encoding.r1.data.fill_(2.0)
        encoding.r2.data.fill_(1.0)
    assert interpolation_error(encoding, encoding.smooth_beyond) < 1e-3
    assert interpolation_error(encoding, encoding.smooth_beyond // 8) > 1e-3
    assert interpolation_error(make("alibi", torch.float64), 0) < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_models_keep_exact_encodings(name, dtype):
    encoding = make(name)
    expected = all_hooks(encoding)
    model = nn.ModuleDict({"layer": nn.Linear(4, 4), "encoding": encoding}).to(dtype)
    assert model["layer"].weight.dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_all_equal(all_hooks(encoding), expected)


@pytest.mark.parametrize("name", NAMES)
def test_built_in_float32_under_a_lower_default(name):
    """Large models are often built under a bfloat16 default."""
    expected = all_hooks(make(name))
    torch.set_default_dtype(torch.bfloat16)
    try:
        encoding = make(name)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not {t.dtype for t in encoding.state_dict().values()} & {torch.bfloat16, torch.float16}
    if not list(encoding.parameters()):  # random numbers differ between dtypes
        assert_all_equal(all_hooks(encoding), expected)


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power", "t5"])
def test_gradients_of_the_bias(name):
    encoding = make(name, torch.float64)
    if name.startswith("kerple"):
        encoding.r1.data, encoding.r2.data = torch.tensor([[0.4, 0.9, 1.3]] * 2, dtype=torch.float64)
    names, values = zip(*encoding.named_parameters(), strict=True)

    def bias(*parameters):
        given = dict(zip(names, parameters, strict=True))
        return bias_with(encoding, given, torch.tensor([3, 9, 30]), torch.arange(0, 40, 3))

    assert gradcheck(bias, values)


@pytest.mark.parametrize("name", [*ROTARY, *ABSOLUTE])
def test_gradients_of_rotate_and_embed(name):
    encoding, positions = make(name).double(), torch.tensor([0, 5, 40])
    hook, shape = (encoding.rotate, (1, 1, 3, HEAD_DIM)) if name in ROTARY else (encoding.embed, (1, 3, WIDTH))
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, *_: hook(x, positions), (x, *encoding.parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_for_all_lengths(name):
    torch.compiler.reset()
    encoding, counter = make(name), CompileCounterWithBackend("eager")
    compiled = torch.compile(hooks, fullgraph=True, dynamic=True, backend=counter)
    for length in (10, 11, 40):  # sizes that occur nowhere else: compilers assume that equal sizes are the same
        for result, expected in zip(all_hooks(encoding, length, compiled), all_hooks(encoding, length), strict=True):
            assert (result is None and expected is None) or torch.allclose(result, expected, atol=1e-5)
    assert counter.frame_count == (name != "nope")  # which computes nothing


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip(name):
    encoding, other = make(name, seed=1), make(name, seed=2)
    other.load_state_dict(encoding.state_dict())
    assert_all_equal(all_hooks(other), all_hooks(encoding))


@pytest.mark.parametrize("name", NAMES)
def test_reset_after_construction_without_memory(name):
    """As large models are built: on the meta device, then allocated, then initialised."""
    encoding = make(name)
    with torch.device("meta"):
        empty = make(name)
    empty = empty.to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.data.fill_(float("nan") if tensor.is_floating_point() else -1)
    empty.reset_parameters()
    other = make(name, seed=5).state_dict()
    fixed = {key for key, value in encoding.state_dict().items() if torch.equal(value, other[key])}
    for key, value in empty.state_dict().items():
        assert torch.isfinite(value).all(), key
        assert value.min() >= 0 or value.is_floating_point(), key
        if key in fixed:
            assert torch.equal(value, encoding.state_dict()[key]), key


def test_buffers_are_persistent():
    """Some loaders leave non-persistent buffers empty."""
    assert set(make("alibi").state_dict()) == {"slopes"}
    assert set(make("sandwich").state_dict()) == {"scales"}
    assert set(make("t5").state_dict()) == {"table", "buckets"}
    assert {"c", "L_multiplier", "init_L"} <= set(make("fire").state_dict())


def test_position_parameters_are_found_once():
    shared = make("fire")
    model = nn.ModuleList([nn.Linear(4, 4), shared, nn.Sequential(make("kerple_log"), shared), RoPE(8)])
    found = position_parameters(model)
    assert len(found) == len(list(shared.parameters())) + 2
    assert not {id(p) for p in model[0].parameters()} & {id(p) for p in found}
    model[2][0].r1 = model[2][0].r2  # a parameter with two names
    assert len(position_parameters(model)) == len(found) - 1
    with pytest.raises(TypeError, match=r"must be an nn\.Module, not list"):
        position_parameters([make("fire")])


def test_a_users_own_encoding():
    class Recency(DistanceBias):
        def of_distance(self, distance):
            return -distance.abs().float().sqrt().expand(*distance.shape[:-3], HEADS, *distance.shape[-2:])

    encoding, positions = Recency(), torch.arange(6)
    _, q, k, v = inputs(1, 6, 6)
    bias = -(positions[:, None] - positions).abs().float().sqrt()
    torch.testing.assert_close(attention(q, k, v, encoding), attention(q, k, v, bias))
    with pytest.raises(NotImplementedError, match="Incomplete must define of_distance"):
        type("Incomplete", (DistanceBias,), {})().bias(torch.arange(2), torch.arange(2))


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.long)


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize(
    ("q", "k", "error", "message"),
    [
        (torch.arange(3.0), torch.arange(3), TypeError, "q_positions are token indices .* not torch.float32"),
        (torch.arange(3), torch.tensor([True]), TypeError, "k_positions .* not torch.bool"),
        (torch.tensor([-1, 0]), torch.arange(3), ValueError, "q_positions must not be negative, .* -1"),
        (zeros(1, 2, 3), torch.arange(3), ValueError, r"shape \(T,\) or \(B, T\), not \(1, 2, 3\)"),
        (zeros(2, 3), zeros(4, 3), ValueError, "q_positions have batch size 2, but k_positions have 4"),
        ([0, 1], torch.arange(3), TypeError, "integer tensor, not list"),
        (torch.arange(3), torch.arange(3, device="meta"), ValueError, "q_positions are on cpu and k_positions on meta"),
    ],
)
def test_bad_positions(name, q, k, error, message):
    with pytest.raises(error, match=message):
        make(name).bias(q, k)


@pytest.mark.parametrize("name", ADDITIVE)
def test_another_device_and_parameters_that_are_not_finite(name):
    with pytest.raises(ValueError, match=r"positions are on cpu and \w+ is on meta: move them to one device"):
        make(name).to("meta").bias(torch.arange(3), torch.arange(3))
    encoding = make(name)
    for parameter in encoding.parameters():
        parameter.data.flatten()[0] = float("inf")
        with pytest.raises(ValueError, match="is not finite"):
            encoding.bias(torch.arange(3), torch.arange(3))


@pytest.mark.parametrize(
    ("x", "positions", "message"),
    [
        (torch.zeros(2, 5, WIDTH), torch.arange(3), r"positions must have shape \(5,\) or \(2, 5\), .* not \(3,\)"),
        (torch.zeros(2, 5, WIDTH), torch.arange(1), r"positions must have shape .* not \(1,\)"),
        (torch.zeros(1, 5, WIDTH), zeros(2, 5), r"positions must have shape .* not \(2, 5\)"),
        (torch.zeros(5, WIDTH), torch.arange(5), r"x must have shape \(B, T, C\), not \(5, 24\)"),
        (torch.zeros(2, 5, WIDTH, device="meta"), torch.arange(5), "positions are on cpu and x is on meta"),
    ],
)
@pytest.mark.parametrize("name", ABSOLUTE)
def test_bad_embeddings(name, x, positions, message):
    with pytest.raises(ValueError, match=message):
        make(name).embed(x, positions)


@pytest.mark.parametrize(
    ("x", "positions", "message"),
    [
        (
            torch.zeros(2, 3, 5, HEAD_DIM),
            torch.arange(1),
            r"positions must have shape \(5,\) or \(2, 5\), .* not \(1,\)",
        ),
        (torch.zeros(3, 5, HEAD_DIM), torch.arange(5), r"x must have shape \(B, H, T, D\)"),
        (torch.zeros(2, 3, 5, HEAD_DIM, device="meta"), torch.arange(5), "positions are on cpu and x is on meta"),
    ],
)
@pytest.mark.parametrize("name", ROTARY)
def test_bad_queries(name, x, positions, message):
    with pytest.raises(ValueError, match=message):
        make(name).rotate(x, positions)


@pytest.mark.parametrize(("positions", "error"), [(torch.arange(5.0), TypeError), (torch.arange(5) - 1, ValueError)])
def test_every_hook_checks_positions(positions, error):
    with pytest.raises(error, match="positions"):
        make("rope").rotate(torch.zeros(1, 1, 5, HEAD_DIM), positions)
    with pytest.raises(error, match="positions"):
        make("sinusoidal").embed(torch.zeros(1, 5, WIDTH), positions)


@pytest.mark.parametrize("name", ["fire", "kerple_log", "t5"])
def test_vmap_over_parameters(name):
    encoding, positions = make(name), torch.arange(9)
    stacked = {key: torch.stack([value.detach(), 2 * value.detach()]) for key, value in encoding.named_parameters()}
    biases = torch.vmap(lambda parameters: bias_with(encoding, parameters, positions, positions))(stacked)
    torch.testing.assert_close(biases[0], encoding.bias(positions, positions))
    assert not torch.allclose(biases[0], biases[1])


@pytest.mark.parametrize("name", ADDITIVE)
def test_a_call_is_the_bias_and_honours_hooks(name):
    encoding, (q, k), seen = make(name), (torch.arange(3, 9), torch.arange(9)), []
    bias = encoding.bias(q, k)
    assert torch.equal(encoding(q, k), bias)
    assert torch.equal(encoding(q_positions=q, k_positions=k), bias)
    state = {key: value.clone() for key, value in encoding.state_dict().items()}
    assert torch.equal(torch.func.functional_call(encoding, state, (q, k)), bias)
    encoding.register_forward_pre_hook(lambda _, positions: seen.append(positions))
    encoding.register_forward_hook(lambda _, positions, bias: 2 * bias)
    assert torch.equal(encoding(q, k), 2 * bias)
    assert len(seen) == 1


@pytest.mark.parametrize("name", [*ROTARY, *ABSOLUTE])
def test_a_call_without_a_bias_is_refused(name):
    """None would mean attention without positions."""
    hook = "embed" if name in ABSOLUTE else "rotate"
    with pytest.raises(ValueError, match=rf"has no bias for attention to add. Call .*encoding\.{hook}\("):
        make(name)(torch.arange(3), torch.arange(3))
    assert make("nope")(torch.arange(3), torch.arange(3)) is None


@pytest.mark.parametrize("name", ["fire", "t5"])
def test_an_encoding_can_be_compiled(name):
    torch.compiler.reset()
    encoding, positions, counter = make(name), torch.arange(6), CompileCounterWithBackend("eager")
    bias = encoding(positions, positions)
    encoding.compile(backend=counter, fullgraph=True)
    torch.testing.assert_close(encoding(positions, positions), bias)
    sample = inputs(1, 6, 6)
    out, expected = (attend(one, *sample, positions, positions) for one in (encoding, make(name)))
    torch.testing.assert_close(out, expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["t5", "learned"])
def test_tables_are_initialised_small(name):
    encoding = ENCODINGS[name](200, 300) if name == "learned" else ENCODINGS[name](200)
    assert encoding.table.std().item() == pytest.approx(0.02, rel=0.05)
    assert encoding.table.mean().item() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("name", ADDITIVE)
def test_meta_and_fake_tensors(name):
    """Planners and tracers only need shapes."""
    positions = torch.arange(5, device="meta")
    assert make(name).to("meta").bias(positions, positions).shape == (HEADS, 5, 5)
    with FakeTensorMode():
        encoding = build_encoding(name, num_heads=HEADS, head_dim=HEAD_DIM, **ENCODINGS[name].example)
        assert encoding.bias(torch.arange(5), torch.arange(5)).shape == (HEADS, 5, 5)
