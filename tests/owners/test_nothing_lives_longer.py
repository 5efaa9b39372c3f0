"""Does a look at the program's objects keep any of them alive that another thread drops?"""

import collections
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import pytracer
from pytracer.owners.read import OwnersNow
from pytracer.owners.registry import REGISTRY
from pytracer.tracing.kept_at_steps import _kept


class Quantised(Tensor):
    """A tensor of numbers with a smaller type and their scales."""

    @staticmethod
    def __new__(cls, codes: Tensor, _scale: Tensor) -> "Quantised":
        return Tensor._make_wrapper_subclass(cls, codes.shape)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), _kwargs: Any = None) -> Any:
        raise NotImplementedError(func, args)


MOST_LOOKS, ROUNDS = 60, 40
Made = tuple[Any, list[Tensor]]
"""What a thread drops, and tensors whose memory goes with it."""


def tensor() -> Made:
    kept = torch.ones(100)
    return kept, [kept]


def subclass() -> Made:
    parts = [torch.ones(100), torch.ones(1)]
    return Quantised(*parts), parts


def model() -> Made:
    kept = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    return kept, [*kept.parameters(), *kept.buffers()]


def optimizer() -> Made:
    module = nn.Linear(8, 8)
    kept = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 8)).sum().backward()
    kept.step()
    states = [value for state in kept.state.values() for value in state.values()]
    return (module, kept), [*module.parameters(), *states]


def gradient() -> Made:
    kept = nn.Linear(8, 8)
    kept.weight.grad = torch.ones(8, 8)
    return kept, [kept.weight.grad]


def graph() -> Made:
    x = torch.ones(100, requires_grad=True)
    saved = x.sin().exp()
    return (saved.cos().sin(),), [x, saved]


def regions() -> Made:
    x = torch.ones(100, requires_grad=True)
    return checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False), [x]


def containers() -> Made:
    made = [torch.ones(10) for _ in range(20)]
    ring: list[Any] = [*made[:10], *[None] * 10]
    return (ring, collections.deque(made[10:], maxlen=50)), made


MAKERS = [tensor, subclass, model, optimizer, gradient, graph, regions, containers]


def dump() -> Callable[[], object]:
    return tracer_of_test[0].snapshot


def search_at_an_oom() -> Callable[[], object]:
    return lambda: OwnersNow([-1], patience=5)


def note_of_a_step() -> Callable[[], object]:
    return lambda: _kept(tracer_of_test[0]._recording)


def note_of_a_call() -> Callable[[], object]:
    return REGISTRY._called


def first_step_of_an_optimizer() -> Callable[[], object]:
    def step() -> None:
        parameter = nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        REGISTRY._changes += 1
        torch.optim.SGD([parameter], momentum=0.9).step()

    return step


LOOKERS = [dump, search_at_an_oom, note_of_a_step, note_of_a_call, first_step_of_an_optimizer]
tracer_of_test: list[pytracer.Tracer] = []


@pytest.fixture(autouse=True)
def many_objects() -> Iterator[None]:
    """Have objects for a look to find, a tracer, and threads that take turns often."""
    others = [nn.Linear(4, 4) for _ in range(100)], [torch.ones(4) for _ in range(2000)]
    interval = sys.getswitchinterval()
    with pytracer.Tracer(device="cpu") as tracer:
        tracer_of_test[:] = [tracer]
        sys.setswitchinterval(1e-5)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            tracer_of_test.clear()
    del others


@pytest.mark.parametrize("look", LOOKERS)
def test_what_a_thread_drops_is_freed_at_once(look: Callable[[], Callable[[], object]]) -> None:
    # GIVEN a thread that makes things and drops them
    is_over = threading.Event()
    dropped: collections.Counter[str] = collections.Counter()
    late: collections.Counter[str] = collections.Counter()

    def churn() -> None:
        while not is_over.is_set():
            for make in MAKERS:
                kept, tensors = make()
                memory = [StorageWeakRef(each.untyped_storage()) for each in tensors]
                del tensors
                for _ in range(100):  # other threads have their turns
                    pass
                del kept
                late[make.__name__] += not all(each.expired() for each in memory)
                dropped[make.__name__] += 1

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    try:
        # WHEN another thread looks at all objects meanwhile
        act = look()
        for _ in range(MOST_LOOKS):
            act()
            if dropped[MAKERS[-1].__name__] >= ROUNDS:
                break
    finally:
        is_over.set()
        thread.join()
    # THEN the memory is free as soon as the thread has dropped the last reference
    assert dropped[MAKERS[-1].__name__]
    assert not +late
