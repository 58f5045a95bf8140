"""Optimiser groups: their contents, in the same order in every process."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from longfire import ENCODINGS, build_encoding, parameter_groups, position_parameters

RATES = {"lr": 1e-3, "weight_decay": 0.3, "position_lr": 7e-3}


def make(name):
    options = {"num_heads": 4, "head_dim": 8, "width": 32, "max_length": 64}
    return build_encoding(name, **options, **ENCODINGS[name].example)


@pytest.mark.parametrize("name", ["fire", "t5", "rope", "learned"])
def test_every_trainable_parameter_is_in_one_group(name):
    shared = make(name)
    model = nn.ModuleList([nn.Linear(4, 4), shared, nn.LayerNorm(4), nn.ModuleList([make(name), shared])])
    model[2].weight.requires_grad_(False)
    groups = parameter_groups(model, **RATES)
    everything = [parameter for group in groups for parameter in group["params"]]
    assert len(everything) == len(set(everything)) == len(list(model.parameters())) - 1
    own = set(position_parameters(model))
    for group in groups:
        for parameter in group["params"]:
            assert parameter.requires_grad
            assert group["lr"] == (7e-3 if parameter in own else 1e-3)
            assert group["weight_decay"] == (0.3 if parameter.ndim > 1 and parameter not in own else 0.0)


def test_the_order_is_that_of_the_model():
    model = nn.Sequential(nn.Linear(4, 4), make("fire"), nn.Linear(4, 4))
    matrices, vectors, own = (group["params"] for group in parameter_groups(model, **RATES))
    for found, expected in (
        (matrices, [model[0].weight, model[2].weight]),
        (vectors, [model[0].bias, model[2].bias]),
        (own, list(model[1].parameters())),
    ):
        assert all(one is other for one, other in zip(found, expected, strict=True))


def test_position_lr_defaults_to_lr():
    groups = parameter_groups(nn.Sequential(nn.Linear(4, 4), make("fire")), lr=1e-3, weight_decay=0.1)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-3, 0.1), (1e-3, 0.0), (1e-3, 0.0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0 and finite, not -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must be at least 0 and finite, not nan"),
        ({"position_lr": -1.0}, "position_lr must be at least 0"),
    ],
)
def test_bad_rates(change, message):
    with pytest.raises(ValueError, match=message):
        parameter_groups(make("fire"), **{**RATES, **change})


class Wrapper(nn.Module):
    """Like PEFT's ModulesToSaveWrapper: the frozen original and a trained copy."""

    def __init__(self, module):
        super().__init__()
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(module)})
        self.original_module = module.requires_grad_(False)


def test_wrapped_encodings():
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), Wrapper(make("fire")))
    copied = list(model[1].modules_to_save["default"].parameters())
    (group,) = parameter_groups(model, **RATES)
    assert all(one is other for one, other in zip(group["params"], copied, strict=True))
    assert (group["lr"], group["weight_decay"]) == (7e-3, 0.0)
    assert set(copied) < set(position_parameters(model))


PROCESS = """
import sys, torch
from tests.encodings.test_parameter_groups import optimizer_and_names

optimizer, names = optimizer_and_names()
saved = torch.load(sys.argv[1])
optimizer.load_state_dict(saved["optimizer"])
found = {names[id(parameter)]: state["exp_avg"] for parameter, state in optimizer.state.items()}
assert found.keys() == saved["averages"].keys() == set(names.values())
for name, tensor in found.items():
    assert torch.equal(tensor, saved["averages"][name]), name
"""


def optimizer_and_names():
    torch.manual_seed(0)
    parts = [part for i in range(5) for part in (nn.Linear(3 + i, 4 + i), nn.LayerNorm(4), make("fire"))]
    model = nn.ModuleList(parts)
    optimizer = torch.optim.AdamW(parameter_groups(model, **RATES))
    return optimizer, {id(parameter): name for name, parameter in model.named_parameters()}


def test_optimiser_state_returns_to_its_parameters_in_another_process(tmp_path):
    optimizer, names = optimizer_and_names()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()
    averages = {names[id(parameter)]: state["exp_avg"] for parameter, state in optimizer.state.items()}
    torch.save({"optimizer": optimizer.state_dict(), "averages": averages}, tmp_path / "state.pt")
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tmp_path / "state.pt")],
        env={**os.environ, "PYTHONHASHSEED": "2"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
