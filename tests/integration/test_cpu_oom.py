"""The CPU out of memory: a snapshot before the exception, which stays what it was."""

import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from processes import environment, run

from pytracer import Tracer, hooks, oom
from pytracer.actions import ACTIONS

HUGE = 1 << 50


def ask_for_too_much() -> str:
    """Runs out of memory; what torch says then."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(HUGE, dtype=torch.uint8)
    assert type(raised.value) is RuntimeError
    return str(raised.value)


def load(path: Path) -> dict[str, Any]:
    """A snapshot that viewers accept."""
    viewers.check_opcodes(path.read_bytes())
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def written(directory: Path) -> list[Path]:
    return sorted([*directory.glob("oom_*/*"), *directory.glob("*.oom-*")])


@pytest.fixture
def observer() -> Any:
    """Has a function called when memory runs out, after the tracers; as a tracer's is."""
    added: list[oom.Listener] = []

    def add(listener: oom.Listener) -> None:
        oom.listeners.add(listener)
        added.append(listener)

    yield add
    oom.listeners.difference_update(added)


def test_the_snapshot_is_there_before_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN what torch says without a tracer, and a traced program on rank 5 with a block in use
    untraced = ask_for_too_much()
    monkeypatch.setenv("RANK", "5")
    with Tracer(tmp_path, device="cpu", all_ranks=True) as tracer:
        held = torch.empty(3_000_000, dtype=torch.uint8)
        # WHEN it runs out
        said = ask_for_too_much()
        (path,) = written(tmp_path)
    # THEN the exception is torch's own
    assert said == untraced
    # AND the snapshot lies where verl puts it
    assert re.fullmatch(r"oom_\d{8}-\d{6}-\d{6}", path.parent.name)
    assert re.fullmatch(r"torch_memory_oom_rank5_pid\d+\.pickle", path.name)
    assert str(path) in caplog.text
    # AND tells what happened, to viewers too
    snapshot = load(path)
    told = snapshot["pytracer"]["oom"]
    assert (told["device"], told["requested_bytes"]) == (-1, HUGE)
    assert HUGE > told["total_bytes"] > told["free_bytes"] > 0
    *_, event = snapshot["device_traces"][0]
    assert (event["action"], event["size"]) == ("oom", HUGE)
    assert event["device_free"] == told["free_bytes"]
    assert "addr" not in event
    assert "ask_for_too_much" in {frame["name"] for frame in event["frames"]}
    assert held.data_ptr() in {segment["address"] for segment in snapshot["segments"]}
    # AND the recording went on
    assert tracer.stats()["oom_snapshots"] == 1
    assert [ACTIONS[each] for each in tracer.events()["action"]] == ["alloc", "oom"]
    assert int(tracer.events()["address"][-1]) == told["free_bytes"]
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


def test_fifty_leave_three_files(tmp_path: Path) -> None:
    # GIVEN a program that catches what torch raises
    with Tracer(tmp_path, device="cpu") as tracer:
        # WHEN it runs out fifty times
        for _ in range(50):
            ask_for_too_much()
        # THEN three snapshots are there, and all fifty in the record
        assert len(written(tmp_path)) == tracer.stats()["oom_snapshots"] == 3
        assert [ACTIONS[each] for each in tracer.events()["action"]] == ["oom"] * 50


def test_wishes(tmp_path: Path) -> None:
    # GIVEN tracers of which one wants one, one none, and one has nowhere to write
    one = Tracer(tmp_path / "one.pickle", device="cpu", max_oom_snapshots=1)
    none = Tracer(tmp_path / "none.pickle", device="cpu", on_oom=False)
    nowhere = Tracer(device="cpu")
    with one, none, nowhere:
        # WHEN memory runs out twice, THEN one is written, and both are in everyone's record
        for _ in range(2):
            ask_for_too_much()
        assert [path.name.split(".")[0] for path in written(tmp_path)] == ["one"]
        for tracer in (one, none, nowhere):
            assert [ACTIONS[each] for each in tracer.events()["action"]] == ["oom"] * 2


@pytest.mark.parametrize(("chosen", "files"), [([5], 1), ([0, 4], 0), (None, 1)])
def test_oom_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[int] | None, files: int
) -> None:
    # GIVEN rank 5
    monkeypatch.setenv("RANK", "5")
    # WHEN it runs out, THEN it writes if it is one of those chosen
    with Tracer(tmp_path, device="cpu", oom_ranks=chosen):
        ask_for_too_much()
    assert len(written(tmp_path)) == files


def test_without_a_tracer_nothing_happens(
    tmp_path: Path, observer: Callable[[oom.Listener], None]
) -> None:
    # GIVEN the hook, and no tracer that records
    hooks.attach("cpu")
    told: list[oom.OutOfMemory] = []
    observer(told.append)
    with Tracer(tmp_path, device="cpu") as tracer:
        pass
    # WHEN memory runs out, THEN nobody is told
    ask_for_too_much()
    assert told == []
    assert written(tmp_path) == []
    assert len(tracer.events()) == 0


def test_on_many_threads(tmp_path: Path) -> None:
    # GIVEN threads that allocate and run out at the same time
    with Tracer(tmp_path, device="cpu", max_oom_snapshots=100) as tracer:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(10):
                    kept = [torch.empty(1000) for _ in range(20)]
                    ask_for_too_much()
                    del kept
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # THEN every exception was torch's, and every file that was written is whole
        assert failures == []
        assert 1 <= len(written(tmp_path)) == tracer.stats()["oom_snapshots"] <= 40
        for path in written(tmp_path):
            assert load(path)["pytracer"]["oom"]["requested_bytes"] == HUGE
        assert [ACTIONS[each] for each in tracer.events()["action"]].count("oom") == 40


class Greedy(torch.autograd.Function):
    """Asks for too much in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.expand(HUGE).clone()


def slice_of_much(x: torch.Tensor) -> torch.Tensor:
    """Its backward, in C++ and without the GIL, fills what was cut off with zeros."""
    return x.expand(HUGE)[:1]


@pytest.mark.parametrize("anomalies", [False, True])
@pytest.mark.parametrize("operation", [Greedy.apply, slice_of_much])
def test_in_a_backward(
    tmp_path: Path, operation: Callable[[torch.Tensor], torch.Tensor], anomalies: bool
) -> None:
    # GIVEN an operation that runs out in autograd's engine
    leaf = torch.ones(1, requires_grad=True)
    with Tracer(tmp_path, device="cpu"), torch.autograd.set_detect_anomaly(anomalies):
        output = operation(leaf).sum()
        # WHEN it does
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            output.backward()
        # THEN the snapshot is there, and says where
        (path,) = written(tmp_path)
    *_, event = load(path)["device_traces"][0]
    assert event["action"] == "oom"
    assert "test_in_a_backward" in {frame["name"] for frame in event["frames"]}


def test_a_listener_that_runs_out_and_raises(
    tmp_path: Path, observer: Callable[[oom.Listener], None]
) -> None:
    # GIVEN a listener that runs out of memory itself, and does not catch that
    def listen(event: oom.OutOfMemory) -> None:
        ask_for_too_much()
        torch.empty(HUGE)

    observer(listen)
    with Tracer(device="cpu") as tracer:
        # WHEN memory runs out, THEN it does not recurse, and the exception is torch's
        ask_for_too_much()
    assert [ACTIONS[each] for each in tracer.events()["action"]] == ["oom"] * 3


def test_a_deadlock_is_not_possible(tmp_path: Path) -> None:
    # GIVEN threads that run out in C++, one that dumps, and one that holds the GIL most of the time
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
        # WHEN they work, THEN all come to their end
        for thread in workers:
            thread.join(60)
        over.set()
        for thread in others:
            thread.join(60)
    assert not any(thread.is_alive() for thread in others + workers)


@pytest.mark.slow
def test_while_the_process_ends(tmp_path: Path) -> None:
    # GIVEN threads that run out of memory all the time, by a function of torch that may be running
    # when the interpreter finalises (those with the GIL's release in them may not), and a tracer
    # that starts when our exit callback has run
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
libc.on_exit(libc._exit, None)  # C's first exit handler: before torch's static objects go
"""
    # WHEN the process ends, many times
    for _ in range(5):
        done = run(program, cwd=tmp_path, env=environment(PYTHONMALLOC="debug"))
        # THEN it ends as it would, and all that is written is whole
        assert done.returncode == 0, done.stderr
        assert written(tmp_path) != []
        for path in [tmp_path / "x.pickle", *written(tmp_path)]:
            load(path)
            path.unlink()
