"""Do phases leave a model what it was: can it be copied, pickled and compiled?"""

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module

import pytracer
from pytracer import Tracer


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def sent(model: nn.Module) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(model))


@pytest.mark.parametrize("copied", [copy.deepcopy, saved, sent])
def test_copies_of_an_annotated_model(copied: Callable[[Any], Any]) -> None:
    # GIVEN a model whose modules have phases
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytracer.annotate_modules(model), Tracer(device="cpu") as tracer:
        # WHEN it is copied, THEN the copy computes the same
        other = copied(model)
        assert torch.equal(other(torch.ones(1, 4)), model(torch.ones(1, 4)))
        tracer.clear()
        # AND the copy has no phases
        block = other(torch.ones(1, 4))
        events = tracer.snapshot()["device_traces"][0]
        assert {event["user_metadata"] for event in events} == {""}
        assert block.shape == (1, 4)


def test_a_pickled_model_does_not_need_pytracer() -> None:
    model = nn.Linear(4, 4)
    with pytracer.annotate_modules(model):
        assert b"pytracer" not in pickle.dumps(model)


def test_torch_compile_warns_only_of_hooks_of_others() -> None:
    # GIVEN phases that a tracer finds, by hooks of all modules
    assert not module._has_any_global_hook()
    with Tracer(device="cpu", phases="auto"):
        # WHEN torch.compile asks for such hooks, THEN it hears of none
        assert not module._has_any_global_hook()
        # AND it hears of another's
        for register in (
            module.register_module_forward_pre_hook,
            module.register_module_full_backward_hook,
        ):
            handle = register(lambda *_: None)
            assert module._has_any_global_hook()
            handle.remove()
        assert not module._has_any_global_hook()
    assert module._has_any_global_hook.__module__ == module.__name__
