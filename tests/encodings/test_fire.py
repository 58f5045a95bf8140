"""FIRE against the paper: its listing bit for bit, its formulas, and the mistakes of public ports."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck

from longfire import FIRE, KerpleLog, build_encoding
from longfire.encodings.base import EncodingLinear
from longfire.theorem import as_fire
from tests.samples import bias_with


class Listing(nn.Module):
    """The appendix listing of the paper, operation by operation."""

    def __init__(self, num_heads=12, mlp_width=32, init_c=0.1, init_L=512.0, eps=1e-6):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, mlp_width), nn.ReLU(), nn.Linear(mlp_width, num_heads))
        self.c = nn.Parameter(torch.tensor(init_c))
        self.init_L = nn.Parameter(torch.tensor(init_L), requires_grad=False)
        self.L_multiplier = nn.Parameter(torch.tensor(1.0))
        self.eps = eps

    def forward(self, x):
        positions = torch.arange(x.size(2), dtype=torch.float, device=x.device)
        rel_distance = positions[:, None] - positions[None, :]
        threshold = torch.abs(self.L_multiplier * self.init_L)
        pos_normalizer = torch.max(positions, threshold)[:, None]
        rel_distance = torch.log(torch.abs(self.c * rel_distance) + 1)
        pos_normalizer = torch.log(torch.abs(self.c * pos_normalizer) + 1) + self.eps
        normalized_distance = rel_distance / pos_normalizer
        fire_bias = self.mlp(normalized_distance.unsqueeze(-1))
        return fire_bias.unsqueeze(0).permute(0, 3, 1, 2)


def formula(fire: FIRE, i: int, j: int) -> torch.Tensor:
    """b(i, j) of the paper's text for 1-based positions, in plain Python numbers except for the MLP's products."""
    c = abs(fire.c.item()) if fire.log else None
    psi = (lambda x: math.log(c * x + 1)) if fire.log else (lambda x: x)
    normalizer = i if fire.L is None else max(fire.L.item(), i)
    x = torch.tensor([psi(i - j) / psi(normalizer)], dtype=torch.float64)
    for layer in fire.mlp:
        x = layer.weight.double() @ x + layer.bias.double() if isinstance(layer, EncodingLinear) else layer(x)
    return x


@pytest.mark.parametrize("length", [1, 2, 63, 400])
@pytest.mark.parametrize("init_L", [7.0, 128.0, 512.0])
@pytest.mark.parametrize("grad", [False, True])
def test_listing_bit_for_bit(length, init_L, grad):
    listing = Listing(num_heads=5, init_L=init_L)
    listing.L_multiplier.data.fill_(-1.37)
    listing.c.data.fill_(-0.31)
    fire = FIRE(5, hidden_layers=1, first_position=0, init_L=init_L)
    model = nn.ModuleDict({"layer": fire})  # the listing's names and its 0-d c and L load under any prefix
    model.load_state_dict(nn.ModuleDict({"layer": listing}).state_dict())
    positions = torch.arange(length)
    with torch.set_grad_enabled(grad):
        expected = listing(torch.zeros(1, 5, length, 4))[0]
        assert torch.equal(fire.bias(positions, positions), expected)


def test_listing_gradients():
    listing, fire = Listing(num_heads=5, init_L=8.0), FIRE(5, hidden_layers=1, first_position=0, init_L=8.0)
    fire.load_state_dict(listing.state_dict())
    weight = torch.randn(5, 40, 40)
    (listing(torch.zeros(1, 5, 40, 4))[0] * weight).sum().backward()
    (fire.bias(torch.arange(40), torch.arange(40)) * weight).sum().backward()
    expected = dict(listing.named_parameters())
    for name, parameter in fire.named_parameters():
        torch.testing.assert_close(parameter.grad.flatten(), expected[name].grad.flatten())


VARIANTS = [
    {},
    {"log": False},
    {"threshold": "fixed"},
    {"threshold": None},
    {"log": False, "threshold": None},
    {"hidden_layers": 0},
    {"hidden_layers": 1},
    {"hidden_layers": 3, "width": 5},
    {"activation": "gelu"},
    {"final_activation": True, "hidden_layers": 1},
    {"init_c": 3.0, "init_L": 2.0},
    {"eps": 0.0},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_formula_of_the_text(options):
    """Callers count from 0; the formula counts from 1."""
    fire = FIRE(3, **{"init_L": 12.0, **options})
    bias = fire.bias(torch.arange(30), torch.arange(30))
    for i in (1, 2, 11, 12, 13, 30):
        for j in {1, 2, i // 2, i} - {0}:
            if j <= i:
                torch.testing.assert_close(bias[:, i - 1, j - 1].double(), formula(fire, i, j), rtol=1e-5, atol=1e-6)


def test_defaults_and_options():
    fire = FIRE(12)
    assert [(layer.in_features, layer.out_features) for layer in fire.linears] == [(1, 32), (32, 32), (32, 12)]
    assert sum(p.numel() for p in fire.parameters()) == (32 + 32) + (32 * 32 + 32) + (32 * 12 + 12) + 2
    assert fire.c.shape == fire.L_multiplier.shape == (1,)
    assert (fire.c.item(), fire.L.item(), fire.eps, fire.first_position) == (pytest.approx(0.1), 512.0, 1e-6, 1)
    assert isinstance(fire.mlp[-1], EncodingLinear)
    assert [type(layer) for layer in fire.mlp[1::2]] == [nn.ReLU, nn.ReLU]
    assert [type(layer) for layer in FIRE(2, activation="gelu").mlp[1::2]] == [nn.GELU, nn.GELU]
    assert (FIRE(2, init_c=3.0).c.item(), FIRE(2, init_L=7.0).L.item()) == (3.0, 7.0)
    assert {name for name, _ in fire.named_parameters() if not name.startswith("mlp")} == {"c", "L_multiplier"}
    assert "L_multiplier" not in dict(FIRE(2, threshold="fixed").named_parameters())
    assert "c" not in dict(FIRE(2, log=False).named_parameters())
    assert FIRE(2, threshold=None).L is None


def test_gradients_with_frozen_parameters():
    fire = FIRE(2, init_L=8.0)
    fire.mlp.requires_grad_(False)
    bias = fire.bias(torch.arange(20), torch.arange(20))
    assert bias.is_contiguous()
    bias.square().sum().backward()
    assert fire.c.grad.abs() > 0
    assert not fire.requires_grad_(False).bias(torch.arange(20), torch.arange(20)).requires_grad


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_gradients(options):
    fire = FIRE(2, **{"init_L": 4.7, "width": 6, **options}).double()
    with torch.no_grad():
        for layer in fire.linears:  # away from ReLU's kinks, where finite differences are wrong
            layer.bias.copy_(torch.linspace(0.11, 0.73, len(layer.bias)))
    names, parameters = zip(*fire.named_parameters(), strict=True)

    def bias(*values):
        return bias_with(fire, dict(zip(names, values, strict=True)), torch.arange(9), torch.arange(9))

    assert gradcheck(bias, parameters)


@given(
    st.integers(0, 10_000_000),
    st.floats(1e-12, 100.0),
    st.floats(1e-6, 1e8),
    st.sampled_from([{}, {"log": False}, {"threshold": None}, {"first_position": 0}, {"eps": 0.0}]),
)
def test_mlp_input_is_in_the_unit_interval(query, c, L, options):
    fire = FIRE(2, init_c=c, init_L=L, **options)
    keys = torch.linspace(0, query, 50, dtype=torch.float64).long().unique()
    x = fire.normalized_distance(torch.tensor([query]), keys)[0]
    assert torch.isfinite(x).all()
    assert x.min() >= 0
    assert x.max() <= 1
    assert (x.diff() <= 1e-6).all()  # keys ascend, so distances and x descend


@pytest.mark.parametrize("options", [{}, {"eps": 0.0}, {"log": False, "eps": 0.0}, {"log": False}], ids=str)
@pytest.mark.parametrize("first_position", [0, 1])
@pytest.mark.parametrize("c", [0.0, 1e-30, -1e-12, 1e30])
@pytest.mark.parametrize("L", [0.0, 1e-30, -3.0])
def test_finite_at_the_limits(options, first_position, c, L):
    """Bias and gradients are finite for c → 0, L → 0, i = 0, positions up to ten million, negative c and L."""
    fire = FIRE(2, first_position=first_position, **options)
    with torch.no_grad():
        if fire.log:
            fire.c.fill_(c)
        fire.L_multiplier.fill_(L / 512)
    positions = torch.tensor([0, 1, 2, 1000, 10_000_000])
    bias = fire.bias(positions, positions)
    assert torch.isfinite(bias).all()
    bias.tril().sum().backward()
    for name, parameter in fire.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


def test_distances_are_exact_beyond_float32():
    """float32 cannot distinguish these positions, only their distances."""
    fire = FIRE(2, threshold="fixed", init_L=2.0**27)
    far, near = torch.tensor([2**25 + 1]), torch.arange(2**25 - 4, 2**25 + 2)
    x = fire.normalized_distance(far, near)[0]
    assert x.unique().numel() == 6
    assert x[-1] == 0


def test_normalizer_is_the_larger_of_position_and_threshold():
    fire = FIRE(2, init_L=10.0)
    farthest = fire.normalized_distance(torch.arange(100), torch.zeros(1, dtype=torch.long))[:, 0]
    assert (farthest[:9].diff() > 0).all()  # below L: the same normaliser, growing distances
    assert farthest[5] < 0.8
    assert (farthest[20:] > 0.95).all()  # above L: the first key is always near 1


@pytest.mark.parametrize("options", [{}, {"threshold": "fixed"}, {"threshold": None}, {"log": False}])
def test_beyond_the_horizon_only_the_distance_matters(options):
    torch.manual_seed(1)
    published = FIRE(4, init_L=20.0, **options)
    fire = FIRE(4, init_L=20.0, horizon=100, **options)
    fire.load_state_dict(published.state_dict())
    near = torch.arange(100)  # the last one is position 100 of the paper
    assert torch.equal(fire.bias(near, near), published.bias(near, near))
    distances = torch.arange(0, 3000, 7)
    rows = [fire.bias(torch.tensor([i]), i - distances[distances <= i])[:, 0] for i in (99, 100, 500, 5000)]
    for row in rows:
        shared = min(row.shape[1], rows[0].shape[1])
        assert torch.equal(row[:, :shared], rows[0][:, :shared])
    assert torch.equal(rows[2], rows[3][:, : rows[2].shape[1]])
    x = fire.normalized_distance(torch.tensor([5000]), torch.tensor([5000 - 4900]))
    assert x.item() > 1  # distances beyond any seen in training leave the unit interval
    assert published.normalized_distance(torch.tensor([5000]), torch.tensor([100])).item() <= 1


def test_a_threshold_above_the_horizon_learns_nothing_and_warns():
    with pytest.warns(UserWarning, match=r"horizon=100 is below init_L=500: .* at most 100 .*horizon=None"):
        fire = FIRE(4, init_L=500.0, horizon=100)
    fire.bias(torch.tensor([50, 600]), torch.arange(40)).sum().backward()
    assert fire.L_multiplier.grad.item() == 0
    assert fire.c.grad.item() != 0
    FIRE(4, init_L=100.0, horizon=100)  # no warning: the constant normaliser is intended
    FIRE(4, threshold=None, horizon=100)


def test_horizon_and_smooth_beyond_are_not_in_the_state_dict():
    near, far = FIRE(2, init_L=8.0, horizon=8), FIRE(2, init_L=8.0, smooth_beyond=64)
    far.load_state_dict(near.state_dict())
    assert "free to change: horizon=8, smooth_beyond=128" in repr(near)
    assert "not in the state dict" in FIRE.__doc__
    assert [FIRE(2, smooth_beyond=W).smooth_beyond for W in (64, 500, None)] == [64, 500, None]
    assert FIRE(2).smooth_beyond == build_encoding("fire", num_heads=2).smooth_beyond == 128
    assert build_encoding("fire", num_heads=2, smooth_beyond=256).smooth_beyond == 256


def test_hooks_in_the_mlp_are_honoured():
    fire, positions = FIRE(2, init_L=8.0), torch.arange(20)
    before = fire.bias(positions, positions)
    fire.mlp[-1].register_forward_hook(lambda module, inputs, output: 2 * output)
    torch.testing.assert_close(fire.bias(positions, positions), 2 * before)


def test_edge_cases():
    """A vanishing normaliser without eps; no keys; no queries; one wide row; the last int32 position."""
    x = FIRE(1, eps=0.0, init_c=1e-5, init_L=2.0).normalized_distance(torch.tensor([9]), torch.tensor([0]))
    assert x.item() == pytest.approx(0.9, abs=0.01)
    none = torch.zeros(0, dtype=torch.long)
    last = torch.tensor([2**31 - 1], dtype=torch.int32)
    with torch.no_grad():
        assert FIRE(2).bias(torch.arange(3), none).shape == (2, 3, 0)
        assert FIRE(2).bias(none, torch.arange(3)).shape == (2, 0, 3)
        assert FIRE(1, width=4096).bias(torch.arange(2), torch.arange(1100)).shape == (1, 2, 1100)
        assert FIRE(1).normalized_distance(last, torch.tensor([0], dtype=torch.int32)).item() <= 1


@pytest.mark.parametrize(("q_batch", "k_batch"), [((), ()), ((2,), (2,)), ((), (2,)), ((2,), ()), ((1,), (2,))])
def test_blocks_equal_the_whole(q_batch, k_batch):
    """Without gradients the bias is computed a few rows at a time; inside vmap, at once."""
    fire = FIRE(3, width=32)
    q, k = torch.arange(600, 700).expand(*q_batch, -1), torch.arange(1500).expand(*k_batch, -1)
    assert 100 * 1500 * 32 > 1 << 22  # more than one block
    with torch.no_grad():
        blocks = fire.bias(q, k)
        assert torch.equal(blocks, fire.f(fire.normalized_distance(q, k)))
        if q_batch == k_batch == (2,):
            torch.testing.assert_close(torch.vmap(fire.bias)(q, k), blocks)
    assert blocks.is_contiguous()


def test_blocks_are_used_only_without_gradients(monkeypatch):
    calls = []
    whole = FIRE._bias
    monkeypatch.setattr(FIRE, "_bias", lambda *args: calls.append(1) or whole(*args))
    fire = FIRE(2)
    fire.bias(torch.arange(600), torch.arange(1500))
    assert len(calls) == 1
    fire.requires_grad_(False).bias(torch.arange(600), torch.arange(1500))
    assert len(calls) > 2


def test_low_precision_weights_are_computed_in_float32():
    """Some frameworks cast weights to bfloat16 regardless."""
    fire = FIRE(4, hidden_layers=1, init_L=40.0)
    fire.L_multiplier.data.fill_(0.93)
    for tensor in (*fire.parameters(), *fire.buffers()):
        tensor.data = tensor.data.bfloat16()
    bias = fire.bias(torch.arange(50), torch.arange(50))
    upcast = FIRE(4, hidden_layers=1, init_L=40.0)
    upcast.load_state_dict(fire.state_dict())
    assert torch.equal(bias, upcast.bias(torch.arange(50), torch.arange(50)))


class TestInit:
    positions = torch.arange(64)
    causal = torch.ones(64, 64, dtype=torch.bool).tril()
    distance = (positions[:, None] - positions).clamp(min=0).float()

    @pytest.mark.parametrize("hidden_layers", [0, 1, 2, 3])
    def test_kerple_log(self, hidden_layers):
        slopes = [0.3, 1.7, 0.9]
        fire = FIRE(3, hidden_layers=hidden_layers, init_L=64.0).init_as("kerple_log", slopes=slopes, c=0.7)
        expected = -torch.tensor(slopes).double()[:, None, None] * torch.log1p(0.7 * self.distance.double())
        difference = (fire.bias(self.positions, self.positions) - expected) * self.causal
        assert difference.abs().max() < 1e-5

    @pytest.mark.parametrize("threshold", ["learned", "fixed"])
    def test_alibi(self, threshold):
        fire = FIRE(3, log=False, threshold=threshold, init_L=64.0).init_as("alibi")
        expected = -torch.tensor([2.0**-4, 2.0**-8, 2.0**-2])[:, None, None] * self.distance
        difference = (fire.bias(self.positions, self.positions) - expected) * self.causal
        assert difference.abs().max() < 1e-5

    def test_default_slopes_and_c(self):
        fire = FIRE(4, init_L=32.0).init_as("kerple_log")
        assert fire.c.item() == 1.0
        slopes = torch.tensor([0.25, 0.75, 1.25, 1.75])  # midpoints of four equal parts of (0, 2)
        torch.testing.assert_close(fire.linears[-1].weight[:, 0], -slopes * (math.log(33) + 1e-6))
        assert FIRE(2, init="kerple_log", init_c=0.5).c.item() == 0.5
        assert FIRE(2, init_c=0.5).init_as("kerple_log").c.item() == 0.5

    @pytest.mark.parametrize("options", [{}, {"log": False}])
    @pytest.mark.parametrize("eps", [0.0, 1e-6])
    @pytest.mark.filterwarnings("ignore:horizon=16 is below init_L=64")
    def test_under_a_horizon_below_the_threshold(self, options, eps):
        """The normaliser is ψ(horizon)."""
        fire = FIRE(2, init_L=64.0, horizon=16, eps=eps, **options)
        fire.init_as("alibi" if options else "kerple_log", slopes=[0.5, 1.0])
        bias = fire.bias(self.positions, self.positions)
        expected = -torch.tensor([0.5, 1.0])[:, None, None] * (self.distance if options else torch.log1p(self.distance))
        torch.testing.assert_close(bias * self.causal, expected, atol=2e-5, rtol=1e-5)

    def test_as_an_option(self):
        """Same as init_as after the same random draws, also through reset_parameters."""
        torch.manual_seed(0)
        after = FIRE(3, init_L=16.0).init_as("kerple_log").state_dict()
        torch.manual_seed(0)
        fire = FIRE(3, init_L=16.0, init="kerple_log")
        for name, tensor in fire.state_dict().items():
            assert torch.equal(tensor, after[name]), name
        fire.c.data.fill_(7.0)
        fire.reset_parameters()
        assert fire.c.item() == 1.0
        assert not fire.linears[-1].weight[:, 1:].any()
        random = FIRE(3, init_L=16.0)
        random.load_state_dict(fire.state_dict())
        assert torch.equal(random.bias(self.positions, self.positions), fire.bias(self.positions, self.positions))

    def test_with_a_trained_threshold(self):
        fire = FIRE(1, init_L=16.0, eps=0.1)
        fire.L_multiplier.data.fill_(-4.0)
        bias = fire.init_as("kerple_log", slopes=[1.0]).bias(self.positions, self.positions)[0, 63]
        torch.testing.assert_close(bias, -torch.log1p(63.0 - self.positions))

    def test_every_layer_learns(self):
        """After one step every parameter has a gradient, so no unit is dead."""
        torch.manual_seed(3)
        fire = FIRE(3, init_L=16.0).init_as("kerple_log")
        target = torch.randn(3, 64, 64)
        optimizer = torch.optim.SGD(fire.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            ((fire.bias(self.positions, self.positions) - target) ** 2 * self.causal).mean().backward()
            optimizer.step()
        for name, parameter in fire.named_parameters():
            assert parameter.grad.abs().sum() > 0, name
        for layer in fire.linears:
            assert (layer.weight.grad.abs().sum(1) > 0).float().mean() > 0.4

    @pytest.mark.parametrize(
        ("options", "start", "message"),
        [
            ({"log": False}, "kerple_log", "log=True"),
            ({}, "alibi", "log=False"),
            ({"threshold": None}, "kerple_log", "a threshold"),
            ({"activation": "gelu"}, "kerple_log", "relu"),
            ({"final_activation": True}, "kerple_log", "final_activation=False"),
            ({}, "kerple", "Did you mean 'kerple_log'"),
        ],
    )
    def test_impossible_inits_are_refused(self, options, start, message):
        with pytest.raises(ValueError, match=message):
            FIRE(3, **options).init_as(start)
        with pytest.raises(ValueError, match=message):
            FIRE(3, **options, init=start)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="c must be above 0 and finite, not -1"):
            FIRE(3).init_as("kerple_log", c=-1)
        with pytest.raises(ValueError, match="no c, since log=False"):
            FIRE(3, log=False).init_as("alibi", c=1.0)
        with pytest.raises(ValueError, match="3 finite numbers"):
            FIRE(3).init_as("kerple_log", slopes=[1.0])
        with pytest.raises(ValueError, match="activation='relu'"):  # a FIRE without an MLP
            as_fire(KerpleLog(3), 8).init_as("kerple_log")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activation": "rleu"}, ValueError, "Did you mean 'relu'"),
        ({"threshold": "learnt"}, ValueError, "Did you mean 'learned'"),
        ({"log": "off"}, ValueError, "log cannot be 'off'"),
        ({"final_activation": 1}, ValueError, "final_activation cannot be 1"),
        ({"init_c": "0.1"}, TypeError, "init_c must be a number, not '0.1'"),
        ({"hidden_layers": -1}, ValueError, "at least 0, not -1"),
        ({"hidden_layers": 1.5}, TypeError, "whole number, not 1.5"),
        ({"width": 0}, ValueError, "width must be at least 1"),
        ({"init_c": 0.0}, ValueError, "init_c must be above 0"),
        ({"init_L": float("nan")}, ValueError, "init_L"),
        ({"horizon": 0}, ValueError, "horizon must be at least 1, not 0"),
        ({"smooth_beyond": 63}, ValueError, "smooth_beyond must be at least 64, not 63"),
        ({"smooth_beyond": 128.0}, TypeError, r"smooth_beyond must be a whole number, not 128\.0"),
        ({"first_position": -1}, ValueError, "first_position must be at least 0, not -1"),
        ({"eps": -1e-6}, ValueError, "eps must be at least 0"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        FIRE(4, **options)
