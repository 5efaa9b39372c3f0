"""Tests of running out of memory on the CPU: the snapshot precedes torch's unchanged exception."""

import contextlib
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import viewed_pickles
import viewers
from amount import amount
from processes import environment, run
from thread_failures import failures_of

from pytracer import ACTIONS, Tracer
from pytracer.backends import oom
from pytracer.backends.hook_attach import HOOKS
from pytracer.tracing import device_recording
from pytracer.tracing.device_recording import LONG_PATIENCE

HUGE = 1 << 50


def ask_for_too_much(size: int = HUGE) -> str:
    """Run out of memory and return the message of torch's exception."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(size, dtype=torch.uint8)
    assert type(raised.value) is RuntimeError
    return str(raised.value)


def load(path: Path) -> dict[str, Any]:
    """Load a snapshot and check that viewers accept it."""
    viewed_pickles.check_opcodes(path.read_bytes())
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def written(directory: Path) -> list[Path]:
    return sorted([*directory.glob("oom_*/*"), *directory.glob("*.oom-*")])


@pytest.fixture
def observer() -> Any:
    """Return a function that adds a listener for out-of-memory errors, behind the tracers' own."""
    added: list[oom.Listener] = []

    def add(listener: oom.Listener) -> None:
        oom.listeners.add(listener)
        added.append(listener)

    yield add
    oom.listeners.difference_update(added)


def test_the_snapshot_is_written_before_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN the message without a tracer, and a traced program on rank 5 with a live block
    untraced = ask_for_too_much()
    monkeypatch.setenv("RANK", "5")
    with Tracer(tmp_path, device="cpu", all_ranks=True) as tracer:
        held = torch.empty(3_000_000, dtype=torch.uint8)
        # WHEN the program runs out of memory
        message = ask_for_too_much()
        (path,) = written(tmp_path)
    # THEN the exception is torch's own
    assert message == untraced
    # AND the snapshot has the folder and name that verl uses
    assert re.fullmatch(r"oom_\d{8}-\d{6}-\d{6}", path.parent.name)
    assert re.fullmatch(r"torch_memory_oom_rank5_pid\d+\.pickle", path.name)
    assert str(path) in caplog.text
    # AND the snapshot describes the error, also for viewers
    snapshot = load(path)
    reported = snapshot["pytracer"]["oom"]
    assert (reported["device"], reported["requested_bytes"]) == (-1, HUGE)
    assert HUGE > reported["total_bytes"] > reported["free_bytes"] > 0
    *_, event = snapshot["device_traces"][0]
    assert (event["action"], event["size"]) == ("oom", HUGE)
    assert event["device_free"] == reported["free_bytes"]
    assert "addr" not in event
    assert "ask_for_too_much" in {frame["name"] for frame in event["frames"]}
    assert held.data_ptr() in {segment["address"] for segment in snapshot["segments"]}
    # AND the recording continues
    assert tracer.stats()["oom_snapshots"] == 1
    assert [ACTIONS[action] for action in tracer.events()["action"]] == ["alloc", "oom"]
    assert int(tracer.events()["address"][-1]) == reported["free_bytes"]
    assert (tmp_path / "exit").is_dir()


@pytest.mark.parametrize("command", ["trace", "trace_plot"])
def test_torchs_viewer_opens_it(tmp_path: Path, command: str) -> None:
    with Tracer(tmp_path / "x.pickle", device="cpu"):
        kept = [torch.empty(n + 1) for n in range(10)]
        ask_for_too_much()
        kept.clear()
    output = tmp_path / "x.html" if command == "trace_plot" else None
    for path in (tmp_path / "x.pickle", *written(tmp_path)):
        text = viewers.run_memory_viz(path, command, output=output)
        assert "raise OutOfMemoryError" in text or output


def requested(path: Path) -> int:
    """Return the bytes beyond `HUGE` that were requested when memory ran out."""
    return int(load(path)["pytracer"]["oom"]["requested_bytes"]) - HUGE


@pytest.mark.parametrize(("most", "kept"), [(1, [11]), (3, [0, 1, 11])])
def test_a_dozen_leaves_the_first_files_and_the_last(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    most: int,
    kept: list[int],
) -> None:
    # GIVEN a program that catches torch's exception
    reported: list[str] = []
    options = {"max_oom_snapshots": most, "on_snapshot": reported.append}
    with Tracer(tmp_path, device="cpu", **options) as tracer:  # type: ignore[arg-type]
        # WHEN it runs out of memory twelve times
        for number in range(12):
            ask_for_too_much(HUGE + number)
        # THEN the first snapshots are kept, and the last, which may be of the error that ends a job
        assert [requested(path) for path in written(tmp_path)] == kept
        assert len([*tmp_path.glob("oom_*")]) == most
        assert tracer.stats()["oom_snapshots"] == len(reported) == 12
        assert [ACTIONS[action] for action in tracer.events()["action"]] == ["oom"] * 12
    # AND one message names the snapshot from which on files are replaced
    *earlier, last = [message for message in caplog.messages if "out of memory" in message]
    assert len(earlier) == most
    assert f"more often than max_oom_snapshots={most}: {reported[most]} has replaced" in last
    assert ("the first 2 stay" in last) == (most == 3)
    # AND the end says how many there were
    at_end = capsys.readouterr().err
    assert f"out of memory 12 times; the snapshot from the last time is {reported[11]}" in at_end


def test_options_of_several_tracers(tmp_path: Path) -> None:
    # GIVEN tracers that write at most one snapshot, none, or have no output
    single = Tracer(tmp_path / "one.pickle", device="cpu", max_oom_snapshots=1)
    none = Tracer(tmp_path / "none.pickle", device="cpu", max_oom_snapshots=0)
    nowhere = Tracer(device="cpu")
    with single, none, nowhere:
        # WHEN memory runs out twice, THEN one snapshot is written, and all tracers record both
        # errors
        for _ in range(2):
            ask_for_too_much()
        assert [path.name.split(".")[0] for path in written(tmp_path)] == ["one"]
        for tracer in (single, none, nowhere):
            assert [ACTIONS[action] for action in tracer.events()["action"]] == ["oom"] * 2


def test_without_a_tracer_nothing_happens(
    tmp_path: Path, observer: Callable[[oom.Listener], None]
) -> None:
    # GIVEN the hook, and no tracer that records
    HOOKS.attach("cpu")
    reported: list[oom.OutOfMemory] = []
    observer(reported.append)
    with Tracer(tmp_path, device="cpu") as tracer:
        pass
    # WHEN memory runs out, THEN no listener is called
    ask_for_too_much()
    assert reported == []
    assert written(tmp_path) == []
    assert len(tracer.events()) == 0


def test_on_many_threads(tmp_path: Path) -> None:
    # GIVEN threads that allocate and run out of memory at the same time
    with Tracer(tmp_path, device="cpu", max_oom_snapshots=100) as tracer:

        def work() -> None:
            for _ in range(10):
                kept = [torch.empty(1000) for _ in range(20)]
                ask_for_too_much()
                del kept

        failures = failures_of(work)
        # THEN every exception is torch's, and every written file is complete
        assert failures == []
        assert 1 <= len(written(tmp_path)) == tracer.stats()["oom_snapshots"] <= 40
        for path in written(tmp_path):
            assert load(path)["pytracer"]["oom"]["requested_bytes"] == HUGE
        assert [ACTIONS[action] for action in tracer.events()["action"]].count("oom") == 40


class Greedy(torch.autograd.Function):
    """A function that requests too much memory in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.expand(HUGE).clone()


def slice_of_much(x: torch.Tensor) -> torch.Tensor:
    """Return a slice; its backward, in C++ without the GIL, fills the rest with zeros."""
    return x.expand(HUGE)[:1]


@pytest.mark.parametrize("anomalies", [False, True])
@pytest.mark.parametrize("operation", [Greedy.apply, slice_of_much])
def test_in_a_backward(
    tmp_path: Path, operation: Callable[[torch.Tensor], torch.Tensor], anomalies: bool
) -> None:
    # GIVEN an operation that runs out of memory in autograd's engine
    leaf = torch.ones(1, requires_grad=True)
    with Tracer(tmp_path, device="cpu"), torch.autograd.set_detect_anomaly(anomalies):
        output = operation(leaf).sum()
        # WHEN the backward runs
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            output.backward()
        # THEN the snapshot is written, and has the stack of the operation
        (path,) = written(tmp_path)
    *_, event = load(path)["device_traces"][0]
    assert event["action"] == "oom"
    assert "test_in_a_backward" in {frame["name"] for frame in event["frames"]}


def test_a_listener_that_runs_out_and_raises(
    tmp_path: Path, observer: Callable[[oom.Listener], None]
) -> None:
    # GIVEN a listener that runs out of memory itself and does not catch the exception
    def listen(event: oom.OutOfMemory) -> None:
        ask_for_too_much()
        torch.empty(HUGE)

    observer(listen)
    with Tracer(device="cpu") as tracer:
        # WHEN memory runs out, THEN the listener is not called recursively, and the exception is
        # torch's
        ask_for_too_much()
    assert [ACTIONS[action] for action in tracer.events()["action"]] == ["oom"] * 3


@pytest.mark.usefixtures("empty_log")  # a listener may have the address of one of another test
def test_listeners_that_fail_do_not_keep_others_from_writing(
    tmp_path: Path, observer: Callable[[oom.Listener], None], caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN tracers, and failing listeners, called in any order
    def fail(number: int) -> oom.Listener:
        def listen(event: oom.OutOfMemory) -> None:
            raise ValueError(f"{number} of {event.requested_bytes}")

        return listen

    for number in range(8):
        observer(fail(number))
    tracers = [Tracer(tmp_path / f"{number}.pickle", device="cpu") for number in range(8)]
    with contextlib.ExitStack() as stack:
        for tracer in tracers:
            stack.enter_context(tracer)
        # WHEN memory runs out twice
        for number in range(2):
            ask_for_too_much(HUGE + number)
        # THEN each tracer writes
        assert len(written(tmp_path)) == 2 * len(tracers)
    # AND each failure is logged once
    assert (
        caplog.text.count("a tracer wrote no snapshot of the out-of-memory error: ValueError(") == 8
    )


def test_a_child_forked_while_a_snapshot_is_written_writes_its_own(tmp_path: Path) -> None:
    # GIVEN a program that forks while another of its threads writes a snapshot
    program = """
import os, threading
import torch
from pytracer import Tracer
from pytracer.backends import oom

def run_out():
    try:
        torch.empty(1 << 50, dtype=torch.uint8)
    except RuntimeError:
        pass

writing, forked = threading.Event(), threading.Event()

def listen(event):
    writing.set()
    forked.wait()

oom.listeners.add(listen)
with Tracer("parent.pickle", device="cpu"):
    thread = threading.Thread(target=run_out)
    thread.start()
    writing.wait()
    child = os.fork()
    if child == 0:
        oom.listeners.clear()
        with Tracer("child.pickle", device="cpu"):
            run_out()
        os._exit(0)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
"""
    # WHEN the child runs out of memory, THEN its tracer writes
    done = run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name.split(".")[0] for path in written(tmp_path)] == ["child", "parent"]


def test_there_is_no_deadlock(tmp_path: Path) -> None:
    # GIVEN threads that run out of memory in C++, one that dumps, and one that mostly holds the GIL
    with Tracer(tmp_path, device="cpu", max_oom_snapshots=1000) as tracer:
        over = threading.Event()

        def spin() -> None:
            while not over.is_set():
                sum(range(1000))

        def dump() -> None:
            while not over.is_set():
                tracer.snapshot()

        def run_out() -> None:
            output = slice_of_much(torch.ones(1, requires_grad=True)).sum()
            for _ in range(20):
                with pytest.raises(RuntimeError, match="can't allocate memory"):
                    output.backward(retain_graph=True)

        others = [threading.Thread(target=work) for work in (spin, dump)]
        workers = [threading.Thread(target=run_out) for _ in range(3)]
        for thread in others + workers:
            thread.start()
        # WHEN they run, THEN all of them end
        for thread in workers:
            thread.join(60)
        over.set()
        for thread in others:
            thread.join(60)
    assert not any(thread.is_alive() for thread in others + workers)


@pytest.mark.slow
def test_while_the_process_ends(tmp_path: Path) -> None:
    # GIVEN threads that run out of memory all the time, in a function of torch that may run while
    # the interpreter finalises (functions that release the GIL may not), and a tracer that starts
    # after pytracer's exit callback
    program = """
import atexit, ctypes, threading, time
from pathlib import Path

import torch
from pytracer import Tracer

cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
libc = ctypes.CDLL(None)
atexit.register(Tracer(device="cpu").start)
tracer = Tracer("x.pickle", device="cpu", max_oom_snapshots=100).start()

def work():
    shape, stride = (ctypes.c_int64 * 1)(2**50), (ctypes.c_int64 * 1)(1)
    while True:
        assert cpu.aoti_torch_empty_strided(
            ctypes.c_int64(1), shape, stride, 6, 0, 0, ctypes.byref(ctypes.c_void_p())
        )

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
while not tracer.stats()["oom_snapshots"]:
    time.sleep(0.01)
libc.on_exit(libc._exit, None)  # runs before torch's static objects are destroyed
"""
    # WHEN the process ends, many times
    for _ in range(amount(2, 5)):
        done = run(program, cwd=tmp_path, env=environment(PYTHONMALLOC="debug"))
        # THEN it ends normally, and all written files are complete
        assert done.returncode == 0, done.stderr
        assert written(tmp_path) != []
        for path in [tmp_path / "x.pickle", *written(tmp_path)]:
            load(path)
            path.unlink()


def test_the_search_for_holders_takes_longer_for_each_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a tracer that keeps two files of an out-of-memory
    patiences: list[float] = []

    def read(session: Any, patience: float = 1) -> Any:
        patiences.append(patience)
        return read_owners(session, patience)

    read_owners = device_recording.read_owners
    monkeypatch.setattr(device_recording, "read_owners", read)
    with Tracer(tmp_path, device="cpu", max_oom_snapshots=2):
        # WHEN memory runs out more often
        for _ in range(4):
            ask_for_too_much()
        # THEN each file, also the last, has what the first one has, and so has that of the end
        assert patiences == [LONG_PATIENCE] * 4
    assert set(patiences[4:]) == {LONG_PATIENCE}
