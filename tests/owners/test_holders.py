"""Who holds an object: the path from a variable, for each way in which Python keeps objects."""

import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from holder_programs import Trainer
from holder_programs import holders as holders_now
from torch.multiprocessing import reductions

from pytracer import Tracer
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.explanation import explain
from pytracer.analysis.holder_names import folded
from pytracer.owners import holders
from pytracer.owners.read import OwnersNow, collector_paused
from pytracer.reading.reader import load

# A collection between two lines of a test would free its garbage.
pytestmark = pytest.mark.usefixtures("no_collector")

CYCLE = "a reference cycle of Trainer.state.me, which gc.collect() would free"
PATHS = {
    "in_a_context_variable": "state['k'] of a context of contextvars",
    "in_one_of_many_context_variables": "state of a context of contextvars",
    "in_the_arguments_of_a_module": "a temporary value",
    "in_a_list_that_is_an_argument": "a temporary value",
    "in_a_variable_of_torch": "a temporary value",
    "in_a_variable": "kept of in_a_variable()",
    "in_a_list": "kept[1] of in_a_list()",
    "in_nested_containers": "kept['a'][('k', 1)][1][0] of in_nested_containers()",
    "in_a_global": "CACHE['eval'] of module holder_programs",
    "in_attributes": "trainer.state.history[0]['logits'] of in_attributes()",
    "in_slots": "kept.payload of in_slots()",
    "in_a_class": "log[0] of class Trainer",
    "in_a_submodule": "model._modules['layers']._modules['1'].cache['k'] of in_a_submodule()",
    "in_a_buffer": "model._modules['layers']._modules['0']._buffers['steps'] of in_a_buffer()",
    "in_a_set": "kept (an element) of in_a_set()",
    "in_an_array_of_numpy": "kept.results (inside a ndarray)['k'] of in_an_array_of_numpy()",
    "in_a_deque": "kept (inside a deque) of in_a_deque()",
    "in_a_queue": "waiting.queue (inside a deque) of in_a_queue()",
    "in_a_partial": "call.args[0] of in_a_partial()",
    "in_a_cache_of_functools": "cached (inside a _lru_cache_wrapper)[3] of "
    "in_a_cache_of_functools()",
    "in_a_cached_property": "lazy.table of in_a_cached_property()",
    "in_a_closure": "call.__closure__[0].cell_contents of in_a_closure()",
    "in_a_variable_of_two_functions": "shared of in_a_variable_of_two_functions()",
    "in_defaults": "call.__defaults__[0] of in_defaults()",
    "in_a_bound_method": "calls[0].__self__[0] of in_a_bound_method()",
    "by_a_method_that_is_called_later": "meter.history[0] of by_a_method_that_is_called_later()",
    "in_exc_info": "lost of _fail(), which the traceback of records[0][2] of in_exc_info() keeps",
    "in_a_hook": "model._modules['layers']._modules['0']._forward_hooks[0].args[0] of in_a_hook()",
    "for_a_loop": "a temporary value (inside a list_iterator)[0][0] of for_a_loop()",
    "in_a_list_that_grows": "CACHE['eval'][0] of module holder_programs",
    "in_a_comprehension": "an unnamed list[0] of in_a_comprehension()",
    "in_a_generator": "inner of numbers(), which waiting of in_a_generator() keeps",
    "in_a_running_generator": "inner of numbers()",
    "in_a_task": "mine of inner(), which task (inside a Task) of outer() keeps",
    "in_a_thread": "mine of work()",
    "in_local_data_of_a_thread": "local (inside a thread).kept of in_local_data_of_a_thread()",
    "in_an_exception": "lost of _fail(), which the traceback of error of in_an_exception() keeps",
    "in_an_exception_that_is_handled": "lost of _fail(), which the traceback of the handled "
    "exception keeps",
    "in_an_exception_of_many_functions": "lost of _fail(), which the traceback of the handled "
    "exception keeps",
    "in_an_exception_while_another_is_handled": "lost of _fail(), which the traceback of an "
    "exception of in_an_exception_while_another_is_handled() keeps",
    "in_a_reference_cycle": CYCLE,
    "in_a_reference_cycle_of_many": "a reference cycle of Trainer.state.children[0].parent, "
    "which gc.collect() would free",
    "in_a_dict_that_refers_to_itself": "a reference cycle of dict['me'], "
    "which gc.collect() would free",
    "in_a_cycle_that_is_held": "kept[0].kept of in_a_cycle_that_is_held()",
}

if sys.version_info >= (3, 14):  # whose frames tell all values of expressions
    PATHS |= {
        "in_the_arguments_of_a_module": "a temporary value of in_the_arguments_of_a_module()",
        "in_a_list_that_is_an_argument": "an unnamed list[0] of in_a_list_that_is_an_argument()",
    }


@pytest.fixture(scope="module")
def programs() -> Any:
    """Import the programs: the search looks at their module, which is not there before."""
    sys.modules.pop("holder_programs", None)
    return importlib.import_module("holder_programs")


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end: the other tests of the process may have left millions of objects."""
    monkeypatch.setattr(holders, "MAX_SECONDS", 30)
    monkeypatch.setattr(holders, "MAX_GRAPH_SECONDS", 30)


@pytest.mark.parametrize("program", PATHS)
def test_who_holds_an_object(program: str, programs: Any) -> None:
    found = programs.run(program)
    found = found.replace("_localdummy", "ReferenceType")  # Python 3.13's, in the data of threads
    # torch numbers the hooks of all modules of a process.
    found = re.sub(r"(?<=_forward_hooks)\[\d+\]", "[0]", found)
    assert found == PATHS[program]


def test_a_frame_that_calls_init_has_no_globals() -> None:
    # GIVEN a class whose calls Python has specialised, and frames that leave values in their places
    class Held:
        def __init__(self, look: bool) -> None:
            self.tensor = torch.ones(1)
            self.found = holders_now(30.0)[-1, self.tensor.data_ptr()] if look else ""

    def leave_values(depth: int) -> None:
        for _ in [1, 2]:
            for _ in [1, 2]:
                for _ in [1, 2]:
                    for _ in [1, 2]:
                        return leave_values(depth - 1) if depth else None

    def make(look: bool) -> Held:
        return Held(look)

    for _ in range(100):
        make(False)
    # WHEN / THEN
    for depth in range(12):
        leave_values(depth)
        found = make(True).found
        assert found.startswith("self.tensor of ")
        assert found.endswith(".Held.__init__()")


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
            assert found[4012] == CYCLE
            of_graphs = {
                snapshot.strings[holder]
                for size, holder in zip(blocks.requested_bytes.tolist(), blocks.holder, strict=True)
                if size == 400
            }
            assert of_graphs == {f"losses[{i}] of {here}" for i in (0, 1)}
    assert len(losses) == len(kept)


class _KeptInCpp(torch.nn.Module):
    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.ones(1)

    def forward(self, count: int) -> int:
        self.kept = torch.ones(count)
        return count


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_another_process_may_have_memory_that_no_tensor_has(tmp_path: Path) -> None:
    # GIVEN memory that C++ keeps
    with Tracer(device="cpu") as tracer:
        keeper = torch.jit.script(_KeptInCpp())
        keeper(1003)

        def holder() -> str:
            tracer.dump(tmp_path / "file")
            snapshot = load(tmp_path / "file")
            blocks = snapshot.blocks
            return snapshot.strings[int(blocks.holder[blocks.requested_bytes == 4012][0])]

        assert holder() == "no Python tensor"
        # WHEN a future has another tensor, or autocast has a cache, THEN these are likely keepers
        futures = [torch.futures.Future()]
        futures[0].set_result(torch.ones(1))
        assert holder().startswith("no Python tensor, perhaps futures[…] (inside a Future) of test")
        futures.clear()
        with torch.autocast("cpu", torch.bfloat16):
            torch.set_autocast_enabled("cpu", False)  # as while an operator runs
            # From Python 3.14 on, no object tells that a region is active.
            is_old = sys.version_info < (3, 14)
            assert holder() == "no Python tensor" + ", perhaps autocast's cache" * is_old
        # WHEN torch.multiprocessing has given a handle of memory, THEN nothing is sure any more
        sent = torch.ones(10).untyped_storage()
        handle = b"a handle of CUDA"
        reductions.shared_cache[handle] = reductions.StorageWeakRef(sent)
        try:
            assert holder() == "no Python tensor"  # this process still has it
            del sent
            assert holder() == "no Python tensor, perhaps a process that received it"
        finally:
            del reductions.shared_cache[handle]


def _hook(tensor: torch.Tensor) -> Any:
    return tensor.register_hook(lambda gradient: gradient * tensor)  # type: ignore[no-untyped-call]


def test_what_only_code_in_cpp_keeps(tmp_path: Path) -> None:
    # GIVEN a tensor in a capsule of DLPack, one that a view has kept, garbage of a node, and a hook
    # that refers to its tensor
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.y = x * torch.ones(1013)
            return ctx.y  # type: ignore[no-any-return]

    with Tracer(device="cpu") as tracer:
        exported = [torch.utils.dlpack.to_dlpack(torch.ones(1011)[7:])]
        viewed = torch.ones(1012, requires_grad=True).cos()
        gc.collect()
        with collector_paused():
            Square.apply(torch.ones(1, requires_grad=True).expand(1013).exp())
            hook = _hook(torch.ones(1014, requires_grad=True).exp())
            tracer.dump(tmp_path / "file")
        blocks, strings = (snapshot := load(tmp_path / "file")).blocks, snapshot.strings
        found = {
            (size, strings[holder])  # a leaf is as large as what was computed from it
            for size, holder in zip(blocks.requested_bytes.tolist(), blocks.holder, strict=True)
        }
    # THEN each has its keeper
    here = "test_what_only_code_in_cpp_keeps()"
    assert (4044, f"exported[0] (inside a PyCapsule) of {here}") in found
    assert (4048, f"viewed of {here}") in found
    assert (4052, "a reference cycle of SquareBackward.y, which gc.collect() would free") in found
    assert (4056, "a reference cycle of _hook.<locals>.<lambda>() through a tensor's hook") in found
    hook.remove()
    del viewed, exported


def test_the_collector_frees_no_garbage_of_a_file() -> None:
    with Tracer(device="cpu") as tracer:
        threshold = gc.get_threshold()
        gc.collect()
        gc.enable()
        try:
            _make_garbage()
            gc.set_threshold(50, 1, 1)  # far more objects are made
            view = tracer._recording.view()
            threshold_after = gc.get_threshold()
        finally:
            gc.disable()
            gc.set_threshold(*threshold)
        snapshot = load(view.to_bytes({}, {}))
    assert CYCLE in snapshot.strings
    assert threshold_after == (50, 1, 1)


def test_a_fork_resumes_the_collector() -> None:
    threshold = gc.get_threshold()
    assert threshold[0]
    with collector_paused():
        assert not gc.get_threshold()[0]
        child = os.fork()
        if not child:
            os._exit(0 if gc.get_threshold() == threshold else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert gc.get_threshold() == threshold


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
    # THEN it says who holds them
    here = "test_a_thread_that_may_not_read_graphs_says_who_holds_the_memory()"
    assert f"kept[0] of {here}" in found[1]
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


def test_each_of_many_small_tensors_has_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN 60,000 small tensors, as in a replay buffer, and time to search for them
    monkeypatch.setattr(holders, "MAX_SECONDS", 20)
    monkeypatch.setattr(holders, "MAX_TENSORS", 70_000)
    kept = Trainer()
    kept.state.replay = [[], []]
    with Tracer(device="cpu") as tracer:
        for number in range(60_000):
            kept.state.replay[number % 2].append((torch.ones(5),))
        tracer.dump(tmp_path / "file")
        snapshot = load(tmp_path / "file")
    found = Counter(folded(snapshot.strings[index]) for index in snapshot.blocks.holder.tolist())
    # THEN the buffer is named for all
    here = "test_each_of_many_small_tensors_has_a_holder()"
    items = "[\N{HORIZONTAL ELLIPSIS}]" * 3
    assert found[f"kept.state.replay{items} of {here}"] == 60_000
    # AND the place of nearly each
    assert len(set(snapshot.blocks.holder.tolist())) > 59_000


def test_what_was_not_searched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN more tensors than are searched, or no time
    path = tmp_path / "file"
    for bound, value in (("MAX_TENSORS", 4), ("MAX_SECONDS", 0)):
        with monkeypatch.context() as patch, Tracer(device="cpu") as tracer:
            patch.setattr(holders, bound, value)
            kept = [torch.ones(1_000_001 + size) for size in range(8)]
            tracer.dump(path)
        # THEN the file says so, the answer does, and so do all figures
        unsearched = load(path).metadata.tensors.unsearched
        assert unsearched == len(kept) - value
        told = f"the search for the objects that keep memory was cut short: {unsearched} tensors "
        (answer,) = explain(load(path))
        assert told in " ".join(answer_of(answer).texts("lost"))
        command = [sys.executable, "-m", "pytracer", "show", path, "--all"]
        shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        assert told.removeprefix("the") in " ".join(shown.stdout.split())


@pytest.mark.parametrize(("part", "found"), [(0.001, ""), (0.0, "kept[0] of ")])
def test_little_memory_is_not_searched(
    part: float, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a model of 4 MB, and 400 bytes in a list, all recorded
    monkeypatch.setattr(holders, "LEAST_PART", part)
    with Tracer(device="cpu") as tracer:
        kept, _model = [torch.ones(100)], torch.nn.Linear(1000, 1000)
        tracer.dump(tmp_path / "file")
    # THEN the list is named only if so little matters
    snapshot = load(tmp_path / "file")
    (row,) = np.flatnonzero(snapshot.blocks.requested_bytes == kept[0].nbytes)
    assert snapshot.strings[snapshot.blocks.holder[row]].startswith(found)
    assert bool(snapshot.blocks.holder[row]) == bool(found)


STOPPED = """
import torch
from holder_programs import holders

kept = [torch.ones(1)]
objects = [[number] for number in range(2_000_000)]  # which take a while

def search():
    print("searching", flush=True)
    print(holders(2.0)[-1, kept[0].data_ptr()])

search()
"""


def test_the_bound_is_one_of_the_processor(tmp_path: Path) -> None:
    # GIVEN a search that other processes keep from running, for longer than it may take
    helpers = {**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[1] / "helpers")}
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=helpers) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"searching\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        # THEN it has found the holder all the same
        assert process.stdout.read() == b"kept[0] of module __main__\n"


def test_a_large_dict_is_looked_through_within_the_bound(programs: Any) -> None:
    name = "kept[-{}] of test_a_large_dict_is_looked_through_within_the_bound()"
    # GIVEN tensors in a large dict, which are looked for in its order, as the largest come first
    kept: dict[int, Any] = dict.fromkeys(range(300_000))
    kept |= {-number: torch.zeros(4000 - number) for number in range(1, 3001)}
    texts = programs.holders(10.0)
    for number in range(1, 3001):
        assert texts[-1, kept[-number].data_ptr()] == name.format(number)
    # AND where too many items would have to be looked at, the item is left out
    kept |= {-number: torch.zeros(number) for number in range(1, 3001)}
    item = "\N{HORIZONTAL ELLIPSIS}"
    assert programs.holders(10.0)[-1, kept[-1].data_ptr()] == name.replace("-{}", item)


def _make_garbage() -> None:
    trainer = Trainer()
    trainer.state.me, trainer.state.kept = trainer, torch.ones(1003)
