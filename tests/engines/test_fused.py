"""The fused engine: its kernels against their specification, and the engine against the reference.

Without a CUDA device the kernels run in Triton's interpreter, at sizes that it can bear.
"""

import pytest
import torch

from longfire import FIRE, T5, KerpleLog, NoPE, PositionEncoding, Sandwich, attention, attention_plan, prepare_bias
from longfire.encodings import DistanceBias
from longfire.engines import PreparedBias
from longfire.engines.fused import spec
from longfire.engines.fused.decode_bias import interpolated_row, node_values, nodes_of, row_biases
from longfire.engines.fused.geometry import Geometry, node_index, node_position, smoothness
from tests.samples import increasing

pytest.importorskip("triton")

from longfire.encodings.kernels import fire as fire_kernel
from longfire.engines.fused import bias as fused_bias
from longfire.engines.fused import configs, launch, turns

device = "cuda" if torch.cuda.is_available() else "cpu"


class Sloped(PositionEncoding):
    """A bias that is linear in query and key, so that interpolating it is exact, but not of the distance alone."""

    smooth_beyond = 64

    def __init__(self, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.slopes = torch.nn.Parameter(torch.randn(num_heads, 2))

    def bias(self, q_positions, k_positions):
        i, j = q_positions[..., None, :, None], k_positions[..., None, None, :]
        slope, tilt = (self.slopes.mT / 100)[..., None, None]
        return slope * (i - j).float() + tilt * i.float()


def kinked(heads, W=64, **options):
    """A FIRE with large slopes and sharp kinks."""
    fire = FIRE(heads, **{"init_L": 64.0, "smooth_beyond": W, **options})
    with torch.no_grad():
        for layer in fire.linears:
            layer.weight *= 2
            layer.bias.normal_()
    return fire.to(device)


# --- the specification ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_octave", [16, 32, 64])
def test_nodes(per_octave):
    positions = node_position(torch.arange(600), per_octave)
    assert positions[: 2 * per_octave + 1].tolist() == list(range(2 * per_octave + 1))
    gaps = positions.diff()
    assert (gaps * per_octave <= positions[:-1].clamp(min=per_octave)).all()
    for position in (0, 1, 31, 32, 63, 64, 100, 127, 128, 1000, 4097):
        index = node_index(position, per_octave)
        assert positions[index] <= position < positions[index + 1]


@pytest.mark.parametrize(("keys", "first"), [(1, 0), (63, 0), (257, 0), (900, 0), (900, 880), (2049, 1100)])
def test_interpolating_what_is_linear_is_exact(keys, first):
    encoding, geometry = Sloped(2).to(device).double(), Geometry(keys, first, 64)
    values = encoding.bias(*geometry.positions(torch.device(device)))[:, :, 0].double()
    rows = torch.arange(first, keys, device=device)[::7]
    found = spec.interpolated(values, geometry, rows)
    expected = encoding.bias(rows, torch.arange(keys, device=device)).double()
    seen = torch.arange(keys, device=device) <= rows[:, None]
    assert (found - expected)[:, seen].abs().max() < 1e-5
    assert geometry.has_far == (keys > 768)


@pytest.mark.parametrize("keys", [300, 2048])
def test_near_distances_are_exact_and_a_larger_smooth_beyond_makes_less_error(keys):
    errors = []
    for W in (64, 128, 512):
        fire = kinked(4, W)
        bias = fused_bias.fused_bias(fire, keys, 0, torch.device(device))
        errors.append(fused_bias.interpolation_error(fire, bias)[0])
    assert errors[2] < errors[1] < errors[0] < 0.5
    assert errors[2] < 0.2 * errors[0] + 1e-6


def test_the_reported_error_is_that_of_the_biases_used():
    """Measured anew from the dense bias, over all queries."""
    fire, n = kinked(2), 400
    bias = fused_bias.fused_bias(fire, n, 0, torch.device(device))
    largest, typical = fused_bias.interpolation_error(fire, bias, rows=n)
    rows = torch.arange(n, device=device)
    error = (spec.interpolated(bias.values.double(), bias.geometry, rows) - fire.bias(rows, rows)).tril().abs()
    assert largest == pytest.approx(error.max().item(), rel=1e-6)
    assert typical == pytest.approx((error.square().sum() / (2 * n * (n + 1) / 2)).sqrt().item(), rel=1e-4)
    x = torch.zeros(1, 2, n, 16, device=device)
    plan = attention_plan(x, x, x, fire, impl="fused")
    assert 0 < plan.error <= largest  # over 64 of the queries
    assert f"by at most {plan.error:.2g}" in str(plan)
    assert attention_plan(x, x, x, T5(2).to(device), impl="fused").error == 0.0


def test_smoothness_is_a_power_of_two():
    assert [smoothness(w) for w in (0, 64, 65, 128, 1000)] == [64, 64, 128, 128, 1024]


# --- the kernels ---------------------------------------------------------------------------------------------------

KERNEL_CASES = {
    "near": (kinked, 70, 70, 1, torch.float32),
    "middle": (kinked, 300, 30, 1, torch.float32),
    "middle, half precision": (kinked, 300, 30, 1, torch.float16),
    "far": (kinked, 800, 20, 1, torch.float32),
    "far, a row node before the first block": (kinked, 4226, 2, 1, torch.float32),
    "table": (lambda heads: T5(heads).to(device), 150, 111, 2, torch.float32),
}


def spec_attention(q, k, v, values, geometry, do):
    """Attention with the specification's bias in float64: the output and the gradients of q, k, v and the values."""
    q, k, v, values = (tensor.double().detach().requires_grad_() for tensor in (q, k, v, values))
    rows = torch.arange(geometry.first, geometry.keys, device=q.device)
    out = attention(q, k, v, spec.interpolated(values, geometry, rows), impl="reference")
    return out, *torch.autograd.grad(out, (q, k, v, values), do.double())


@pytest.mark.parametrize("case", KERNEL_CASES)
def test_kernels_do_as_the_specification_says(case):
    make, keys, queries, groups, dtype = KERNEL_CASES[case]
    heads, D = groups, 16
    encoding = make(heads)
    geometry = Geometry(keys, keys - queries, None if encoding.distance_only else 64)
    values = encoding.bias(*geometry.positions(torch.device(device)))[:, :, 0].detach().contiguous()
    q, do = torch.randn(2, 2 if keys < 100 else 1, heads, queries, D, device=device).to(dtype)
    k, v = torch.randn(2, q.shape[0], 1, keys, D, device=device).to(dtype)
    bias = launch.expanded(values, geometry, dtype != torch.float32, D**-0.5)
    call = launch.Call(q, k, v, bias, None, None, None, geometry, D**-0.5, 0.0)
    out, lse = call.forward()
    found = (out, *call.backward(do, out, lse, learned=True))
    tolerance = 3e-6 if dtype == torch.float32 else 2e-3
    for name, got, exact in zip(
        ["out", "q", "k", "v", "values"], found, spec_attention(q, k, v, values, geometry, do), strict=True
    ):
        assert (got.double() - exact).abs().max() <= tolerance * exact.abs().max(), name


NEAR_CASES = {
    # smooth, keys, queries, sequences, key heads, padding of each sequence, dropout
    "padding, hidden keys, dropout": (16, 70, 70, 2, 1, [0, 33], 0.2),
    "of the distance alone": (None, 140, 140, 1, 2, None, 0.0),
    "the last queries, and middle nodes": (16, 270, 10, 1, 2, None, 0.0),
}


def poisoned(self, *size, **options):
    """Memory as it may be found."""
    found = torch.empty(*size, **{"dtype": self.dtype, "device": self.device, **options})
    return found.fill_(torch.nan) if found.is_floating_point() else found


@pytest.mark.parametrize("case", NEAR_CASES)
def test_heads_taking_turns_have_the_same_gradients(case, monkeypatch):
    smooth, keys, queries, B, key_heads, padding, dropout_p = NEAR_CASES[case]
    H, D, scale = 2, 16, 0.25
    geometry = Geometry(keys, keys - queries, smooth)
    values = torch.randn(geometry.row_nodes, H, geometry.distance_nodes, device=device)
    q, do = torch.randn(2, B, H, queries, D, device=device)
    k, v = torch.randn(2, B, key_heads, keys, D, device=device)
    shift = key_mask = seed = None
    if padding is not None:
        key_mask = (padded(keys, padding)[1] & (torch.rand(B, keys, device=device) < 0.8)).to(torch.uint8)
        shift = torch.tensor(padding, device=device, dtype=torch.int32)
        seed = torch.tensor([5], device=device)
    bias = launch.expanded(values, geometry, False, scale)
    calls = [launch.Call(q, k, v, bias, key_mask, shift, seed, geometry, scale, dropout_p) for _ in range(2)]
    out, lse = calls[0].forward()
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(turns, "DISTANCES", 128)
    together = calls[0].backward(do, out, lse, learned=True)
    monkeypatch.setattr(configs, "NEAR_BYTES", 1)
    alone = calls[1].backward(do, out, lse, learned=True)
    assert [call.turns.heads for call in calls] == [H, 1]
    for got, expected in zip(alone, together, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6 * expected.abs().max().item())


def test_turns_are_even():
    geometry = launch.numbers(Geometry(32768, 0, None))
    assert 1 < turns.near_turns(geometry, 12).heads < 12
    assert 12 % turns.near_turns(geometry, 12).heads == 0
    assert [turns.even_turns(12, at_most) for at_most in (1, 5, 7, 11, 12, 99)] == [1, 4, 6, 6, 12, 12]


# --- the engine ----------------------------------------------------------------------------------------------------


def both(encoding, q, k, v, engine="fused", gradients=True, **options):
    """Output and gradients by the fused engine, and by the reference."""
    found = []
    for impl in (engine, "reference"):
        tensors = [tensor.detach().clone().requires_grad_(gradients) for tensor in (q, k, v)]
        out = attention(*tensors, encoding, impl=impl, **options)
        wanted = [*tensors, *encoding.parameters()]
        found.append((out, *(torch.autograd.grad(out.square().sum(), wanted) if gradients else ())))
    return found


def close(found, expected, tolerance=1e-5):
    """Relative to the largest value; a gradient of q, k, v or a parameter, to the largest of its kind."""
    for kind in (slice(0, 1), slice(1, 4), slice(4, None)):
        scale = max((exact.abs().max().item() for exact in expected[kind]), default=0.0)
        for got, exact in zip(found[kind], expected[kind], strict=True):
            assert torch.isfinite(got).all()
            assert (got - exact).abs().max() <= tolerance * scale


def padded(T, padding):
    key_mask = torch.arange(T, device=device) >= torch.tensor(padding, device=device)[:, None]
    return (key_mask.cumsum(1) - 1).clamp(min=0), key_mask


def test_a_hook_on_the_encoding_counts():
    calls, (q, k, v) = [], torch.randn(3, 1, 2, 40, 16, device=device)
    encoding = Sloped(2).to(device)
    encoding.register_forward_hook(lambda _, given, bias: calls.append(given) or 3 * bias)
    close(*both(encoding, q, k, v))
    assert len(calls) == 2  # one by the reference


def test_promised_padding():
    """The same as padding that the engine finds by itself, where it may not look."""
    encoding, (q, k, v) = kinked(2), torch.randn(3, 2, 2, 40, 16, device=device)
    positions, key_mask = padded(40, [0, 17])
    padding = torch.tensor([0, 17], device=device)
    bias = prepare_bias(encoding, positions, positions, in_order=True, padding=padding)
    found = attention(q, k, v, bias, key_mask=key_mask, impl="fused")
    where = {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}
    assert torch.equal(found, attention(q, k, v, encoding, impl="fused", **where))
    with pytest.raises(ValueError, match="padding is part of the promise"):
        prepare_bias(encoding, positions, positions, padding=padding)


def test_left_padding():
    positions, key_mask = padded(40, [0, 13])
    q, k, v = torch.randn(3, 2, 1, 40, 16, device=device)
    where = {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}
    close(*both(T5(1, num_buckets=8, max_distance=20).to(device), q, k, v, **where))
    close(*both(kinked(1), q, k, v, gradients=False, **where), tolerance=1e-2)  # interpolated


def test_left_padding_is_no_padding():
    """A padded sequence gets what it gets alone."""
    fire, (positions, key_mask) = kinked(1), padded(90, [13])
    q, k, v = torch.randn(3, 1, 1, 90, 16, device=device)
    with torch.no_grad():
        found = attention(q, k, v, fire, q_positions=positions, k_positions=positions, key_mask=key_mask, impl="fused")
        alone = attention(q[:, :, 13:], k[:, :, 13:], v[:, :, 13:], fire, impl="fused")
    torch.testing.assert_close(found[:, :, 13:], alone, rtol=1e-5, atol=1e-6)


def test_training_after_inference():
    """What is kept from one call to the next is made for both."""
    encoding = T5(1, num_buckets=8, max_distance=20).to(device)
    q, k, v = torch.randn(3, 2, 1, 41, 16, device=device)
    positions, key_mask = padded(41, [0, 5])
    for where in ({}, {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}):
        with torch.inference_mode():
            attention(q, k, v, encoding, impl="fused", **where)
            inside = {name: tensor.clone() for name, tensor in where.items()}
            attention(q, k, v, encoding, impl="fused", **inside)
        close(*both(encoding, q, k, v, **where))


def test_positions_written_to_are_looked_at_again():
    encoding, positions = T5(1).to(device), torch.arange(9, device=device)
    q = torch.zeros(1, 1, 9, 16, device=device)
    attention(q, q, q, encoding, q_positions=positions, k_positions=positions, impl="fused")
    positions[4:] += 1
    with pytest.raises(ValueError, match="do not go up one by one"):
        attention(q, q, q, encoding, q_positions=positions, k_positions=positions, impl="fused")


def test_keys_hidden_anywhere():
    key_mask = torch.rand(2, 70, device=device) < 0.7
    key_mask[0, :20] = False  # the first queries see nothing
    q, k, v = torch.randn(3, 2, 1, 70, 16, device=device)
    found, expected = both(KerpleLog(1).to(device), q, k, v, key_mask=key_mask)
    assert (found[0][0, :, :20] == 0).all()
    close(found, expected)


@pytest.mark.parametrize("make", [kinked, lambda heads: Sandwich(heads, 16).to(device), lambda heads: NoPE()])
@pytest.mark.parametrize("groups", [1, 2])
def test_decoding(make, groups):
    encoding = make(2)
    q = torch.randn(2, 2, 1, 16, device=device)
    k, v = torch.randn(2, 2, 2 // groups, 111, 16, device=device)
    positions, key_mask = padded(111, [0, 40])
    where = {"q_positions": positions[:, -1:], "k_positions": positions, "key_mask": key_mask}
    for options in ({}, where, {"key_mask": key_mask}, {"causal": False}):
        with torch.no_grad():
            close(*both(encoding, q, k, v, gradients=False, **options), tolerance=2e-6)


def test_decoding_at_nodes():
    """More keys than nodes, in low precision: straight lines along the distance, and the plan says how far off."""
    encoding = kinked(2)
    S = nodes_of(encoding) + 60
    q, k, v = (torch.randn(2, heads, n, 16, device=device).half() for heads, n in ((2, 1), (1, S), (1, S)))
    positions, key_mask = padded(S, [0, 333])
    padded_ones = {"q_positions": positions[:, -1:], "k_positions": positions, "key_mask": key_mask}
    far = {
        "q_positions": torch.tensor([99_999], device=device),
        "k_positions": increasing(100_000, (S,), device),
    }
    for options in ({}, padded_ones, far):
        with torch.no_grad():
            plan = attention_plan(q, k, v, encoding, impl="fused", **options)
            assert "interpolated along the distance" in plan.why
            assert 0 < plan.error < 0.02
            close(*both(encoding, q, k, v, gradients=False, **options), tolerance=5e-3)
            q_positions = options.get("q_positions", torch.tensor([S - 1], device=device))
            k_positions = options.get("k_positions", torch.arange(S, device=device))
            nodes = node_values([encoding], q_positions)
            row = interpolated_row(nodes, encoding.smooth_beyond // 2, q_positions, k_positions)[:, :, None]
            exact = {name: option for name, option in options.items() if "positions" not in name}
            seen = (torch.atleast_2d(k_positions) <= torch.atleast_2d(q_positions))[:, None, None]
            dense = row.float().masked_fill(~seen, -torch.inf)
            expected = attention(q, k, v, dense, causal=False, impl="reference", **exact)
            close([attention(q, k, v, encoding, impl="fused", **options)], [expected], tolerance=1e-3)


@pytest.mark.parametrize("kind", ["alike", "unlike", "another encoding", "hooked"])
def test_decoding_at_nodes_for_layers_at_once(kind, monkeypatch):
    """Rows of several encodings are each its own, and what hides keys is in them."""
    monkeypatch.setattr(fire_kernel, "serve_cpu", True)
    encodings = [kinked(2), kinked(2), kinked(2)]
    encodings[1].L_multiplier.data.fill_(-1.5)
    if kind == "unlike":
        encodings[1].smooth_beyond = 128
    if kind == "another encoding":
        encodings[1] = KerpleLog(2).to(device)
        encodings[1].distance_only, encodings[1].smooth_beyond = False, encodings[0].smooth_beyond
    if kind == "hooked":
        encodings[1].register_forward_hook(lambda _, positions, bias: bias + 1)
    S = 1000
    positions, key_mask = padded(S, [0, 333])
    positions = positions + 5000
    with torch.no_grad():
        rows = row_biases(encodings, positions[:, -9:-8], positions, key_mask)
        for encoding, row in zip(encodings, rows, strict=True):
            own = encoding(positions[:, -9:-8], positions)[:, :, 0]
            seen = (key_mask & (positions <= positions[:, -9:-8]))[:, None].expand_as(own)
            assert row.shape == own.shape
            assert (row[~seen] == -torch.inf).all()
            assert (row - own)[seen].abs().max() < 0.02
            (alone,) = row_biases([encoding], positions[:, -9:-8], positions, key_mask)
            torch.testing.assert_close(row, alone, rtol=1e-6, atol=1e-6)


def test_a_prepared_row():
    """It is used as it is: by the kernel without looking at the mask again, and by other engines."""
    encoding, S = kinked(2), 700
    q, k, v = (torch.randn(2, 2, n, 16, device=device).half() for n in (1, S, S))
    positions, key_mask = padded(S, [0, 333])
    where = {"q_positions": positions[:, -1:], "k_positions": positions}
    expected = attention(q, k, v, encoding, key_mask=key_mask, **where)
    with torch.no_grad():
        for mask in (key_mask, None):
            (row,) = row_biases([encoding], *where.values(), mask)
            prepared = PreparedBias(encoding=encoding, **where, tensor=row[:, :, None], drawn=True, key_mask=mask)
            for impl in ("fused", "sdpa", "reference"):
                found = attention(q, k, v, prepared, key_mask=key_mask, impl=impl)
                close([found], [expected], tolerance=5e-3)
            plan = attention_plan(q, k, v, prepared, key_mask=key_mask, impl="fused")
            assert "interpolated" in plan.why
            assert 0 < plan.error < 0.02
    prepared = PreparedBias(encoding=encoding, **where, tensor=row[:, :, None], drawn=True, key_mask=key_mask)
    prepared.check_same(None, None, key_mask.clone())
    with pytest.raises(ValueError, match="prepared for another key_mask"):
        prepared.check_same(None, None, torch.ones(2, S, dtype=torch.bool, device=device))
    with pytest.raises(ValueError, match="prepared for other k_positions"):
        prepared.check_same(None, positions + 1, key_mask)


def test_decoding_at_any_positions():
    """One query's bias is made for the positions that there are."""
    q, k, v = (torch.randn(1, 2, n, 16, device=device) for n in (1, 50, 50))
    where = {
        "q_positions": torch.tensor([999], device=device),
        "k_positions": increasing(1200, (50,), device),
    }
    with torch.no_grad():
        close(*both(kinked(2), q, k, v, gradients=False, **where), tolerance=2e-6)
        nothing = {**where, "k_positions": torch.arange(1000, 1050, device=device)}
        assert (attention(q, k, v, kinked(2), impl="fused", **nothing) == 0).all()


def test_dropout():
    """Weights of 0 or 1 / (T · (1 − p)), the same for the same seed, and the same in backward."""
    T = 64
    q, v = torch.zeros(1, 1, T, 16, device=device), torch.randn(1, 1, T, 16, device=device)
    flat = T5(1).to(device)
    torch.nn.init.zeros_(flat.table)
    identity = torch.eye(T, device=device)[None, None]
    weights = []
    for columns in identity.split(16, dim=-1):  # values that show the weights, a few keys at a time
        torch.manual_seed(5)
        weights.append(attention(q, q, columns, flat, dropout_p=0.25, impl="fused"))
    weights = torch.cat(weights, -1)[0, 0]
    counts = torch.arange(1, T + 1, device=device)[:, None]
    scaled = (weights * counts * 0.75).tril()
    assert ((scaled - scaled.round()).abs() < 1e-5).all()
    assert 0.2 < 1 - scaled.sum() / (T * (T + 1) / 2) < 0.3
    assert (weights[32:48] != weights[48:64]).any()
    torch.manual_seed(5)
    v.requires_grad_()
    out = attention(q, q, v, flat, dropout_p=0.25, impl="fused")
    torch.testing.assert_close(out[0, 0], weights @ v[0, 0])
    do = torch.randn_like(out)
    (dv,) = torch.autograd.grad(out, v, do)
    torch.testing.assert_close(dv[0, 0], weights.mT @ do[0, 0])


def test_dropout_gradient_of_the_logits():
    q, k, v = torch.randn(3, 1, 1, 40, 16, device=device)
    encoding = T5(1, num_buckets=8, max_distance=20).to(device)
    wanted = [tensor.requires_grad_() for tensor in (q, k)] + list(encoding.parameters())

    def out():
        torch.manual_seed(1)
        return attention(q, k, v, encoding, dropout_p=0.3, impl="fused")

    torch.manual_seed(2)
    do = torch.randn_like(q)
    gradients = torch.autograd.grad(out(), wanted, do)
    for tensor, gradient in zip(wanted, gradients, strict=True):
        direction = torch.randn_like(tensor)
        with torch.no_grad():
            tensor += 1e-2 * direction
            above = (out() * do).sum()
            tensor -= 2e-2 * direction
            below = (out() * do).sum()
            tensor += 1e-2 * direction
        torch.testing.assert_close((above - below) / 2e-2, (gradient * direction).sum(), rtol=2e-2, atol=2e-2)


def test_a_shared_bias():
    """Prepared once, its gradient is the sum over layers."""
    fire = T5(1, num_buckets=8, max_distance=20).to(device)
    q, k, v = torch.randn(3, 1, 1, 40, 16, device=device)
    positions = torch.arange(40, device=device)
    bias = fused_bias.fused_bias(fire, 40, 0, torch.device(device))
    made_for = {"encoding": fire, "q_positions": positions, "k_positions": positions, "in_order": True}
    prepared = PreparedBias(**made_for, fused=bias)  # on a CPU too
    shared = sum(attention(q * s, k, v, prepared, impl="fused").square().sum() for s in (1, 2))
    apart = sum(attention(q * s, k, v, fire, impl="fused").square().sum() for s in (1, 2))
    torch.testing.assert_close(shared, apart)
    for a, b in zip(*(torch.autograd.grad(x, list(fire.parameters())) for x in (shared, apart)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for impl in ("reference", "sdpa", "blocks"):
        torch.testing.assert_close(attention(q, k, v, prepared, impl=impl), attention(q, k, v, fire, impl="reference"))


class Undeclared(Sloped):
    smooth_beyond = None


class OfDistance(DistanceBias):
    def __init__(self, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wave = torch.nn.Parameter(torch.rand(num_heads))

    def of_distance(self, distance):
        return torch.sin(self.wave[:, None, None] * distance)


def test_ones_own_encoding():
    """Exactly, if it says that it is of the distance alone; by interpolation, if it says where; else not."""
    q, k, v = torch.randn(3, 1, 1, 70, 16, device=device)
    close(*both(OfDistance(1).to(device), q, k, v), tolerance=1e-4)
    close(*both(Sloped(1).to(device), q, k, v, gradients=False))
    for undeclared in (Undeclared(1), FIRE(1, smooth_beyond=None)):
        with pytest.raises(
            ValueError, match=r"neither distance_only nor smooth_beyond.*\(smooth_beyond=128 would allow"
        ):
            attention(q, k, v, undeclared.to(device), impl="fused")


def test_the_plan_names_the_option_that_makes_it_more_exact():
    q, k, v = torch.randn(3, 1, 2, 700, 16, device=device)
    torch.manual_seed(0)
    fire = kinked(2)
    plan = attention_plan(q, k, v, fire, impl="fused")
    assert "smooth_beyond=128 would be more exact than 64: the bias is interpolated by at most" in str(plan)
    better = FIRE(2, init_L=64.0, smooth_beyond=128).to(device)
    better.load_state_dict(fire.state_dict())
    assert attention_plan(q, k, v, better, impl="fused").error < plan.error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal": False}, "causal only"),
        ({"bias": None}, "no bias; sdpa has faster kernels"),
        ({"bias": torch.zeros(9, 9)}, "a tensor is dense already"),
        ({"scale": 1e-5}, "scale must be at least 2e-05, not 1e-05"),
        ({"q": torch.zeros(1, 1, 9, 16, dtype=torch.float64)}, "q is torch.float64"),
        ({"q": torch.zeros(1, 1, 9, 160)}, "largest head size is 128, and this is 160"),
        ({"positions": torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4])}, "must strictly increase"),
        ({"positions": torch.arange(9) * 2}, "do not go up one by one from 0"),
        ({"positions": torch.arange(9) + 5}, "do not go up one by one from 0"),
        ({"q_positions": torch.arange(8, -1, -1)}, "the queries are not the last of the keys in order"),
    ],
)
def test_refusals(change, message):
    change = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in change.items()}
    q = change.pop("q", torch.zeros(1, 1, 9, 16, device=device))
    if "positions" in change:
        change["q_positions"] = change["k_positions"] = change.pop("positions")
    if "q_positions" in change:
        change.setdefault("k_positions", torch.arange(9, device=device))
    bias = change.pop("bias", T5(1).to(device))
    with pytest.raises(ValueError, match=message):
        attention(q, q, q, bias, impl="fused", **change)


@pytest.mark.gpu
def test_auto_leaves_float32_to_an_exact_engine():
    x = torch.zeros(1, 1, 9, 16, device=device)
    assert attention_plan(x, x, x, T5(1).to(device)).engine == "fused"
    assert attention_plan(x, x, x, kinked(1)).engine == "blocks"
    half = x.half()
    assert attention_plan(half, half, half, kinked(1)).engine == "fused"


class Cliff(DistanceBias):
    """Nothing beyond a distance."""

    num_heads = 1

    def of_distance(self, distance):
        return torch.where(distance < 20, 0.0, -torch.inf)


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 150), (torch.float16, 300)])
def test_a_bias_of_minus_infinity(dtype, length):
    q = torch.randn(1, 1, 8, 16, device=device).to(dtype)
    k, v = torch.randn(2, 1, 1, length, 16, device=device).to(dtype)
    close(*both(Cliff(), q, k, v, gradients=False), tolerance=3e-3)


@pytest.mark.parametrize("scale", [None, 1e-3])
def test_a_bias_too_large_for_half_precision(scale):
    """In the middle zone, where it is divided by the scale."""
    encoding = Sloped(1).to(device)
    encoding.slopes.data.copy_(torch.tensor([[-1e4, 0.0]]))
    q = torch.randn(1, 1, 8, 16, device=device).half()
    k, v = torch.randn(2, 1, 1, 300, 16, device=device).half()
    close(*both(encoding, q, k, v, gradients=False, scale=scale), tolerance=3e-3)


def test_heads_are_checked():
    class Headless(OfDistance):
        def __init__(self, heads):
            super().__init__(heads)
            del self.num_heads

    x = torch.randn(1, 3, 9, 16, device=device)
    with pytest.raises(ValueError, match="Headless has 1 heads and q"):
        attention(x, x, x, Headless(1).to(device), impl="fused")


def test_second_derivatives_are_refused():
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 1, 9, 16, device=device))
    out = attention(q, k, v, T5(1).to(device), impl="fused").square().sum()
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(out, q, create_graph=True)


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


def test_all_near_where_smooth_beyond_is_large():
    assert Geometry(300, 0, 4096).near == 3


def test_compiles_whole_and_once_for_many_lengths():
    encoding = T5(1).to(device)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, encoding, impl="fused"), fullgraph=True, backend=backend
    )
    for n in (20, 33, 47, 60):
        q, k, v = torch.randn(3, 1, 1, n, 16, device=device)
        torch.testing.assert_close(
            compiled(q, k, v), attention(q, k, v, encoding, impl="reference"), rtol=1e-4, atol=1e-5
        )
    assert len(graphs) <= 2  # the first length, then any


def test_operators_are_well_formed():
    from longfire.engines.fused import ops

    encoding = T5(1).to(device)
    bias = fused_bias.fused_bias(encoding, 20, 0, torch.device(device))
    g = bias.geometry
    numbers = (g.keys, g.first, g.smooth or 0)
    expanded = ops.expand_bias(bias.values.detach(), *numbers, False, 0.25)
    q, k, v = (tensor.requires_grad_() for tensor in torch.randn(3, 1, 1, 20, 16, device=device))
    torch.library.opcheck(ops.expand_bias.op, (bias.values.detach(), *numbers, False, 0.25))
    values = bias.values.detach().requires_grad_()
    torch.library.opcheck(
        ops.fused_attention.op,
        (q, k, v, values, *expanded, None, None, None, *numbers, 0.25, 0.0),
        raise_exception=True,
    )


def test_a_short_sequence_is_exact():
    """Up to half of smooth_beyond every query and every distance has a value of its own: parameters' gradients too."""
    q, k, v = torch.randn(3, 1, 1, 30, 16, device=device)
    close(*both(kinked(1), q, k, v), tolerance=1e-4)


def test_one_graph_for_lengths_of_an_octave():
    """Traced alone: what runs the graph makes something of the right shape."""
    torch.compiler.reset()
    graphs = []

    def stand_in(graph, _):
        graphs.append(graph)
        return lambda *inputs: (next(torch.empty_like(x) for x in inputs if getattr(x, "ndim", 0) == 4),)

    encoding = FIRE(2).to(device)
    compiled = torch.compile(lambda q: attention(q, q, q, encoding, impl="fused"), fullgraph=True, backend=stand_in)
    for length in (600, 700, 777, 900, 1000):
        with torch.no_grad():
            compiled(torch.randn(1, 2, length, 16, device=device))
    assert len(graphs) == 2  # the first takes lengths for constants


def test_keys_after_the_query_are_not_interpolated():
    """Without causality they count, and have a bias of their own: the row is then given for each key."""
    encoding = kinked(1)
    S = nodes_of(encoding) + 60
    q, k, v = (torch.randn(1, 1, n, 16, device=device).half() for n in (1, S, S))
    where = {"q_positions": torch.tensor([100], device=device), "k_positions": torch.arange(S, device=device)}
    with torch.no_grad():
        close(*both(encoding, q, k, v, gradients=False, causal=False, **where), tolerance=3e-3)
