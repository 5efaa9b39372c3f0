"""Do the names of tensors stay as they were, and do older modules have names?"""

from weakref import ref

import torch
from torch import nn

from pytracer.owners.copies import copies_of_modules
from pytracer.owners.names import named_tensors


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4, bias=False)


def names(*modules: nn.Module) -> list[str]:
    copies, _ = copies_of_modules(map(ref, modules), {})
    return [name for name, *_ in named_tensors(copies)]


def test_a_second_root_changes_no_name() -> None:
    # GIVEN a model whose parameters were named
    model = Actor()
    assert names(model) == ["head.weight"]
    # WHEN a loss with a buffer comes, THEN the model's names stay
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    assert names(model, loss) == ["head.weight", "CrossEntropyLoss.weight"]
    # AND those of the loss stay too, when it is the only one
    assert names(loss) == ["CrossEntropyLoss.weight"]


def test_numbers_stay() -> None:
    # GIVEN two models of a class, the first of which goes
    first, second = Actor(), Actor()
    assert names(first, second) == ["Actor#1.head.weight", "Actor#2.head.weight"]
    third = Actor()
    # WHEN a third comes, THEN the second keeps its number
    assert names(second, third) == ["Actor#2.head.weight", "Actor#1.head.weight"]
    # AND no two models have the same names
    del first
    assert len({*names(second, third, Actor())}) == 3


def test_two_roots_at_once_have_the_names_of_their_classes() -> None:
    assert names(Actor(), nn.Linear(2, 2, bias=False)) == ["Actor.head.weight", "Linear.weight"]
