"""The check that an engine must pass before it is timed."""

import pytest
import torch

from longfire import attention
from longfire.bench import correctness
from longfire.bench.correctness import check, make_sample, verdict
from longfire.engines import ENGINES
from tests.samples import ADDITIVE

ALL = {"output", "gradient of q", "gradient of k", "gradient of v", "gradient of the parameters"}


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "fused"])  # fused is tested in tests/engines
def test_engines_pass(name, engine):
    sample = make_sample(name, 40, 16, torch.float32, "cpu")
    errors = check(lambda q, k, v, encoding: attention(q, k, v, encoding, impl=engine), sample)
    assert verdict(errors) is None
    assert set(errors) == (ALL if list(sample.encoding.parameters()) else ALL - {"gradient of the parameters"})


def test_low_precision_is_compared_with_its_own_error():
    def errors(dtype):
        sample = make_sample("fire", 40, 16, torch.float32, "cpu")
        return check(lambda q, k, v, e: attention(q.to(dtype), k.to(dtype), v.to(dtype), e).to(q.dtype), sample)

    assert verdict(errors(torch.float32)) is None
    assert verdict(errors(torch.bfloat16)).startswith("output: error")
    sample = make_sample("fire", 40, 16, torch.bfloat16, "cpu")
    found = check(attention, sample)
    assert verdict(found) is None
    assert 1e-3 < found["output"][1] < 1e-1


@pytest.mark.parametrize(
    ("attend", "wrong"),
    [
        (lambda q, k, v, e: attention(q, k, v, e) * 1.001, "output"),
        (lambda q, k, v, e: attention(q, k, v, _dense_bias(q, e), causal=False), "output"),
        (lambda q, k, v, e: attention(q, k, v, e) * float("nan"), "output: error inf"),
        (lambda q, k, v, e: attention(q, k, v.detach() + 0 * v, e), "gradient of v"),
        (lambda q, k, v, e: _parameters_doubled(q, k, v, e), "gradient of the parameters"),
    ],
)
def test_the_wrong_quantity_is_named(attend, wrong):
    sample = make_sample("fire", 40, 16, torch.float32, "cpu")
    assert verdict(check(attend, sample)).startswith(wrong)


def _dense_bias(q, encoding):
    positions = torch.arange(q.shape[2])
    return encoding.bias(positions, positions)


def _parameters_doubled(q, k, v, encoding):
    bias = _dense_bias(q, encoding)
    return attention(q, k, v, 2 * bias - bias.detach())


def test_a_long_sequence_is_checked_at_both_ends(monkeypatch):
    monkeypatch.setattr(correctness, "ALL_QUERIES", 64)
    monkeypatch.setattr(correctness, "GRADIENTS", 32)
    monkeypatch.setattr(correctness, "ROWS", 8)
    make_sample.cache_clear()
    sample = make_sample("alibi", 100, 16, torch.float32, "cpu")
    assert sample.rows.tolist() == [*range(8), *range(92, 100)]
    assert set(check(attention, sample)) == {"output"}
    for row, seen in ((3, True), (50, False), (99, True)):

        def broken(q, k, v, encoding, row=row):
            out = attention(q, k, v, encoding)
            out[:, :, row] += 1
            return out

        assert (verdict(check(broken, sample)) is not None) == seen
    make_sample.cache_clear()


def test_exact_and_eager_are_attention():
    sample = make_sample("t5", 300, 16, torch.float32, "cpu")  # two blocks of queries
    with torch.no_grad():
        expected = attention(*sample.inputs, sample.encoding, impl="reference")
    torch.testing.assert_close(sample.exact["output"].float(), expected, rtol=1e-5, atol=1e-5)
    assert all(0 < error < 1e-4 for error in sample.eager.values())
