"""Both Kerples: the formulas, and parameters that training pushes out of bounds."""

import math

import pytest
import torch

from longfire.encodings import KerpleLog, KerplePower

Q, K = torch.tensor([60]), torch.arange(61)


def with_parameters(cls, r1, r2):
    encoding = cls(len(r1))
    encoding.r1.data, encoding.r2.data = torch.tensor(r1), torch.tensor(r2)
    return encoding


def test_logarithmic():
    bias = with_parameters(KerpleLog, [0.5, 2.0], [0.3, 4.0]).bias(Q, K)
    for head, (r1, r2) in enumerate([(0.5, 0.3), (2.0, 4.0)]):
        expected = torch.tensor([-r1 * math.log(1 + r2 * (60 - j)) for j in range(61)])
        torch.testing.assert_close(bias[head, 0], expected)


def test_power():
    bias = with_parameters(KerplePower, [0.5, 2.0], [0.3, 1.5]).bias(Q, K)
    for head, (r1, r2) in enumerate([(0.5, 0.3), (2.0, 1.5)]):
        expected = torch.tensor([-r1 * (60 - j) ** r2 for j in range(61)])
        torch.testing.assert_close(bias[head, 0], expected)


@pytest.mark.parametrize(("cls", "bounded_r2"), [(KerpleLog, 7.0), (KerplePower, 2.0)])
def test_out_of_bounds_parameters_act_as_the_bound_and_can_come_back(cls, bounded_r2):
    outside = with_parameters(cls, [-3.0], [7.0])
    bound = with_parameters(cls, [0.01], [bounded_r2])
    bias = outside.bias(Q, K)
    torch.testing.assert_close(bias, bound.bias(Q, K))
    bias.sum().backward()
    bound.bias(Q, K).sum().backward()
    for name in ("r1", "r2"):
        torch.testing.assert_close(getattr(outside, name).grad, getattr(bound, name).grad)


@pytest.mark.parametrize(("cls", "highest"), [(KerpleLog, (2.0, 1.0)), (KerplePower, (1.0, 2.0))])
def test_initialisation(cls, highest):
    encoding = cls(4000)
    for name, high in zip(("r1", "r2"), highest, strict=True):
        values = getattr(encoding, name)
        assert values.min() >= 0
        assert 0.98 * high < values.max() <= high
        assert values.mean().item() == pytest.approx(high / 2, abs=0.05)
