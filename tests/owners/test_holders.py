"""Who holds an object: the path from a variable, for each way in which Python keeps objects."""

import asyncio
import collections
import contextvars
import functools
import gc
import queue
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytracer import Tracer, _core
from pytracer.owners import holders, saved_tensors
from pytracer.owners.read import OwnersNow
from pytracer.reading.reader import load

# A collection between two lines of a test would free its garbage.
pytestmark = pytest.mark.usefixtures("no_collector")

HERE = __name__
CACHE: dict[str, Any] = {}
SEEN: list[Any] = []  # texts that were found inside of functions that run


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
    _wanted.append(weakref.ref(tensor))
    return tensor


_wanted: list[Any] = []


def holder(seconds: float = 10.0, *hidden: str) -> str:
    """Return who holds the tensor that `wanted` has made."""
    found = _core.holders_of([_wanted.pop()()], [*hidden], seconds)
    return found[0]


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


class Asks(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> str:
        del value
        return holder(10.0, str(Path(torch.__file__).parent))


def in_the_arguments_of_a_module() -> str:
    text: str = Asks()(wanted())
    return text


STATE: contextvars.ContextVar[Any] = contextvars.ContextVar("state")


def in_a_context_variable() -> str:
    token = STATE.set({"k": wanted()})
    text = holder()
    STATE.reset(token)
    return text


def in_one_of_many_context_variables() -> str:
    def run() -> str:
        for number in range(60):
            contextvars.ContextVar(f"other{number}").set([number])
        STATE.set(wanted())
        return holder()

    return contextvars.Context().run(run)


PATHS: dict[Callable[[], str], str] = {
    in_a_context_variable: "state['k'] of a context of contextvars",
    in_one_of_many_context_variables: "state of a context of contextvars",
    in_the_arguments_of_a_module: "a temporary value",
    in_a_variable: "kept of in_a_variable()",
    in_a_list: "kept[1] of in_a_list()",
    in_nested_containers: "kept['a'][('k', 1)][1][0] of in_nested_containers()",
    in_a_global: f"CACHE['eval'] of module {HERE}",
    in_attributes: "trainer.state.history[0]['logits'] of in_attributes()",
    in_slots: "kept.payload of in_slots()",
    in_a_class: "log[0] of class Trainer",
    in_a_submodule: "model._modules['layers']._modules['1'].cache['k'] of in_a_submodule()",
    in_a_buffer: "model._modules['layers']._modules['0']._buffers['steps'] of in_a_buffer()",
    in_a_set: "kept (an element) of in_a_set()",
    in_a_deque: "kept (inside a deque) of in_a_deque()",
    in_a_queue: "waiting.queue (inside a deque) of in_a_queue()",
    in_a_partial: "call.args[0] of in_a_partial()",
    in_a_cache_of_functools: "cached (inside a _lru_cache_wrapper)[3] of in_a_cache_of_functools()",
    in_a_cached_property: "lazy.table of in_a_cached_property()",
    in_a_closure: "call.__closure__[0].cell_contents of in_a_closure()",
    in_a_variable_of_two_functions: "shared of in_a_variable_of_two_functions()",
    in_defaults: "call.__defaults__[0] of in_defaults()",
    in_a_bound_method: "calls[0].__self__[0] of in_a_bound_method()",
    in_a_hook: "model._modules['layers']._modules['0']._forward_hooks[0].args[0] of in_a_hook()",
    for_a_loop: "a temporary value (inside a list_iterator)[0][0] of for_a_loop()",
    in_a_list_that_grows: f"CACHE['eval'][0] of module {HERE}",
    in_a_comprehension: "an unnamed list[0] of in_a_comprehension()",
    in_a_generator: "inner of numbers(), which waiting of in_a_generator() keeps",
    in_a_running_generator: "inner of numbers()",
    in_a_task: "mine of inner(), which task (inside a Task) of outer() keeps",
    in_a_thread: "mine of work()",
    in_local_data_of_a_thread: "local (inside a _local)[<ReferenceType>]['kept'] of "
    "in_local_data_of_a_thread()",
    in_an_exception: "lost of _fail(), which the traceback of error of in_an_exception() keeps",
    in_an_exception_that_is_handled: "lost of _fail(), which the traceback of the handled "
    "exception keeps",
    in_an_exception_of_many_functions: "lost of _fail(), which the traceback of the handled "
    "exception keeps",
    in_an_exception_while_another_is_handled: "lost of _fail(), which the traceback of an "
    "exception of in_an_exception_while_another_is_handled() keeps",
    in_a_reference_cycle: "a reference cycle of Trainer, which gc.collect() would free",
    in_a_reference_cycle_of_many: "a reference cycle of Trainer, which gc.collect() would free",
    in_a_dict_that_refers_to_itself: "a reference cycle of dict, which gc.collect() would free",
    in_a_cycle_that_is_held: "kept[0].kept of in_a_cycle_that_is_held()",
}


if sys.version_info < (3, 11):
    del PATHS[in_an_exception_while_another_is_handled]
    PATHS[for_a_loop] = PATHS[in_a_comprehension] = (
        ""  # what is on the stack of a function that runs is not known
    )


@pytest.fixture(scope="module", autouse=True)
def objects_of_this_module() -> None:
    """Look at the variables of this module too, which were there before its tests."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end: the other tests of the process may have left millions of objects."""
    monkeypatch.setattr(holders, "MAX_SECONDS", 30)
    monkeypatch.setattr(saved_tensors, "MAX_SECONDS", 30)


@pytest.mark.parametrize("program", PATHS, ids=lambda program: program.__name__)
def test_who_holds_an_object(program: Callable[[], str]) -> None:
    gc.collect()
    _wanted.clear()
    CACHE.clear()
    Trainer.log.clear()
    found = program().replace(f"{program.__name__}.<locals>.", "")
    # Python 3.10 has an object for each frame, and 3.13 another one in the data of threads.
    for other, same in ((".gi_frame", ""), (".cr_frame", ""), ("_localdummy", "ReferenceType")):
        found = found.replace(other, same)
    # torch numbers the hooks of all modules of a process.
    found = re.sub(r"(?<=_forward_hooks)\[\d+\]", "[0]", found)
    assert found == PATHS[program]


# --- files ----------------------------------------------------------------------------------------


def test_a_file_says_who_holds_the_memory(tmp_path: Path) -> None:
    # GIVEN tensors in a list, a graph that a loss in a list keeps, and garbage
    weight = torch.ones(100, requires_grad=True)
    with Tracer(device="cpu") as tracer:
        kept = {"eval": torch.ones(1001), "view": torch.ones(1002)[3:]}
        losses = [(weight * torch.ones(100) * torch.ones(100)).exp().sum() for _ in range(2)]
        _make_garbage()
        # WHEN files are written, THEN the second is as the first, which looked at all nodes
        for name in ("first", "second"):
            tracer.dump(tmp_path / name)
            snapshot = load(tmp_path / name)
            blocks = snapshot.blocks
            found = {
                size: snapshot.strings[holder]
                for size, holder in zip(blocks.requested_bytes.tolist(), blocks.holder, strict=True)
            }
            here = "test_a_file_says_who_holds_the_memory()"
            assert found[4004] == f"kept['eval'] of {here}"
            assert found[4008] == f"kept['view'] of {here}"
            assert found[4012] == "a reference cycle of Trainer, which gc.collect() would free"
            of_graphs = {
                snapshot.strings[holder]
                for size, holder in zip(blocks.requested_bytes.tolist(), blocks.holder, strict=True)
                if size == 400
            }
            assert of_graphs == {f"losses[{i}] of {here}" for i in (0, 1)}
    assert len(losses) == len(kept)


def test_a_thread_that_may_not_read_graphs_says_who_holds_the_memory() -> None:
    # GIVEN a thread that trains, and whose graphs no other thread may read
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters())
    kept = [torch.ones(1001)]
    model(torch.ones(3, 10)).sum().backward()
    optimizer.step()
    found: dict[int, set[str]] = {}

    # WHEN another thread looks, usually, and when memory has run out
    def look() -> None:
        for patience in (1, 5):
            now = OwnersNow([-1], patience=patience)
            found[patience] = {text for *_, text in now.holders}

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    # THEN it keeps no tensor of the other thread alive, or says who holds them
    here = "test_a_thread_that_may_not_read_graphs_says_who_holds_the_memory()"
    assert found[1] == set()
    assert f"kept[0] of {here}" in found[5]
    assert kept


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor * torch.ones(1003, requires_grad=True),  # saves the tensor
    ],
    ids=["detached", "numpy", "storage", "graph"],
)
def test_nothing_is_garbage_that_something_else_keeps(
    tmp_path: Path, keep: Callable[[torch.Tensor], object]
) -> None:
    def make() -> object:
        trainer = Trainer()
        trainer.state.me, trainer.state.kept = trainer, torch.ones(1003)
        return keep(trainer.state.kept)

    with Tracer(device="cpu") as tracer:
        kept = make()
        tracer.dump(tmp_path / "file")
        snapshot = load(tmp_path / "file")
    assert kept is not None
    assert not any("gc.collect()" in text for text in snapshot.strings)


def test_the_largest_tensors_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a bound of two tensors, without those of other tests
    gc.collect()
    monkeypatch.setattr(holders, "MAX_TENSORS", 2)
    with Tracer(device="cpu") as tracer:
        kept = [torch.ones(100_000_000 + size, device="meta") for size in range(3)]
        kept += [torch.ones(1_000_001 + size) for size in range(7)]
        tracer.dump(tmp_path / "file")
        snapshot = load(tmp_path / "file")
    found = {snapshot.strings[index] for index in snapshot.blocks.holder.tolist()}
    # THEN the holders of these are known, and nothing is said of the others
    here = "test_the_largest_tensors_come_first()"
    assert found == {"", f"kept[8] of {here}", f"kept[9] of {here}"}


def test_a_large_dict_is_looked_through_within_the_bound() -> None:
    kept: dict[int, object] = dict.fromkeys(range(300_000))
    kept |= {-number: torch.zeros(1) for number in range(1, 3001)}
    targets = [value for value in kept.values() if value is not None]
    texts = _core.holders_of(targets, [], 10.0)
    name = "kept[-{}] of test_a_large_dict_is_looked_through_within_the_bound()"
    assert texts == [name.format(number) for number in range(1, 3001)]
    # AND where too many items would have to be looked at, the item is left out
    targets = [value for value in kept.values() if value is not None][::-1]
    assert _core.holders_of(targets, [], 10.0)[-1] == name.replace("-{}", "\N{HORIZONTAL ELLIPSIS}")


def _make_garbage() -> None:
    trainer = Trainer()
    trainer.state.me, trainer.state.kept = trainer, torch.ones(1003)
