"""Programs with a tensor that something keeps: each returns who holds it, or "" if it is not kept.

`test_holders.py` imports this module anew, after the objects of other tests were hidden from the
search, which looks at all others.
"""

import asyncio
import collections
import contextvars
import functools
import gc
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from pytracer import _core

CACHE: dict[str, Any] = {}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])


class Slots:
    __slots__ = ("payload",)


class Trainer:
    log: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.state = SimpleNamespace(history=[])


def wanted() -> Any:
    """Return a tensor that the search of `holder` is for, as the only reference."""
    tensor = torch.zeros(3)
    _wanted.append(tensor.data_ptr())
    return tensor


_wanted: list[int] = []
TORCH = str(Path(torch.__file__).parent)


def holder(seconds: float = 10.0, *hidden: str) -> str:
    """Return who holds the tensor that `wanted` has made."""
    return str(holders(seconds, *hidden)[-1, _wanted.pop()])


def holders(seconds: float, *hidden: str) -> dict[tuple[int, int], str]:
    """Return who holds the tensors of the CPU, by the device and the address."""
    options: Any = None, 0, 0.0, 100_000, 100_000, False, seconds, [*hidden], [TORCH], [], {}, 0
    found = _core.kept_tensors(torch, (None, None, None), [], {-1}, None, {}, *options)
    return dict(found["holders"])


# --- variables ------------------------------------------------------------------------------------


def in_a_variable() -> str:
    kept = wanted()
    return holder() if kept is not None else ""


def in_a_list() -> str:
    kept = [0, wanted()]
    return holder() if kept else ""


def in_nested_containers() -> str:
    kept = {"a": {("k", 1): (None, [wanted()])}}
    return holder() if kept else ""


def in_a_global() -> str:
    CACHE["eval"] = wanted()
    return holder()


def in_attributes() -> str:
    trainer = Trainer()
    trainer.state.history.append({"logits": wanted()})
    return holder()


def in_slots() -> str:
    kept = Slots()
    kept.payload = wanted()
    return holder()


def in_a_class() -> str:
    Trainer.log.append(wanted())
    return holder()


def in_a_submodule() -> str:
    model = Model()
    model.layers[1].cache = {"k": wanted()}
    return holder()


def in_a_buffer() -> str:
    model = Model()
    model.layers[0].register_buffer("steps", wanted())
    return holder()


def in_a_set() -> str:
    kept = {wanted()}
    return holder() if kept else ""


def in_an_array_of_numpy() -> str:
    kept = SimpleNamespace(results=np.empty(3, dtype=object))
    kept.results[1] = {"k": wanted()}
    return holder() if kept else ""


def in_a_deque() -> str:
    kept = collections.deque([wanted()])
    return holder() if kept else ""


def in_a_queue() -> str:
    waiting: queue.Queue[Any] = queue.Queue()
    waiting.put(wanted())
    return holder()


def in_a_partial() -> str:
    call = functools.partial(print, wanted())
    return holder() if call else ""


def in_a_cache_of_functools() -> str:
    @functools.cache
    def cached(_size: int) -> Any:
        return wanted()

    cached(3)
    return holder()


def in_a_cached_property() -> str:
    class Lazy:
        @functools.cached_property
        def table(self) -> Any:
            return wanted()

    lazy = Lazy()
    assert lazy.table is not None
    return holder()


def in_a_closure() -> str:
    def make() -> Callable[[], Any]:
        tensor = wanted()
        return lambda: tensor

    call = make()
    return holder() if call else ""


def in_a_variable_of_two_functions() -> str:
    shared = wanted()

    def inner() -> Any:
        return shared

    return holder() if inner else ""


def in_defaults() -> str:
    def call(x: Any = wanted()) -> Any:  # noqa: B008
        return x

    return holder() if call else ""


def in_a_bound_method() -> str:
    calls = [[wanted()].append]
    return holder() if calls else ""


class Meter:
    def __init__(self) -> None:
        self.history: list[object] = []


def by_a_method_that_is_called_later() -> str:
    meter = Meter()
    keep = meter.history.append
    keep(wanted())
    return holder()


def in_exc_info() -> str:
    records = []
    try:
        _fail()
    except ValueError:
        records.append(sys.exc_info())
    return holder() if records else ""


def in_a_hook() -> str:
    model = Model()
    model.layers[0].register_forward_hook(functools.partial(print, wanted()))
    return holder()


def for_a_loop() -> str:
    for _ in iter([[wanted()]]):
        del _
        return holder()
    return ""


def in_a_list_that_grows() -> str:
    CACHE["eval"] = [wanted()]
    CACHE["eval"].append(holder())
    return str(CACHE["eval"][1])


def in_a_comprehension() -> str:
    found = [holder() if number else wanted() for number in range(2)]
    return str(found[1])


# --- functions that wait, and that have failed ----------------------------------------------------


def in_a_generator() -> str:
    def numbers() -> Iterator[int]:
        inner = wanted()
        yield 1
        inner.sum()

    waiting = numbers()
    next(waiting)
    return holder()


def in_a_running_generator() -> str:
    def numbers() -> Iterator[str]:
        inner = wanted()
        yield holder()
        inner.sum()

    return next(numbers())


def in_a_task() -> str:
    async def inner() -> None:
        mine = wanted()
        await asyncio.sleep(0.05)
        mine.sum()

    async def outer() -> str:
        task = asyncio.create_task(inner())
        await asyncio.sleep(0)
        found = holder()
        await task
        return found

    return asyncio.run(outer())


def in_a_thread() -> str:
    ready, end = threading.Event(), threading.Event()

    def work() -> None:
        mine = wanted()
        ready.set()
        end.wait()
        mine.sum()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    found = holder()
    end.set()
    thread.join()
    return found


def in_local_data_of_a_thread() -> str:
    local = threading.local()
    local.kept = wanted()
    return holder()


def _fail() -> None:
    lost = wanted()
    raise ValueError(lost.shape)


def in_an_exception() -> str:
    try:
        _fail()
    except ValueError as caught:
        error = caught
    return holder() if error else ""


def in_an_exception_that_is_handled() -> str:
    try:
        _fail()
    except ValueError:
        return holder()
    return ""


def in_an_exception_of_many_functions() -> str:
    def fail(functions: int) -> None:
        if functions:
            fail(functions - 1)
        else:
            _fail()

    try:
        fail(30)
    except ValueError:
        return holder()
    return ""


def in_an_exception_while_another_is_handled() -> str:
    try:
        _fail()
    except ValueError:
        try:
            raise KeyError from None
        except KeyError:
            return holder()


def in_a_reference_cycle() -> str:
    trainer = Trainer()
    trainer.state.me = trainer
    trainer.state.kept = wanted()
    del trainer
    return holder()


def in_a_dict_that_refers_to_itself() -> str:
    kept: dict[str, Any] = {}
    kept.update(me=kept, wanted=wanted())
    del kept
    return holder()


def in_a_cycle_that_is_held() -> str:
    trainer = Trainer()
    trainer.state.me = trainer
    trainer.state.kept = wanted()
    kept = [trainer.state]
    del trainer
    return holder() if kept else ""


def in_a_reference_cycle_of_many() -> str:
    root = Trainer()
    root.state.children = [SimpleNamespace(parent=root) for _ in range(40)]
    root.state.kept = wanted()
    del root
    return holder()


def run(name: str) -> str:
    """Run a program without what earlier ones have left."""
    gc.collect()
    _wanted.clear()
    CACHE.clear()
    Trainer.log.clear()
    found: str = globals()[name]()
    return found.replace(f"{name}.<locals>.", "")


class Asks(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> str:
        del value
        return holder(10.0, TORCH)


def in_the_arguments_of_a_module() -> str:
    text: str = Asks()(wanted())
    return text


def _asks(values: Any) -> str:
    del values
    return holder()


def in_a_list_that_is_an_argument() -> str:
    return functools.partial(_asks)([wanted()])


def in_a_variable_of_torch() -> str:
    found: list[str] = tree_map(_asks, [wanted()])
    return found[0]


STATE: contextvars.ContextVar[Any] = contextvars.ContextVar("state")


def in_a_context_variable() -> str:
    def run() -> str:
        STATE.set({"k": wanted()})
        return holder()

    return contextvars.Context().run(run)  # the usual one is hidden


def in_one_of_many_context_variables() -> str:
    def run() -> str:
        for number in range(60):
            contextvars.ContextVar(f"other{number}").set([number])
        STATE.set(wanted())
        return holder()

    return contextvars.Context().run(run)
