"""What does it cost to name the parameters of many optimizers, and are the names right?"""

import gc
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

from pytracer.owners import names
from pytracer.owners.copies import copy_of_optimizer
from pytracer.owners.registry import REGISTRY


@pytest.fixture(autouse=True)
def only_this_model() -> None:
    """Free the models of other tests: with several models, the names begin with the class."""
    gc.collect()
    REGISTRY.follow()


@pytest.fixture
def namings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an item each time all modules are named."""
    done: list[int] = []
    name_all = names.named_modules

    def counted(modules: list[Any]) -> Any:
        done.append(len(modules))
        return name_all(modules)

    monkeypatch.setattr(names, "named_modules", counted)
    return done


def optimizer_of(parameter: nn.Parameter) -> torch.optim.Optimizer:
    parameter.grad = torch.ones_like(parameter)
    return torch.optim.SGD([parameter], foreach=False)


def name_of(optimizer: torch.optim.Optimizer) -> str | None:
    copy, _ = copy_of_optimizer(ref(optimizer))
    assert copy is not None
    return REGISTRY.names.name_of(copy, (0, 0), copy.parameters[0].number)


def test_all_modules_are_named_once_for_an_optimizer_a_parameter(namings: list[int]) -> None:
    # GIVEN an optimizer for each parameter, and one of a parameter that no module has
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(20))
    lone = [optimizer_of(nn.Parameter(torch.ones(1))) for _ in range(20)]
    optimizers = {name: optimizer_of(each) for name, each in model.named_parameters()}
    # WHEN they step
    for optimizer in [*optimizers.values(), *lone]:
        optimizer.step()
    # THEN all modules were named once
    assert len(namings) == 1
    # AND each name is right
    found = {name: name_of(optimizer) for name, optimizer in optimizers.items()}
    prefix = found["0.weight"].removesuffix("0.weight") if found["0.weight"] else ""
    assert found == {name: prefix + name for name in optimizers}
    assert {name_of(optimizer) for optimizer in lone} == {None}


def test_what_is_newer_than_the_names_gets_its_own(namings: list[int]) -> None:
    # GIVEN a model whose parameters have names
    model = nn.ModuleDict({"old": nn.Linear(2, 2)})
    optimizer_of(model["old"].weight).step()
    # WHEN a layer is added, and a parameter is replaced, perhaps at the same address
    model["new"] = nn.Linear(2, 2)
    replaced = model["old"].bias
    model["old"].bias = nn.Parameter(torch.ones(2))
    optimizers = [optimizer_of(each) for each in (model["new"].weight, model["old"].bias, replaced)]
    for optimizer in optimizers:
        optimizer.step()
    # THEN what the model has is named, and what it had is not
    new, old, gone = (name_of(optimizer) or "" for optimizer in optimizers)
    assert new.endswith("new.weight")
    assert old.endswith("old.bias")
    assert gone == ""
    assert len(namings) == 2
