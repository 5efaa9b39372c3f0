"""Test programs that use torch's own recorder functions, replaced by pytracer's."""

import contextlib
import gc
import inspect
import itertools
import logging
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerator.parity import Rules, check_parity, drop_last_markers
from accelerator.workload import Workload
from processes import run
from thread_failures import failures_of

import pytracer
from pytracer import log
from pytracer.backends import oom
from pytracer.backends.hook_attach import HOOKS
from pytracer.errors import HookError
from pytracer.torch_recorder import patch, replaced_functions
from pytracer.torch_recorder.patch import patch_torch, unpatch_torch

HUGE = 1 << 50
NAMES = ("_record_memory_history", "_snapshot", "_dump_snapshot", "memory_snapshot")

pytestmark = pytest.mark.usefixtures("no_collector")


class Torch:
    """Torch's functions as a program finds them, and the original ones."""

    def __init__(self, backend: str, device: ModuleType) -> None:
        self.backend = backend
        self.device = device
        self.core: Any = sys.modules["torch" if backend == "cuda" else "torch_npu"]._C
        self.history_enabled = f"_{backend}_isHistoryEnabled"
        self.attach = f"_{backend}_attach_out_of_memory_observer"
        self.places = [(device.memory, name) for name in NAMES] + [
            (device, "memory_snapshot"),
            (self.core, self.history_enabled),
            (self.core, self.attach),
        ]
        self.before = {name: getattr(holder, name) for holder, name in self.places}

    def now(self) -> list[Any]:
        return [getattr(holder, name) for holder, name in self.places]

    def record(self, *args: Any, **kwargs: Any) -> None:
        self.device.memory._record_memory_history(*args, **kwargs)

    def snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = self.device.memory._snapshot()
        return snapshot

    def is_enabled(self) -> bool:
        return bool(getattr(self.core, self.history_enabled)())

    def is_native_enabled(self) -> bool:
        """Return whether torch's own recorder is enabled."""
        return bool(self.before[self.history_enabled]())

    def observe(self, observer: Callable[..., None]) -> None:
        getattr(self.core, self.attach)(observer)

    def new(self, size: int = 1000) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.backend)

    def run_out(self) -> str:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            self.new(HUGE)
        return str(raised.value)


@pytest.fixture
def program(backend: str, device: ModuleType) -> Iterator[Torch]:
    """Provide a program on an empty device, and restore torch's functions after the test."""
    gc.collect()
    device.empty_cache()
    program = Torch(backend, device)
    yield program
    unpatch_torch()
    program.before["_record_memory_history"](None)
    for watch in oom._watches.values():
        watch.observers.clear()
    assert program.now() == list(map(program.before.get, [name for _, name in program.places]))


@pytest.fixture
def patched(program: Torch) -> Torch:
    patch_torch()
    return program


def events(snapshot: dict[str, Any], device: int = 0) -> list[tuple[str, int]]:
    return [
        (event["action"], event["size"])
        for event in snapshot["device_traces"][device]
        if event["action"] != "snapshot"
    ]


def blocks(snapshot: dict[str, Any]) -> dict[int, list[str]]:
    """Return the function names in the stacks of allocated blocks, by address."""
    return {
        block["address"]: [frame["name"] for frame in block["frames"]]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def deep(program: Torch, levels: int = 40) -> torch.Tensor:
    return deep(program, levels - 1) if levels else program.new()


# Replaced functions.


def test_the_signature_is_torchs_with_a_stack_depth(program: Torch) -> None:
    # GIVEN the parameters of torch's own function
    own = inspect.signature(program.device.memory._record_memory_history_impl).parameters
    # WHEN the function is replaced
    patch_torch()
    replaced = inspect.signature(program.device.memory._record_memory_history).parameters
    # THEN verl finds a `stack_depth` parameter, which it looks for
    assert list(replaced) == [*own, "stack_depth"]
    assert replaced["stack_depth"].default == 32
    assert all(replaced[name] == own[name] for name in own)
    # AND all of torch's functions are replaced
    assert all(
        now is not program.before[name]
        for now, (_, name) in zip(program.now(), program.places, strict=True)
    )
    assert {function.__module__ for function in program.now()} == {replaced_functions.__name__}
    assert program.device.memory_snapshot is program.device.memory.memory_snapshot


def test_patching_twice_and_undoing_it(program: Torch) -> None:
    patch_torch()
    replaced = program.now()
    patch_torch()
    assert program.now() == replaced
    # WHEN the patch is undone during a session
    program.record()
    assert program.is_enabled()
    unpatch_torch()
    # THEN the session has ended; the fixture checks that torch's functions are restored
    assert not program.is_enabled()
    unpatch_torch()


def test_a_wrapper_around_the_replaced_function_keeps_working(patched: Torch) -> None:
    # GIVEN a wrapper around pytracer's function
    replaced = patched.device.memory._record_memory_history
    patched.device.memory._record_memory_history = wrapper = lambda *args, **more: replaced(
        *args, **more
    )
    wrapper(stack_depth=3)
    assert not patched.is_native_enabled()
    # WHEN the patch is undone
    unpatch_torch()
    # THEN the wrapper remains, and calls torch's function
    assert patched.device.memory._record_memory_history is wrapper
    wrapper(stack_depth=3)
    assert patched.is_native_enabled()
    # AND after another patch, it calls pytracer's
    patch_torch()
    patched.record(None)
    assert not patched.is_enabled()
    patched.record()
    assert patched.is_enabled()
    assert not patched.is_native_enabled()
    unpatch_torch()
    patched.device.memory._record_memory_history = patched.before["_record_memory_history"]


# Recording.


def test_stacks_have_the_requested_depth(program: Torch) -> None:
    def depths() -> list[int]:
        program.new()
        block = deep(program)
        snapshot = program.snapshot()
        assert block.data_ptr() in blocks(snapshot)
        return [len(event["frames"]) for event in snapshot["device_traces"][0]]

    # GIVEN torch's recorder, which has no such option
    program.record(stacks="python")
    assert max(depths()) > 40
    program.record(None)
    patch_torch()
    # WHEN `stack_depth` is passed, or not
    for options, depth in (({"stack_depth": 3}, 3), ({}, 32), ({"stack_depth": "deep"}, 32)):
        program.record(**options)
        # THEN the deepest stacks have this depth
        assert max(depths()) == depth
        program.record(None)


@pytest.mark.parametrize("context", ["all", "alloc"])
def test_the_record_is_torchs(patched: Torch, context: str) -> None:
    # GIVEN torch's own recorder next to pytracer's
    own = {"context": context, "stacks": "python", "max_entries": 1 << 20}
    workload = Workload(patched.backend, seed=5, expandable="off")
    patched.before["_record_memory_history"]("all", **own)
    patched.record("all", **own)
    # WHEN memory is used in all ways
    workload.run(5000)
    traced = patched.snapshot()
    native = drop_last_markers(patched.before["_snapshot"]())
    workload.close()
    # THEN both records are equal
    assert check_parity(native, traced, Rules(context=context)) >= 5000


def test_sessions_restarted_as_by_verl(patched: Torch) -> None:
    # GIVEN a block allocated during a session
    patched.record()
    weights = deep(patched, 3)
    # WHEN the session ends, and memory is used before the next one
    patched.record(None)
    assert not patched.is_enabled()
    unseen, gone = deep(patched, 3), deep(patched, 3)
    unseen_at = unseen.data_ptr()
    del gone
    off = patched.snapshot()
    patched.record()
    del unseen
    batch = deep(patched, 3)
    again = patched.snapshot()
    # THEN there are no events in between, and the block has kept its stack
    assert events(off) == []
    assert "deep" in blocks(off)[weights.data_ptr()]
    assert blocks(off)[unseen_at] == []
    # AND the next session has only its own events
    assert [action for action, _ in events(again)] == ["free_requested", "free_completed", "alloc"]
    assert "deep" in blocks(again)[weights.data_ptr()]
    assert "deep" in blocks(again)[batch.data_ptr()]


def test_options_change_during_a_session(patched: Torch) -> None:
    # GIVEN a session with events
    patched.record(stack_depth=2)
    first = deep(patched)
    # WHEN recording is requested again with other options
    patched.record(stack_depth=4, max_entries=50)
    second = deep(patched)
    snapshot = patched.snapshot()
    # THEN later events use them; a torch with `clear_history` keeps the earlier events
    known = blocks(snapshot)
    assert (len(known[first.data_ptr()]), len(known[second.data_ptr()])) == (2, 4)
    keeps = (
        "clear_history"
        in inspect.signature(patched.device.memory._record_memory_history).parameters
    )
    assert [action for action, _ in events(snapshot)].count("alloc") == (2 if keeps else 1)
    assert snapshot["pytracer"]["trace_alloc_max_entries"] == 50
    if keeps:
        patched.record(clear_history=True)
        assert events(patched.snapshot()) == []


def test_only_the_state(patched: Torch) -> None:
    # GIVEN a session that records only blocks, next to a tracer
    with pytracer.Tracer(device=patched.backend) as tracer:
        patched.record("state", stack_depth=5)
        block = deep(patched)
        # THEN the block has its stack, and the session has no events
        snapshot = patched.snapshot()
        assert blocks(snapshot)[block.data_ptr()] == ["new"] + ["deep"] * 4
        assert sum(map(len, snapshot["device_traces"])) == 0
        assert patched.is_enabled()
        # AND the tracer has events
        assert len(tracer.events()) > 0
    # WHEN events are requested too, THEN they are recorded from then on
    patched.record("all")
    del block
    assert [action for action, _ in events(patched.snapshot())] == [
        "free_requested",
        "free_completed",
    ]


def test_the_number_of_entries_is_limited(patched: Torch) -> None:
    for entries, bound in ((sys.maxsize, 100_000), (1 << 40, 100_000), (0, 1), (77, 77)):
        patched.record(max_entries=entries)
        metadata = patched.snapshot()["pytracer"]
        assert metadata["trace_alloc_max_entries"] == bound
        assert metadata["stand_in"]["max_entries"] == entries


def test_cpp_frames_are_not_recorded_without_a_warning(
    patched: Torch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pytracer"):
        patched.record(stacks="all")  # torch's default
    assert caplog.text == ""
    assert patched.snapshot()["pytracer"]["stand_in"]["stacks"] == "all"


def test_wrong_arguments_raise_torchs_errors(program: Torch) -> None:
    wrong = [
        ((), {"enabled": "some"}),
        ((3,), {}),
        ((), {"context": "stack"}),
        ((), {"stacks": "rust"}),
        ((None,), {"context": "stack"}),
        ((), {"max_entries": -1}),
        ((), {"max_entries": "all"}),
        ((), {"nonsense": 1}),
        ((), {"skip_actions": ["nonsense"]}),
        ((), {"skip_actions": "alloc"}),
        ((), {"compile_context": "yes"}),
        ((True, True, "many"), {}),
    ]

    def errors() -> list[tuple[type, str]]:
        raised = []
        for args, kwargs in wrong:
            with pytest.raises((TypeError, RuntimeError)) as info:
                program.record(*args, **kwargs)
            raised.append((info.type, str(info.value)))
        return raised

    # GIVEN the errors of torch's function
    before = errors()
    # THEN the replaced function raises the same errors
    patch_torch()
    assert errors() == before
    program.record(None)
    assert not program.is_enabled()


# Reading.


def test_files_and_dicts_are_equal_and_small(patched: Torch, tmp_path: Path) -> None:
    # GIVEN a recording with deep stacks
    patched.record(max_entries=2000)
    for _ in range(500):
        deep(patched)
    # WHEN it is written in the ways of frameworks
    patched.device.memory._dump_snapshot(str(tmp_path / "dump.pickle"))
    snapshot = patched.snapshot()
    pickled = pickle.dumps(snapshot, protocol=4)
    # THEN the file is complete, and the pickled dict is not much larger, because it shares frames
    dumped = pickle.loads((tmp_path / "dump.pickle").read_bytes())
    assert events(dumped) == events(snapshot)
    assert dumped["segments"] == snapshot["segments"]
    assert len(pickled) < 1.5 * (tmp_path / "dump.pickle").stat().st_size
    assert patched.device.memory_snapshot() == snapshot["segments"]
    assert [path.name for path in tmp_path.iterdir()] == ["dump.pickle"]
    # AND a file that cannot be written raises an error, as with torch
    with pytest.raises(OSError, match="No such file"):
        patched.device.memory._dump_snapshot(str(tmp_path / "nowhere" / "x.pickle"))


def test_without_a_session_torch_answers(patched: Torch, tmp_path: Path) -> None:
    # GIVEN torch's own recorder, enabled before the patch
    patched.before["_record_memory_history"](stacks="python")
    block = patched.new(3_000_000)
    assert patched.is_enabled()
    # WHEN it is read
    snapshot = patched.snapshot()
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle")
    # THEN the snapshot is torch's
    assert "pytracer" not in snapshot
    assert events(snapshot)
    data = (tmp_path / "x.pickle").read_bytes()
    assert data[1] == 4  # the protocol
    assert block.data_ptr() in blocks(pickle.loads(data))
    assert len(patched.device.memory_snapshot()) == len(snapshot["segments"])
    # AND it can be ended
    patched.record(None)
    assert not patched.is_enabled()


def test_a_pools_segments_are_torchs(patched: Torch) -> None:
    # GIVEN a block in a pool, and one outside
    pool = patched.device.MemPool()
    with patched.device.use_mem_pool(pool):
        block = patched.new()
    outside = patched.new()
    patched.record()
    # THEN the segments of the pool can be requested separately
    assert {block.data_ptr(), outside.data_ptr()} <= blocks(patched.snapshot()).keys()
    (segment,) = patched.device.memory.memory_snapshot(pool.id)
    assert segment["address"] == block.data_ptr()
    if patched.backend == "cuda":
        assert patched.device.memory.memory_snapshot(include_traces=False)


def test_no_profiler_is_started(
    patched: Torch, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "cuda":
        pytest.skip("only torch_npu has one")

    # GIVEN a torch_npu that cannot save its CSV, and whose profiler must not be started
    def touched(*_: object) -> None:
        raise AssertionError

    for name in ("_init_profiler", "_start_profiler", "_stop_profiler", "_finalize_profiler"):
        monkeypatch.setattr(patched.core._profiler, name, touched)
    monkeypatch.setattr(patched.core, "_npu_saveDevMemUsageInfo", lambda _: False)
    with pytest.raises(AssertionError):
        patched.before["_dump_snapshot"](tmp_path / "own.pickle")
    # THEN pytracer dumps without it, with and without a session
    patched.device.memory._dump_snapshot(tmp_path / "none.pickle")
    patched.record()
    patched.device.memory._dump_snapshot(tmp_path / "pytracer.pickle")
    assert "pytracer" not in pickle.loads((tmp_path / "none.pickle").read_bytes())
    assert "pytracer" in pickle.loads((tmp_path / "pytracer.pickle").read_bytes())


def test_frames_of_generated_code(
    patched: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "augment_with_fx_traces" not in inspect.signature(patched.before["_snapshot"]).parameters:
        pytest.skip("this torch does not have the parameter")
    # GIVEN torch's own function that adds information to frames
    name = "_augment_memory_snapshot_stack_traces"
    home = patched.device.memory if hasattr(patched.device.memory, name) else torch._utils
    monkeypatch.setattr(home, name, lambda snapshot: {**snapshot, "augmented": True})
    patched.record()
    # THEN it is applied
    assert patched.device.memory._snapshot(augment_with_fx_traces=True)["augmented"]
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle", augment_with_fx_traces=True)
    assert pickle.loads((tmp_path / "x.pickle").read_bytes())["augmented"]
    # AND the real function accepts pytracer's snapshot
    monkeypatch.undo()
    patched.new()
    assert events(patched.device.memory._snapshot(augment_with_fx_traces=True))


# Sessions of several owners.


def graph_trees(backend: str) -> contextlib.AbstractContextManager[None]:
    """Return the context in which inductor records, unless recording is already enabled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about torch's own code
        if backend == "npu":
            from torch_npu.npu._graph_tree import enable_history_recording
        else:
            from torch._inductor.cudagraph_trees import enable_history_recording
    recording: contextlib.AbstractContextManager[None] = enable_history_recording()
    return recording


@pytest.mark.parametrize(
    "order",
    sorted(
        order
        for order in set(itertools.permutations(["user on", "user off", "torch on", "torch off"]))
        if order.index("user on") < order.index("user off")
        and order.index("torch on") < order.index("torch off")
    ),
    ids=",".join,
)
def test_torchs_own_sessions_do_not_end_the_users(patched: Torch, order: tuple[str, ...]) -> None:
    # GIVEN inductor's session and the user's, in some order
    inductors = graph_trees(patched.backend)
    on: set[str] = set()
    for step, change in enumerate(order, start=1):
        owner, _, what = change.partition(" ")
        if owner == "user":
            patched.record("all" if what == "on" else None)
        elif what == "on":
            inductors.__enter__()
            owner = "nobody" if on else owner  # inductor uses the user's session
        else:
            inductors.__exit__(None, None, None)
        on = on | {owner} - {"nobody"} if what == "on" else on - {owner}
        # THEN history is enabled as long as one of the sessions is
        assert patched.is_enabled() == bool(on)
        # AND the user has the events since the begin of the user's session
        patched.new(512_000 * step)
        if "user" in on:
            sizes = [size for action, size in events(patched.snapshot()) if action == "alloc"]
            begun = order.index("user on") + 1
            assert sizes == [512_000 * number for number in range(begun, step + 1)]


def test_torchs_search_for_tensor_cycles(patched: Torch) -> None:
    if patched.backend == "npu":
        pytest.skip("only CUDA has it")
    from torch.utils.viz._cycles import observe_tensor_cycles

    # GIVEN the user's session, and torch's search for cycles, which never ends its own session
    patched.record()
    shown: list[str] = []
    forget = observe_tensor_cycles(shown.append)
    # WHEN the user's session ends
    patched.record(None)
    assert patched.is_enabled()
    held: list[Any] = [deep(patched, 3)]
    held.append(held)
    del held
    gc.collect()
    forget()
    # THEN the search still has the stacks that it needs
    assert "deep" in shown[0]
    # AND the user has no events
    assert events(patched.snapshot()) == []


def test_threads(patched: Torch) -> None:
    # GIVEN threads that all start, read and end sessions
    def work() -> None:
        for _ in range(20):
            patched.record(max_entries=1000)
            kept = [patched.new() for _ in range(10)]
            patched.snapshot()
            patched.device.memory_snapshot()
            patched.record(None)
            del kept

    failures = failures_of(work)
    # THEN no thread fails
    assert failures == []
    assert not patched.is_enabled()


# Features of torch's recorder only.


def test_torchs_annotations(patched: Torch) -> None:
    if patched.backend == "npu":
        pytest.skip("only CUDA has them")
    # GIVEN a session that requests torch's annotations
    patched.record(global_record_annotations=True, compile_context=True)
    with torch.profiler.record_function("named"):
        patched.new()
    snapshot = patched.snapshot()
    # THEN pytracer's snapshot has them, and pytracer's events
    assert {entry["name"] for entry in snapshot["external_annotations"]} == {"named"}
    assert [action for action, _ in events(snapshot)][-3:] == [
        "alloc",
        "free_requested",
        "free_completed",
    ]
    assert "pytracer" in snapshot
    # AND torch's recorder has kept no events
    if "skip_actions" in inspect.signature(patched.device.memory._record_memory_history).parameters:
        assert sum(map(len, patched.before["_snapshot"]()["device_traces"])) == 0
    # WHEN the annotations are no longer requested, THEN torch's recorder is switched off
    patched.record()
    assert not patched.is_native_enabled()
    patched.record(compile_context=True)
    assert patched.is_native_enabled()
    patched.record(None)
    assert not patched.is_native_enabled()


def test_pinned_memory(patched: Torch, tmp_path: Path) -> None:
    parameters = inspect.signature(patched.device.memory._record_memory_history).parameters
    if "record_pinned_host_memory" not in parameters:
        pytest.skip("this torch does not have the parameter")
    # GIVEN a session of the host and the device
    patched.record(record_pinned_host_memory=True, global_record_annotations=True, stacks="python")
    held = torch.empty(1000).pin_memory(), patched.new()
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle")
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    # THEN the file has both
    assert snapshot["host_traces"]
    assert snapshot["host_segments"]
    assert held[1].data_ptr() in blocks(snapshot)
    assert events(snapshot)
    # WHEN only the host is requested, THEN the device is not recorded
    patched.record(record_pinned_host_memory=True, record_cuda=False)
    assert not patched.is_enabled()
    patched.record(None)


def test_skipped_events(patched: Torch, tmp_path: Path) -> None:
    if "skip_actions" not in inspect.signature(patched.before["_record_memory_history"]).parameters:
        pytest.skip("this torch does not have the parameter")
    patched.record(skip_actions=["free_requested", "segment_alloc", "snapshot"])
    patched.new()
    patched.device.memory._dump_snapshot(tmp_path / "x.pickle")
    for snapshot in (patched.snapshot(), pickle.loads((tmp_path / "x.pickle").read_bytes())):
        actions = [event["action"] for event in snapshot["device_traces"][0]]
        assert actions == ["alloc", "free_completed"]
        assert snapshot["pytracer"]["stand_in"]["skip_actions"]


def test_the_arguments_of_old_versions(patched: Torch) -> None:
    if patched.backend == "npu":
        pytest.skip("only CUDA has them")
    for options, context, has_events in (
        ({}, "state", False),
        ({"trace_alloc_max_entries": 10}, "state", True),
        ({"trace_alloc_max_entries": 10, "trace_alloc_record_context": True}, "alloc", True),
        ({"record_context": False}, None, False),
    ):
        patched.record(True, **options)
        patched.new()
        snapshot = patched.snapshot()
        assert snapshot["pytracer"]["context"] == context
        assert bool(events(snapshot)) == has_events
        patched.record(False)
        assert not patched.is_enabled()


# Without pytracer's recording.


@pytest.mark.parametrize("why", ["no hook", "switched off"])
def test_torchs_recorder_is_used_if_pytracer_cannot_record(
    patched: Torch, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def attach(_: str) -> None:
        raise HookError("no compiler")

    monkeypatch.setattr(log, "_logged", set())
    if why == "no hook":
        monkeypatch.setattr(HOOKS, "attach", attach)
    else:
        monkeypatch.setenv("PYTRACER", "0")
    # WHEN pytracer cannot record
    with caplog.at_level(logging.WARNING, "pytracer"):
        for _ in range(2):
            patched.record(stacks="python", stack_depth=3)
    # THEN torch records, and one warning is logged
    assert patched.is_native_enabled()
    assert caplog.text.count("torch's own recorder is used") == 1
    deep(patched)
    snapshot = patched.snapshot()
    assert "pytracer" not in snapshot
    assert max(len(event["frames"]) for event in snapshot["device_traces"][0]) > 40
    patched.record(None)
    assert not patched.is_enabled()
    # WHEN pytracer can record again, THEN it does
    monkeypatch.undo()
    patched.record()
    assert "pytracer" in patched.snapshot()
    assert not patched.is_native_enabled()


# Out of memory.


def test_an_out_of_memory_has_one_file(patched: Torch, tmp_path: Path) -> None:
    # GIVEN a framework that writes a snapshot at an out-of-memory, and a tracer that would too
    patched.record()
    seen: list[tuple[int, ...]] = []

    def observer(*event: int) -> None:
        seen.append(event)
        if len(seen) == 1:
            patched.device.memory._dump_snapshot(str(tmp_path / "framework.pickle"))
        elif len(seen) == 2:
            (tmp_path / "framework.pickle").write_bytes(pickle.dumps(patched.snapshot()))

    patched.observe(observer)
    with pytracer.Tracer(tmp_path / "tracer.pickle", device=patched.backend):
        # WHEN memory runs out, THEN the framework's file is the only one, however it is written
        for _ in range(2):
            patched.run_out()
            assert [path.name for path in tmp_path.iterdir()] == ["framework.pickle"]
            snapshot = pickle.loads((tmp_path / "framework.pickle").read_bytes())
            assert events(snapshot)[-1][0] == "oom"
            (tmp_path / "framework.pickle").unlink()
        # AND if the framework writes none, the tracer does
        patched.run_out()
        assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["tracer.oom"]
        assert len(seen) == 3
        assert seen[0][0] == 0
        assert seen[0][1] >= HUGE
    # AND the observer is still called after the patch is undone
    unpatch_torch()
    patched.run_out()
    assert len(seen) == 4


def test_an_observers_exception_reaches_the_program(patched: Torch, tmp_path: Path) -> None:
    # GIVEN an observer that raises an exception, and one after it
    called: list[str] = []

    def failing(*_: int) -> None:
        called.append("failing")
        raise KeyError("theirs")

    patched.observe(failing)
    patched.observe(lambda *_: called.append("next"))
    with pytracer.Tracer(tmp_path / "x.pickle", device=patched.backend):
        # WHEN memory runs out
        with pytest.raises(KeyError, match="theirs"):
            patched.new(HUGE)
        # THEN the program gets this exception, as with torch, and the tracer's file was written
        assert called == ["failing"]
        assert len(list(tmp_path.glob("x.oom-*"))) == 1


EARLY = """
import sys
import torch
if sys.argv[1] == "npu":
    import torch_npu
from pytracer.torch_recorder.patch import patch_torch
patch_torch()
core = (torch if sys.argv[1] == "cuda" else torch_npu)._C
device = getattr(torch, sys.argv[1])
attach = getattr(core, f"_{sys.argv[1]}_attach_out_of_memory_observer")
attach(lambda *event: print("seen", event[1]))
assert not device.is_initialized()
if "record" in sys.argv:
    device.memory._record_memory_history()
    assert device.is_initialized()
try:
    torch.empty(1 << 50, dtype=torch.uint8, device=sys.argv[1])
except torch.OutOfMemoryError:
    print("raised")
"""


@pytest.mark.parametrize("first", ["record", "allocate"])
def test_before_the_device_is_initialised(backend: str, first: str, tmp_path: Path) -> None:
    # GIVEN a program that attaches its observer early, and then records, or does not
    done = run(EARLY, backend, first, cwd=tmp_path)
    # THEN recording initialises the device, as with torch, and the observer is called once
    assert done.returncode == 0, done.stderr
    seen, raised = done.stdout.split("\n")[-3:-1]
    assert seen.startswith("seen ")
    assert raised == "raised"
    assert done.stdout.count("seen") == 1


def test_a_forked_child_has_no_sessions(patched: Torch) -> None:
    patched.record()
    replaced = patch._patches[patched.backend]
    sessions = list(replaced._sessions.values())
    replaced.reset_in_child(threading.RLock())
    assert not replaced._sessions
    assert not patched.is_enabled()
    for session in sessions:  # this process is not a child
        session.stop()
