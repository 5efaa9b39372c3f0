"""Test that reading tensors runs no code of the program's classes and names."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import pytracer
from pytracer import _core
from pytracer.owners.copies import NO_GRADIENTS, copy_of_optimizer
from pytracer.owners.read import OwnersNow


class Asked(Tensor):
    """A tensor whose class answers what its sizes, layout and device are."""

    calls: list[str]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Asked":
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            inner.shape,
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
            dispatch_layout=True,
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(str(func))
        return func(*[getattr(each, "inner", each) for each in args], **kwargs or {})


class AskedOfTensors(Asked):
    """A tensor of tensors, whose parts are named by a list of its class."""

    parts = ("inner",)

    def __tensor_flatten__(self) -> Any:
        return [*self.parts], None


@pytest.mark.parametrize("kind", [Asked, AskedOfTensors])
def test_no_class_of_a_tensor_is_asked(kind: type[Asked]) -> None:
    kind.calls = []
    module = nn.Module()
    inner = torch.ones(1000)
    parameter: Any = kind(inner).requires_grad_()
    module._parameters["a"] = parameter
    module.register_buffer("b", kind(torch.ones(1000)))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["params"] = [parameter]
    optimizer.state[parameter] = {"momentum": kind(torch.ones(1000))}
    rule = True, 1, False, True, 0, 0  # as in a backward pass on an accelerator
    references: Any = [weakref.ref(module)], [(weakref.ref(optimizer), None, 0, 0)]
    kind.calls.clear()
    with torch._C.DisableTorchFunction():
        _core.copy_models(torch, *references, rule, {}, False)
    named = {address: name for address, *_, name in OwnersNow({-1}).owners}
    assert kind.calls == []
    assert named.get(inner.data_ptr(), "").endswith("a") == (kind is AskedOfTensors)


def test_other_attributes_of_a_tensor_of_tensors_are_no_parts() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(TwoTensor(torch.ones(1000), torch.ones(1000)))
    module.weight.main_grad = torch.ones(1000)
    module.weight.average = torch.ones(1000)
    kinds = {
        address: _core.CATEGORIES[kind] for address, _, _, kind, *_ in OwnersNow({-1}, {-1}).owners
    }
    tensors = module.weight.a, module.weight.b, module.weight.main_grad, module.weight.average
    found = [kinds.get(tensor.data_ptr()) for tensor in tensors]
    assert found == ["parameter", "parameter", "gradient", None]


class Name(str):
    """A name that has code of the program."""

    __slots__ = ()
    calls: list[str] = []  # noqa: RUF012

    def __hash__(self) -> int:
        self.calls.append("hash")
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.calls.append("eq")
        return super().__eq__(other)

    def __str__(self) -> str:
        self.calls.append("str")
        return "text"


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.__dict__[name] = x.double()
        return x * 2


@pytest.mark.parametrize("name", [Name("weight"), "weight\udc80"])
def test_names_with_code_and_names_that_are_no_unicode(name: str) -> None:
    module = nn.Module()
    module._parameters[name] = nn.Parameter(torch.ones(1000))
    module._modules[name] = nn.Linear(10, 100)
    y = _Kept.apply(torch.ones(1000, requires_grad=True), name)  # type: ignore[no-untyped-call]
    Name.calls.clear()
    with pytracer.Tracer(device="cpu") as tracer:
        now = OwnersNow({-1}, {-1})
        owners = tracer.snapshot()["pytracer"]
    assert Name.calls == []
    assert owners is not None
    assert now.unread == 0
    names = {owner: name for owner, *_, name in now.owners}
    for parameter in module.parameters():
        assert "weight" in names[parameter.data_ptr()].encode().decode()
    assert any(each.startswith("_KeptBackward.weight") for each in names.values())
    del y


def test_an_optimizer_is_copied_in_several_calls() -> None:
    # GIVEN groups of few and many parameters
    sizes = [3, 0, 1200, 497, 1]
    parameters = [[nn.Parameter(torch.ones(1)) for _ in range(size)] for size in sizes]
    optimizer = torch.optim.SGD([{"params": each, "lr": torch.ones(1)} for each in parameters])
    every = [each for group in parameters for each in group]
    for each in every:
        optimizer.state[each] = {"momentum": torch.ones(1)}
    # WHEN it is copied, THEN all is in the copy, once
    for first in (0, 700):
        copy, unread = copy_of_optimizer(weakref.ref(optimizer), first_state=first)
        assert copy is not None
        assert not unread
        assert [len(found) for found, _ in copy.groups] == sizes
        assert [each.number for each in copy.parameters] == [id(each) for each in every]
        assert [[name for name, _ in named] for _, named in copy.groups] == [["lr"]] * len(sizes)
        assert [number for number, _ in copy.states] == [id(each) for each in every[first:]]
        assert copy.state_count == len(every)
    # AND no other thread waits for more than a part of it
    reference: Any = (weakref.ref(optimizer), None, 0, 0)
    _, (part,), _ = _core.copy_models(torch, [], [reference], NO_GRADIENTS, {}, False)
    assert sum(len(found) for _, found, _ in part[2]) == 500
    assert part[3] == []
