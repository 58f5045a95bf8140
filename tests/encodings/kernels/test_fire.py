"""FIRE's kernels against its formula in float64: values and all gradients, as exact as PyTorch in float32.

Without a CUDA device they run in Triton's interpreter.
"""

import copy

import pytest
import torch
from torch import nn

from longfire import FIRE, ALiBi, theorem
from tests.tolerance import assert_as_accurate

pytest.importorskip("triton")

from longfire.encodings.kernels import fire as fire_kernel
from longfire.encodings.kernels import fire_kernels

device = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _served(monkeypatch):
    monkeypatch.setattr(fire_kernel, "serve_cpu", True)


def plain(fire, q_positions, k_positions):
    """The bias in PyTorch operations, whatever FIRE.bias uses."""
    with torch.autocast(device, enabled=False):
        return fire._bias(q_positions, k_positions)


def made(num_heads=3, **options):
    """A FIRE with negative c, L among the positions, and units on both sides of 0."""
    fire = FIRE(num_heads, **{"init_L": 20.0, **options})
    with torch.no_grad():
        for name, parameter in fire.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
        if fire.log:
            fire.c.fill_(-0.3)
        if fire.threshold == "learned":
            fire.L_multiplier.fill_(-1.5)
    return fire.to(device)


def with_gradients(make, fire, q_positions, k_positions, *dbiases):
    """The bias, and by name the gradients for each of `dbiases`, stacked."""
    bias = make(fire, q_positions, k_positions)
    parameters = dict(fire.named_parameters())
    gradients = [
        torch.autograd.grad(bias, parameters.values(), dbias.to(bias.dtype), retain_graph=True) for dbias in dbiases
    ]
    return bias, {name: torch.stack(each) for name, *each in zip(parameters, *gradients, strict=True)}


def check(fire, q_positions, k_positions):
    q_positions, k_positions = q_positions.to(device), k_positions.to(device)
    assert fire_kernel.serves(fire, q_positions)
    double = copy.deepcopy(fire).double()
    shape = plain(fire, q_positions, k_positions).shape
    dbiases = torch.randn(4, *shape, device=device)  # several, so that a small error is not luck
    exact, exact_gradients = with_gradients(plain, double, q_positions, k_positions, *dbiases)
    eager, eager_gradients = with_gradients(plain, fire, q_positions, k_positions, *dbiases)
    bias, gradients = with_gradients(fire_kernel.fire_bias, fire, q_positions, k_positions, *dbiases)
    assert bias.dtype == torch.float32
    assert bias.shape == shape
    assert bias.is_contiguous()
    assert_as_accurate(bias, eager, exact)
    for name, gradient in gradients.items():
        assert gradient.shape == eager_gradients[name].shape
        assert_as_accurate(gradient, eager_gradients[name], exact_gradients[name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_heads": 12, "hidden_layers": 1, "first_position": 0},  # the paper's listing
        {"num_heads": 1, "activation": "gelu", "width": 7},
        {"final_activation": True, "width": 20},
        {"hidden_layers": 1, "activation": "gelu", "final_activation": True, "threshold": "fixed"},
        {"log": False},
        {"log": False, "threshold": None, "hidden_layers": 1},
        {"threshold": None, "first_position": 0},
        {"threshold": None, "first_position": 0, "eps": 0.0},  # the first query's normaliser is 0
        {"threshold": "fixed", "eps": 0.1, "num_heads": 17},
        {"width": 64, "num_heads": 33},
        {"horizon": 60},
        {"horizon": 12},  # below the threshold, which gets no gradient
        {"horizon": 40, "threshold": None, "log": False},
        {"bidirectional": True},
        {"bidirectional": True, "hidden_layers": 1, "num_heads": 12, "horizon": 60},
        {"bidirectional": True, "threshold": None, "first_position": 0, "eps": 0.0},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()) or "default",
)
@pytest.mark.filterwarnings("ignore:horizon=12 is below init_L")
def test_options(options):
    check(made(**options), torch.tensor([0, 3, 29, 30, 110]), torch.arange(111))


@pytest.mark.parametrize(
    ("q_positions", "k_positions"),
    [
        (torch.tensor([0]), torch.tensor([0])),
        (torch.tensor([62]), torch.arange(63)),
        (torch.tensor([9, 10**6]), torch.arange(10**6 - 5, 10**6 + 5)),
        (torch.randint(99, (2, 3)), torch.randint(99, (2, 63))),
        (torch.tensor([5, 70]), torch.randint(99, (2, 10))),
        (torch.randint(99, (2, 3)), torch.arange(10)),
        (torch.randint(99, (1, 3)), torch.randint(99, (2, 10)).int()),
        (torch.tensor([5, 70]).expand(2, 2), torch.arange(20)[::2]),
        (torch.arange(3)[None], torch.arange(4)),
    ],
    ids=["1x1", "row", "far", "batched", "keys batched", "queries batched", "batch of one", "strided", "one batched"],
)
def test_positions(q_positions, k_positions):
    check(made(), q_positions, k_positions)


@pytest.mark.parametrize(("queries", "keys"), [(3, 63), (63, 3), (70, 1)])
def test_both_sides(queries, keys):
    """More queries than keys are computed the other way round."""
    check(made(bidirectional=True), torch.randint(99, (2, queries)), torch.randint(99, (2, keys)))
    check(made(bidirectional=True), torch.randint(99, (queries,)), torch.randint(99, (1, keys)))


def test_no_positions():
    fire = made()
    none, some = torch.arange(0, device=device), torch.arange(3, device=device)
    for q_positions, k_positions in (
        (none, some),
        (some, none),
        (some.expand(0, 3), some),
        (some[None], some.expand(0, 3)),
    ):
        bias = fire_kernel.fire_bias(fire, q_positions, k_positions)
        assert bias.shape == plain(fire, q_positions, k_positions).shape
        bias.sum().backward()
        assert all((p.grad == 0).all() for p in fire.parameters())


def test_fewer_programs_than_pairs(monkeypatch):
    """Fewer programs than pairs of a query and a chunk of keys."""
    monkeypatch.setattr(fire_kernels, "MAX_PROGRAMS", 3)
    check(made(), torch.tensor([0, 3, 29, 30]), torch.arange(111))


def test_tie_between_position_and_threshold():
    """At i = L each gets half of the gradient, as in torch.maximum."""
    fire = made(init_L=8.0)
    fire.L_multiplier.data.fill_(1.0)
    check(fire, torch.tensor([7]), torch.arange(8))


def test_c_of_zero():
    fire = made()
    fire.c.data.zero_()
    check(fire, torch.tensor([7, 50]), torch.arange(8))


def test_bitwise_deterministic():
    fire, dbias = made(), torch.randn(3, 2, 70, device=device)
    positions = (torch.tensor([5, 60], device=device), torch.arange(70, device=device))
    first, second = (with_gradients(fire_kernel.fire_bias, fire, *positions, dbias) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_nan_stays_nan():
    """Divergence must not be hidden."""
    fire = made()
    fire.mlp[0].weight.data[3] = float("nan")
    positions = torch.arange(3, device=device)
    assert fire_kernel.fire_bias(fire, positions, positions).isnan().all()


def test_autocast_changes_nothing():
    fire, positions = made(), torch.arange(5, device=device)
    expected = fire_kernel.fire_bias(fire, positions, positions)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(fire_kernel.fire_bias(fire, positions, positions), expected)


def test_compiled():
    """In one graph, including `serves`."""
    fire, dbias = made(), torch.randn(3, 2, 70, device=device)
    positions = (torch.tensor([5, 60], device=device), torch.arange(70, device=device))

    def bias(fire, q_positions, k_positions):
        assert fire_kernel.serves(fire, q_positions)
        return fire_kernel.fire_bias(fire, q_positions, k_positions)

    expected = with_gradients(bias, fire, *positions, dbias)
    compiled = torch.compile(bias, fullgraph=True, backend="aot_eager")
    result = with_gradients(compiled, fire, *positions, dbias)
    assert torch.equal(result[0], expected[0])
    for name, gradient in expected[1].items():
        assert torch.equal(result[1][name], gradient)


@pytest.mark.parametrize("hidden_layers", [1, 2])
def test_operator(hidden_layers):
    fire = made(hidden_layers=hidden_layers, threshold="fixed", log=hidden_layers == 2)
    layers = [tensor for linear in fire.linears for tensor in (linear.weight, linear.bias)]
    layers = [*layers[:2], *(layers[2:4] if hidden_layers == 2 else (None, None)), *layers[-2:]]
    positions = torch.arange(2, device=device)
    arguments = (positions, positions, fire.c if fire.log else None, fire.L, *layers, False, False, 1, 1e-6, 0, False)
    torch.library.opcheck(torch.ops.longfire.fire_bias.default, arguments)
    plain_arguments = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
    dbias = torch.randn(3, 2, 2, device=device)
    torch.library.opcheck(torch.ops.longfire.fire_bias_backward.default, (dbias, *plain_arguments))


def test_serves(monkeypatch):
    positions = torch.arange(3, device=device)
    assert fire_kernel.serves(made(), positions)
    assert fire_kernel.serves(made(num_heads=64, width=64), positions)
    assert not fire_kernel.serves(made().double(), positions)
    assert not fire_kernel.serves(made(hidden_layers=0), positions)
    assert not fire_kernel.serves(made(hidden_layers=3), positions)
    assert not fire_kernel.serves(made(width=65), positions)
    assert not fire_kernel.serves(made(num_heads=65), positions)
    assert not fire_kernel.serves(theorem.as_fire(ALiBi(4), exact_length=8).float().to(device), positions)
    for other in (nn.Tanh(), nn.GELU(approximate="tanh"), nn.GELU()):  # the last one differs from the other layer's
        fire = made()
        fire.mlp[1] = other
        assert not fire_kernel.serves(fire, positions)
    fire = made()
    torch.nn.utils.parametrizations.weight_norm(fire.mlp[2])
    assert not fire_kernel.serves(fire, positions)
    served, fire = [], made()
    torch.func.vmap(lambda p: served.append(fire_kernel.serves(fire, p)) or p)(positions[None])
    assert served == [False]
    monkeypatch.setattr(fire_kernel, "serve_cpu", False)
    assert not fire_kernel.serves(made().cpu(), positions.cpu())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden_layers": 1, "threshold": "fixed"},
        {"threshold": None, "log": False, "activation": "gelu"},
        {"final_activation": True, "horizon": 30, "width": 13},
    ],
    ids=str,
)
def test_several_in_one_launch(options):
    fires = [made(**options) for _ in range(3)]
    q_positions, k_positions = torch.tensor([[7], [40]], device=device), torch.arange(60, device=device).expand(2, -1)
    assert not fire_kernel.serves_together(fires, q_positions)  # with gradients
    with torch.no_grad():
        assert fire_kernel.serves_together(fires, q_positions)
        together = fire_kernel.fire_biases(fires, q_positions, k_positions)
        alone = torch.cat([fire_kernel.fire_bias(fire, q_positions, k_positions) for fire in fires], dim=1)
    torch.testing.assert_close(together, alone, rtol=0, atol=0)


@pytest.mark.parametrize("other", [{"width": 16}, {"horizon": 90}, {"hidden_layers": 1}, {"threshold": None}], ids=str)
def test_different_architectures_are_not_computed_together(other):
    with torch.no_grad():
        assert not fire_kernel.serves_together([made(), made(**other)], torch.tensor([3], device=device))
        two_sided = [made(bidirectional=True) for _ in range(2)]
        assert not fire_kernel.serves_together(two_sided, torch.tensor([3], device=device))
