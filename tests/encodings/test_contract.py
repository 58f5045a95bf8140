"""What every encoding promises, whatever it is."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck

from longfire import attention, position_parameters
from longfire.encodings import DistanceBias, PositionEncoding, RoPE
from tests.samples import ADDITIVE, HEAD_DIM, HEADS, LENGTH, NAMES, RELATIVE, WIDTH, make

positions_of = st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=12)


def attend(encoding, x, q, k, v, q_positions, k_positions):
    """One layer as a model would call it: embed, rotate, bias."""
    mixed = encoding.embed(x, k_positions)  # (B, S, C)
    k = k + mixed.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    q, k = encoding.rotate(q, q_positions), encoding.rotate(k, k_positions)
    return attention(q, k, v, encoding, q_positions=q_positions, k_positions=k_positions, impl="reference")


def inputs(batch, queries, keys, dtype=torch.float64):
    x = torch.randn(batch, keys, WIDTH, dtype=dtype)
    q = torch.randn(batch, HEADS, queries, HEAD_DIM, dtype=dtype)
    k, v = torch.randn(2, batch, HEADS, keys, HEAD_DIM, dtype=dtype)
    return x, q, k, v


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_hooks(name):
    encoding = make(name)
    assert isinstance(encoding, PositionEncoding)
    bias = encoding.bias(torch.arange(5), torch.arange(7))
    batched = encoding.bias(torch.arange(5).expand(2, -1), torch.arange(7).expand(2, -1))
    assert encoding.has_bias == (bias is not None) == (name in ADDITIVE)
    if bias is not None:
        assert bias.shape == (HEADS, 5, 7)
        assert batched.shape == (2, HEADS, 5, 7)
        assert bias.dtype == torch.float32
        assert torch.isfinite(bias).all()  # keys after the query too
    x = torch.randn(2, 5, WIDTH)
    assert encoding.embed(x, torch.arange(5)).shape == x.shape
    x = torch.randn(2, HEADS, 5, HEAD_DIM)
    assert encoding.rotate(x, torch.arange(5)).shape == x.shape
    assert encoding.scope == ("model" if name in ("sinusoidal", "learned") else "layer")
    assert encoding.distance_only == (name in ADDITIVE and name != "fire")


@pytest.mark.parametrize("name", NAMES)
@given(q=positions_of, k=positions_of)
def test_batched_is_unbatched(name, q, k):
    encoding = make(name, torch.float64)
    q, k = torch.tensor(q), torch.tensor(k)
    q2, k2 = torch.stack([q, (q + 1) % LENGTH]), torch.stack([k, (k + 3) % LENGTH])
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


@pytest.mark.parametrize("name", ADDITIVE)
@given(q=positions_of, k=positions_of)
def test_one_row_is_that_row_of_all(name, q, k):
    """A cached decoding step asks for one row."""
    encoding = make(name)
    q, k = torch.tensor(q), torch.tensor(k)
    whole = encoding.bias(q, k)
    for row in range(len(q)):
        torch.testing.assert_close(encoding.bias(q[row : row + 1], k)[:, 0], whole[:, row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@given(length=st.integers(2, 20), changed=st.integers(1, 19))
def test_causality(name, length, changed):
    """What comes after a query does not change its output."""
    changed = min(changed, length - 1)
    encoding = make(name, torch.float64)
    positions = torch.arange(length)
    x, q, k, v = inputs(1, length, length)
    before = attend(encoding, x, q, k, v, positions, positions)
    for tensor in (x.transpose(1, 2)[:, None].mT, k, v):
        tensor[..., changed:, :] += 1.0
    after = attend(encoding, x, q, k, v, positions, positions)
    assert torch.equal(before[:, :, :changed], after[:, :, :changed])
    assert not torch.allclose(before[:, :, changed:], after[:, :, changed:])


@pytest.mark.parametrize("name", RELATIVE)
@given(shift=st.integers(0, 1_000_000), length=st.integers(1, 30))
def test_relative_encodings_do_not_see_a_common_shift(name, shift, length):
    encoding = make(name, torch.float64)
    positions = torch.arange(length)
    data = inputs(1, length, length)
    here = attend(encoding, *data, positions, positions)
    there = attend(encoding, *data, positions + shift, positions + shift)
    torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-6)


@given(shift=st.integers(0, 30), length=st.integers(1, 30))
def test_fire_does_not_see_a_shift_below_its_threshold(shift, length):
    fire = make("fire", torch.float64, init_L=60.0)
    positions = torch.arange(length)
    torch.testing.assert_close(fire.bias(positions + shift, positions + shift), fire.bias(positions, positions))


def test_fire_sees_a_shift_above_its_threshold():
    fire = make("fire", torch.float64, init_L=10.0)
    positions = torch.arange(20)
    here, there = fire.bias(positions, positions), fire.bias(positions + 40, positions + 40)
    assert (here - there).abs()[:, 15].max() > 0.01


@pytest.mark.parametrize("name", [name for name in ADDITIVE if name != "fire"])
def test_distance_only_means_toeplitz(name):
    bias = make(name, torch.float64).bias(torch.arange(40), torch.arange(40))
    torch.testing.assert_close(bias[:, 1:, 1:], bias[:, :-1, :-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in ADDITIVE if make(name).smooth_beyond is not None])
def test_smooth_where_it_says_so(name):
    """Linear interpolation over eight keys is good to a hundredth beyond the declared distance."""
    encoding = make(name, torch.float64)
    beyond = 1 + -(-encoding.smooth_beyond // 8)
    keys = torch.arange(0, 8 * 200 + 1)
    query = torch.tensor([keys[-1] + 8 * beyond])
    bias = encoding.bias(query, keys)[:, 0]  # (H, S)
    nodes = bias[:, ::8]
    weight = torch.arange(8) / 8
    between = (nodes[:, :-1, None] * (1 - weight) + nodes[:, 1:, None] * weight).flatten(1)
    assert (between - bias[:, :-1]).abs().max() < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_float64_when_cast_to_it(name):
    encoding = make(name, torch.float64)
    bias = encoding.bias(torch.arange(5), torch.arange(5))
    assert bias is None or bias.dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_models_keep_exact_encodings(name, dtype):
    encoding = make(name)
    expected = encoding.bias(torch.arange(LENGTH), torch.arange(LENGTH))
    model = nn.ModuleDict({"layer": nn.Linear(4, 4), "encoding": encoding}).to(dtype)
    assert model["layer"].weight.dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias = encoding.bias(torch.arange(LENGTH), torch.arange(LENGTH))
    assert (bias is None and expected is None) or torch.equal(bias, expected)


@pytest.mark.parametrize("name", ["fire", "kerple_log", "kerple_power", "t5"])
def test_gradients(name):
    encoding = make(name, torch.float64)
    with torch.no_grad():
        for parameter in encoding.parameters():
            if name.startswith("kerple"):
                parameter.copy_(torch.tensor([0.4, 0.9, 1.3]))
    names, values = zip(*encoding.named_parameters(), strict=True)

    def bias(*parameters):
        caller = _Caller(encoding)
        state = {f"encoding.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(caller, state, (torch.tensor([3, 9, 30]), torch.arange(0, 40, 3)))

    assert gradcheck(bias, values)


class _Caller(nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, k):
        return self.encoding.bias(q, k)


@pytest.mark.parametrize("name", ["rope", "rope_pi", "yarn"])
def test_gradients_through_turning(name):
    encoding = make(name)
    x = torch.randn(1, 1, 3, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: encoding.rotate(x, torch.tensor([0, 5, 40])), (x,))


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_gradients_through_embedding(name):
    encoding = make(name).double()
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    table = (encoding.table,) if name == "learned" else ()
    assert gradcheck(lambda x, *_: encoding.embed(x, torch.tensor([0, 5, 40])), (x, *table))


@pytest.mark.parametrize("name", NAMES)
def test_compiles_whole_and_once_for_all_lengths(name):
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    encoding = make(name)
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=count)
    for length in (10, 11, 40):  # no other size: equal sizes are taken for the same
        positions = torch.arange(length)
        data = inputs(2, length, length, torch.float32)
        torch.testing.assert_close(
            compiled(encoding, *data, positions, positions), attend(encoding, *data, positions, positions)
        )
    assert len(graphs) == 1


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip(name):
    encoding, other = make(name, seed=1), make(name, seed=2)
    other.load_state_dict(encoding.state_dict())
    bias = encoding.bias(torch.arange(9), torch.arange(9))
    if bias is not None:
        assert torch.equal(bias, other.bias(torch.arange(9), torch.arange(9)))


@pytest.mark.parametrize("name", NAMES)
def test_reset_after_construction_without_memory(name):
    """How large models are made: on the meta device, then given memory, then initialised."""
    torch.manual_seed(1)
    encoding = make(name)
    with torch.device("meta"):
        empty = make(name)
    empty = empty.to_empty(device="cpu")
    empty.reset_parameters()
    fixed = {
        key for key, value in make(name, seed=5).state_dict().items() if torch.equal(value, encoding.state_dict()[key])
    }
    for key, value in empty.state_dict().items():
        assert torch.isfinite(value).all(), key
        if key in fixed:
            assert torch.equal(value, encoding.state_dict()[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_deep_copies_and_no_scalars(name):
    encoding = copy.deepcopy(make(name))
    assert all(parameter.ndim > 0 for parameter in encoding.parameters())  # sharded training refuses scalars


def test_position_parameters_are_found_once():
    shared = make("fire")
    model = nn.ModuleList([nn.Linear(4, 4), shared, nn.Sequential(make("kerple_log"), shared), RoPE(8)])
    found = position_parameters(model)
    assert len(found) == len(list(shared.parameters())) + 2
    others = {id(p) for p in model[0].parameters()}
    assert not others & {id(p) for p in found}
    torch.optim.AdamW([{"params": found, "lr": 1e-2, "weight_decay": 0.0}, {"params": model[0].parameters()}])


def test_a_users_own_encoding():
    class Recency(DistanceBias):
        def of_distance(self, distance):
            return -distance.abs().float().sqrt().expand(*distance.shape[:-3], HEADS, *distance.shape[-2:])

    encoding, positions = Recency(), torch.arange(6)
    _, q, k, v = inputs(1, 6, 6)
    out = attention(q, k, v, encoding)
    bias = -(positions[:, None] - positions).abs().float().sqrt()
    torch.testing.assert_close(out, attention(q, k, v, bias))


def test_of_distance_is_asked_for():
    with pytest.raises(NotImplementedError, match="Incomplete must define of_distance"):
        type("Incomplete", (DistanceBias,), {})().bias(torch.arange(2), torch.arange(2))


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize(
    ("q", "k", "error", "message"),
    [
        (torch.arange(3.0), torch.arange(3), TypeError, "q_positions are token indices .* not torch.float32"),
        (torch.arange(3), torch.tensor([True]), TypeError, "k_positions .* not torch.bool"),
        (
            torch.tensor([-1, 0]),
            torch.arange(3),
            ValueError,
            "q_positions must not be negative, but the smallest is -1",
        ),
        (
            torch.zeros(1, 2, 3, dtype=torch.long),
            torch.arange(3),
            ValueError,
            r"shape \(T,\) or \(B, T\), not \(1, 2, 3\)",
        ),
        (
            torch.zeros(2, 3, dtype=torch.long),
            torch.zeros(4, 3, dtype=torch.long),
            ValueError,
            "batch of 2 .* one of 4",
        ),
        ([0, 1], torch.arange(3), TypeError, "integer tensor, not list"),
        (torch.arange(3), torch.arange(3, device="meta"), ValueError, "q_positions are on cpu and k_positions on meta"),
    ],
)
def test_bad_positions(name, q, k, error, message):
    with pytest.raises(error, match=message):
        make(name).bias(q, k)


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power", "t5"])
def test_parameters_that_are_not_finite(name):
    encoding = make(name)
    next(encoding.parameters()).data.flatten()[0] = float("inf")
    with pytest.raises(ValueError, match="is not finite"):
        encoding.bias(torch.arange(3), torch.arange(3))
