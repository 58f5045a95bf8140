"""Theorem 3.1: other encodings, rewritten as FIRE."""

import pytest
import torch

from longfire import FIRE
from longfire.encodings import T5, ALiBi, KerpleLog, KerplePower, NoPE, RoPE, Sandwich
from longfire.theorem import Step, as_fire

HEADS = 4
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def sources(dtype):
    """Different parameters in every head, including the extremes of their ranges."""
    torch.manual_seed(7)
    log, power, t5 = KerpleLog(HEADS), KerplePower(HEADS), T5(HEADS)
    log.r1.data, log.r2.data = torch.tensor([0.01, 0.7, 2.0, 5.0]), torch.tensor([1.0, 0.01, 30.0, 0.3])
    power.r1.data, power.r2.data = torch.tensor([0.01, 0.7, 2.0, 5.0]), torch.tensor([2.0, 0.01, 0.5, 1.0])
    torch.nn.init.normal_(t5.table)
    coarse = T5(HEADS, num_buckets=8, max_distance=3000)
    torch.nn.init.normal_(coarse.table)
    return {
        "alibi": ALiBi(HEADS, slopes=[0.5, 0.01, 3.0, -0.2]).to(dtype),
        "kerple_log": log.to(dtype),
        "kerple_power": power.to(dtype),
        "t5": t5.to(dtype),
        "t5 coarse": coarse.to(dtype),
        "sandwich": Sandwich(HEADS, 64, scales=[1.0, 0.1, -2.0, 0.7]).to(dtype),
    }


NAMES = list(sources(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 100])
@pytest.mark.parametrize("name", NAMES)
def test_equal_everywhere(name, length, dtype):
    encoding = sources(dtype)[name]
    fire = as_fire(encoding, length)
    keys = torch.arange(length)
    causal = keys <= keys[:, None]
    expected, actual = encoding.bias(keys, keys) * causal, fire.bias(keys, keys) * causal
    assert actual.dtype == dtype
    for head in range(HEADS):
        largest = expected[head].abs().max()
        assert (actual[head] - expected[head]).abs().max() <= TOLERANCE[dtype] * largest


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equal_at_4096(name, dtype):
    """Every key of every 16th query, and of the first and last ones."""
    encoding = sources(dtype)[name]
    fire = as_fire(encoding, 4096)
    keys, queries = torch.arange(4096), torch.cat([torch.arange(0, 4096, 16), torch.arange(4090, 4096)])
    causal = keys <= queries[:, None]
    with torch.no_grad():
        expected, actual = encoding.bias(queries, keys) * causal, fire.bias(queries, keys) * causal
    largest = expected.abs().amax((-2, -1))
    assert ((actual - expected).abs().amax((-2, -1)) <= TOLERANCE[dtype] * largest).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_a_fire_with_its_own_parameters(name):
    encoding = sources(torch.float32)[name]
    fire = as_fire(encoding, 50)
    assert isinstance(fire, FIRE)
    assert fire.smooth_beyond == encoding.smooth_beyond
    assert all(parameter.requires_grad for parameter in fire.parameters())
    assert torch.isfinite(
        fire.bias(torch.arange(300), torch.arange(300))
    ).all()  # including keys after the query and positions beyond the length
    before = [tensor.clone() for tensor in (*encoding.parameters(), *encoding.buffers())]
    fire.bias(torch.arange(50), torch.arange(50)).sum().backward()
    with torch.no_grad():
        for parameter in fire.parameters():
            parameter.add_(1.0)
    after = [*encoding.parameters(), *encoding.buffers()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_from_low_precision():
    """Tensors that a framework has cast to bfloat16 are converted to float32 for computing."""
    for name in ("alibi", "kerple_log", "kerple_power"):
        encoding = sources(torch.float32)[name]
        for tensor in (*encoding.parameters(), *encoding.buffers()):
            tensor.data = tensor.data.bfloat16()
        expected, positions = encoding.bias(torch.arange(50), torch.arange(50)).tril(), torch.arange(50)
        difference = as_fire(encoding, 50).bias(positions, positions).tril() - expected
        assert difference.abs().max() <= 1e-4 * expected.abs().max()


def test_the_length_is_fixed_and_the_step_includes_zero():
    assert "L_multiplier" not in dict(as_fire(ALiBi(2), 10).named_parameters())
    assert Step()(torch.tensor([-0.1, 0.0, 0.1])).tolist() == [0.0, 1.0, 1.0]


def test_batched_positions():
    for encoding in sources(torch.float64).values():
        fire, positions = as_fire(encoding, 50), torch.stack([torch.arange(20), torch.arange(20) + 9])
        torch.testing.assert_close(fire.bias(positions, positions)[1], fire.bias(positions[1], positions[1]))


def test_rounding_errors_do_not_change_the_bucket():
    """With steps at integer distances, some d with 49·(d / 49) < d in float32 would fall one bucket short."""
    length = 49
    distances = torch.arange(length, dtype=torch.float32)
    assert (length * (distances / length) < distances).any()
    encoding = T5(1, num_buckets=64, max_distance=128)
    encoding.table.data = torch.arange(64.0)[:, None]
    bias = as_fire(encoding, length).bias(torch.tensor([length - 1]), torch.arange(length))
    torch.testing.assert_close(bias, encoding.bias(torch.tensor([length - 1]), torch.arange(length)))


@pytest.mark.parametrize("length", [1, 7, 100, 1000])
def test_both_sides_of_a_bidirectional_t5(length):
    torch.manual_seed(0)
    encoding = T5(HEADS, num_buckets=24, max_distance=60, bidirectional=True)
    torch.nn.init.normal_(encoding.table)
    positions = torch.arange(length)
    fire = as_fire(encoding, length)
    assert fire.bidirectional
    torch.testing.assert_close(fire(positions, positions), encoding(positions, positions))


@pytest.mark.parametrize("encoding", [NoPE(), RoPE(8), FIRE(2)])
def test_encodings_the_theorem_does_not_cover(encoding):
    with pytest.raises(TypeError, match=r"cannot be rewritten as FIRE.*ALiBi, KerpleLog, KerplePower, T5, Sandwich"):
        as_fire(encoding, 10)


def test_bad_length_and_its_old_name():
    with pytest.raises(ValueError, match="exact_length must be at least 1, not 0"):
        as_fire(ALiBi(2), 0)
    with pytest.warns(FutureWarning, match=r"as_fire\(max_length=…\) is now exact_length=…"):
        fire = as_fire(ALiBi(2), max_length=10)
    assert fire.L.item() == 10
    with pytest.raises(TypeError, match="pass exact_length only"):
        as_fire(ALiBi(2), exact_length=10, max_length=10)
