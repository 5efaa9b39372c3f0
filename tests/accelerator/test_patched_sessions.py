"""Which sessions of the replaced recorder do programs, torch and threads have?"""

import contextlib
import gc
import inspect
import itertools
import logging
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from patched_torch import HUGE, Torch, blocks, deep, events
from processes import run
from thread_failures import failures_of

import pytracer
from pytracer import log
from pytracer.backends.hook_attach import HOOKS
from pytracer.errors import HookError
from pytracer.torch_recorder import patch
from pytracer.torch_recorder.patch import unpatch_torch

pytestmark = pytest.mark.usefixtures("no_collector")


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
    # AND without an option, stacks have 32 frames, of which torch's own would keep more
    patched.record(stack_depth="deep")
    third = deep(patched)
    assert len(blocks(patched.snapshot())[third.data_ptr()]) == 32


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
            assert [path.name for path in tmp_path.glob("[!.]*")] == ["framework.pickle"]
            snapshot = pickle.loads((tmp_path / "framework.pickle").read_bytes())
            assert events(snapshot)[-1][0] == "oom"
            (tmp_path / "framework.pickle").unlink()
        # AND if the framework writes none, the tracer does
        patched.run_out()
        assert [path.name.partition("-")[0] for path in tmp_path.glob("[!.]*")] == ["tracer.oom"]
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
    patch._reset_in_child()
    assert not replaced._sessions
    assert not patched.is_enabled()
    for session in sessions:  # this process is not a child
        session.stop()
