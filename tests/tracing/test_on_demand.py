"""Tests of on-demand snapshots, by a signal or a trigger file, whatever the main thread does."""

import contextlib
import ctypes
import errno
import logging
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from amount import amount
from processes import run, start, without_end_line

from pytracer import ConfigError, Tracer
from pytracer.tracing import on_demand

SIGNAL = signal.SIGUSR2


def load(path: Path) -> dict[str, Any]:
    """Load a snapshot and check that viewers accept it."""
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def live_sizes(snapshot: dict[str, Any]) -> list[int]:
    return sorted(segment["total_size"] for segment in snapshot["segments"])


def on_demand_files(directory: Path) -> list[Path]:
    """Return the on-demand snapshots in order of time."""
    found = [*directory.glob("demand_*/*.pickle"), *directory.glob("*.demand-*.pickle")]
    return sorted(found)


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {seconds} s"
        time.sleep(0.01)


def wait_for(number: int, directory: Path) -> list[Path]:
    wait_until(lambda: len(on_demand_files(directory)) >= number)
    return on_demand_files(directory)


def send(pid: int = 0) -> None:
    os.kill(pid or os.getpid(), SIGNAL)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pytracer"]


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """Set the user's own signal handler; yield the list of signals that it received."""
    calls: list[int] = []
    before = signal.signal(SIGNAL, lambda number, frame: calls.append(number))
    yield calls
    assert threads() == []
    signal.signal(SIGNAL, before)


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "LOOK_SECONDS", 0.02)


@pytest.fixture
def touch() -> Callable[[Path], None]:
    """Return a function that touches a file with a new time on any file system."""
    times = iter(range(10**9, 2 * 10**9))

    def touch(path: Path) -> None:
        path.touch()
        os.utime(path, (now := next(times), now))

    return touch


# --- signals --------------------------------------------------------------------------------------


def test_a_signal_while_python_runs(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN a traced program
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL) as tracer:
        kept = torch.empty(1001)
        # WHEN the signal comes twice, and Python runs meanwhile
        for number in (1, 2):
            send()
            wait_for(number, tmp_path)
        # THEN there are two snapshots of the live blocks, and the recording continues
        assert tracer.stats()["recording"]
        del kept
    for path in on_demand_files(tmp_path):
        assert re.fullmatch(r"demand_\d{8}-\d{6}-\d{6}", path.parent.name)
        assert re.fullmatch(rf"torch_memory_[\w.-]+_pid{os.getpid()}\.pickle", path.name)
        assert live_sizes(load(path)) == [4004]
    assert live_sizes(load(next(tmp_path.glob("exit/*")))) == []
    # AND the user's own handler is called too
    assert handler == [SIGNAL, SIGNAL]


def test_a_signal_while_the_main_thread_hangs_in_c(tmp_path: Path) -> None:
    # GIVEN a program whose main thread waits for input in C, without the GIL
    program = """
import ctypes
import torch
from pytracer import Tracer

def hang():
    return ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1)

with Tracer("x.pickle", device="cpu", dump_signal="SIGUSR2"):
    kept = torch.empty(1001)
    print("recording", flush=True)
    print(hang())
"""
    with start(program, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recording\n"
        time.sleep(0.2)
        # WHEN the signal comes
        for number in (1, 2):
            send(process.pid)
            paths = wait_for(number, tmp_path)
        # THEN the snapshots are written before the main thread returns to Python
        assert process.poll() is None
        assert [live_sizes(load(path)) for path in paths] == [[4004], [4004]]
        # AND the signal did not interrupt the C call
        stdout, stderr = process.communicate("\n")
        assert (stdout, without_end_line(stderr)) == ("1\n", "")
    assert process.returncode == 0
    assert (tmp_path / "x.pickle").exists()


def test_two_tracers(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN two tracers with the same signal
    first = Tracer(tmp_path / "one.pickle", device="cpu", dump_signal=SIGNAL)
    second = Tracer(tmp_path / "two.pickle", device="cpu", dump_signal=SIGNAL)
    with first:
        with second:
            # WHEN the signal comes
            send()
            # THEN each tracer writes its own snapshot, on one common thread
            assert len(wait_for(2, tmp_path)) == 2
            assert len(threads()) == 1
        # WHEN one of them has stopped, THEN the other still writes
        send()
        names = [path.name for path in wait_for(3, tmp_path)]
        assert [name.split(".")[0] for name in names] == ["one", "one", "two"]
        # AND the user's handler has got the signals too
        assert handler == [SIGNAL, SIGNAL]
    # WHEN both have stopped, THEN it gets the signal as before
    send()
    assert handler == [SIGNAL, SIGNAL, SIGNAL]
    assert len(on_demand_files(tmp_path)) == 3


def test_a_signal_after_the_recording_does_not_end_the_program(tmp_path: Path) -> None:
    # GIVEN a program without its own handler, which the signal would end
    signal.signal(SIGNAL, signal.SIG_DFL)
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        pass
    # WHEN the signal comes after the recording, THEN nothing happens
    send()
    assert on_demand_files(tmp_path) == []
    # AND a later tracer receives the signal
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        send()
        wait_for(1, tmp_path)


def test_a_signal_to_a_tracer_that_cannot_write(tmp_path: Path) -> None:
    # GIVEN tracers with a signal, without an output or without a device to record
    for options in ({}, {"output": tmp_path, "device": "npu"}):
        signal.signal(SIGNAL, signal.SIG_DFL)
        with Tracer(dump_signal=SIGNAL, **{"device": "cpu", **options}):  # type: ignore[arg-type]
            # WHEN the signal comes, THEN the program continues
            send()
    assert on_demand_files(tmp_path) == []


def test_the_earlier_handler_is_restored(tmp_path: Path) -> None:
    # GIVEN a program that ignores the signal
    before = signal.SIG_IGN
    signal.signal(SIGNAL, before)
    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL)
    for turn in (1, 2):
        # WHEN a tracer watches the signal twice
        with tracer:
            assert action() not in (signal.SIG_DFL, signal.SIG_IGN)
            send()
            wait_for(turn, tmp_path)
        # THEN the earlier handler is restored
        assert action() == before


def action() -> int:
    """Return the system's handler of the signal; Python's functions return what they last set."""
    # The handler is the first field of `struct sigaction`.
    now = (ctypes.c_uint64 * 32)()
    assert ctypes.CDLL(None).sigaction(int(SIGNAL), None, now) == 0
    return now[0]


def test_a_later_handler_replaces_the_tracers(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN a tracer that watches a signal
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        # WHEN the program sets its own handler
        later: list[int] = []
        signal.signal(SIGNAL, lambda number, frame: later.append(number))
        send()
        # THEN this handler is called, also after the tracer has stopped
        assert later == [SIGNAL]
    send()
    assert (later, handler) == ([SIGNAL] * 2, [])
    assert on_demand_files(tmp_path) == []


def test_a_hundred_signals_in_quick_succession(tmp_path: Path) -> None:
    # GIVEN a program that allocates
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL) as tracer:
        # WHEN a hundred signals come at once
        for number in range(100):
            send()
            torch.empty(number + 1)
        # THEN some complete snapshots are written, and the next signal leads to a snapshot too
        wait_until(lambda: len(on_demand_files(tmp_path)) >= 1)
        time.sleep(0.3)
        before = len(on_demand_files(tmp_path))
        send()
        paths = wait_for(before + 1, tmp_path)
    assert len(paths) <= 101
    assert {len(load(path)["segments"]) for path in paths} <= {0, 1}
    assert tracer.stats()["failures"] == 0


def test_a_signal_that_cannot_be_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a system without free file descriptors
    def fail(number: int) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(on_demand._core, "watch_signal", fail)
    # WHEN a tracer starts, THEN it records, and the problem is logged
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL) as tracer:
        assert tracer.stats()["recording"]
    assert "no snapshots on demand: too many open files" in caplog.text


# --- files ----------------------------------------------------------------------------------------


def test_a_trigger_file(
    tmp_path: Path, touch: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a tracer that watches a file with a relative name, in a folder that does not exist yet
    monkeypatch.chdir(tmp_path)
    trigger = tmp_path / "folder" / "trigger"
    with Tracer("out", device="cpu", trigger_file="folder/trigger"):
        monkeypatch.chdir("/")
        # WHEN nothing happens, THEN nothing is written
        time.sleep(0.2)
        assert on_demand_files(tmp_path / "out") == []
        # WHEN the file is made, touched, deleted and made again, THEN each except the deletion
        # gives a snapshot
        trigger.parent.mkdir()
        touch(trigger)
        wait_for(1, tmp_path / "out")
        touch(trigger)
        wait_for(2, tmp_path / "out")
        trigger.unlink()
        time.sleep(0.2)
        touch(trigger)
        wait_for(3, tmp_path / "out")
        time.sleep(0.2)
    assert len(on_demand_files(tmp_path / "out")) == 3
    # AND the tracer does not delete the file
    assert trigger.exists()


def test_a_trigger_file_that_exists_at_the_start(
    tmp_path: Path, touch: Callable[[Path], None]
) -> None:
    # GIVEN two tracers that watch one existing file
    trigger = tmp_path / "trigger"
    touch(trigger)
    first = Tracer(tmp_path / "one", device="cpu", trigger_file=trigger)
    second = Tracer(tmp_path / "two", device="cpu", trigger_file=trigger, dump_signal=SIGNAL)
    with first, second:
        time.sleep(0.2)
        assert on_demand_files(tmp_path / "one") == on_demand_files(tmp_path / "two") == []
        # WHEN the file is touched, THEN both write
        touch(trigger)
        wait_for(1, tmp_path / "one")
        wait_for(1, tmp_path / "two")
        # WHEN a signal comes instead, THEN only the tracer that watches the signal writes
        send()
        wait_for(2, tmp_path / "two")
    # WHEN the file is touched after the stop, THEN no tracer writes
    touch(trigger)
    time.sleep(0.2)
    assert len(on_demand_files(tmp_path / "one")) == 1


def test_a_trigger_file_with_an_invalid_time(
    tmp_path: Path, touch: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file system that gives a file a time which no date can represent
    trigger = tmp_path / "trigger"
    monkeypatch.setattr(on_demand, "_touched_ns", lambda file: 10**30 if trigger.exists() else None)
    tracer = Tracer(tmp_path / "out", device="cpu", trigger_file=trigger, dump_signal=SIGNAL)
    with tracer:
        # WHEN the file is made, THEN a snapshot is written
        touch(trigger)
        wait_for(1, tmp_path / "out")
        # AND signals still lead to snapshots
        send()
        wait_for(2, tmp_path / "out")


def test_a_failing_check_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN checks of the trigger file, of which one raises an unexpected error
    looks: list[None] = []

    def look(file: str | None) -> int | None:
        looks.append(None)
        if len(looks) == 2:
            raise RuntimeError("what is this?")
        return None

    monkeypatch.setattr(on_demand, "_touched_ns", look)
    tracer = Tracer(tmp_path, device="cpu", trigger_file=tmp_path / "file", dump_signal=SIGNAL)
    with tracer, caplog.at_level(logging.WARNING, "pytracer"):
        # WHEN a check has failed, THEN that is logged, and signals still lead to snapshots
        wait_until(lambda: len(looks) > 3)
        send()
        wait_for(1, tmp_path)
    assert caplog.messages == ["a snapshot on demand failed: RuntimeError('what is this?')"]


def test_a_program_that_closes_all_descriptors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a tracer that watches a file and a signal
    options = {"device": "cpu", "trigger_file": tmp_path / "trigger", "dump_signal": SIGNAL}
    tracer = Tracer(tmp_path / "one", **options)  # type: ignore[arg-type]
    with tracer, caplog.at_level(logging.WARNING, "pytracer"):
        # WHEN the program closes the thread's descriptor, THEN the thread ends, which is logged
        os.close(on_demand._core.wake_event())
        wait_until(lambda: threads() == [])
        assert "the program closed a file descriptor of pytracer's" in caplog.text
        # AND the next tracer starts a thread that serves both tracers
        with Tracer(tmp_path / "two", **options):  # type: ignore[arg-type]
            send()
            wait_for(1, tmp_path / "one")
            wait_for(1, tmp_path / "two")


def test_a_descriptor_that_another_file_has_reused(tmp_path: Path) -> None:
    # GIVEN a tracer that watches only a signal
    program = """
import logging, os, signal, threading, time
from pytracer import Tracer
from pytracer.tracing import on_demand

logging.basicConfig(format="%(message)s")
on_demand.LOOK_SECONDS = 0.1

def threads():
    return [each.name for each in threading.enumerate() if each.name == "pytracer"]

tracer = Tracer("x.pickle", device="cpu", dump_signal="USR2").start()
# WHEN the program closes its descriptor, and opens a file that gets the same number
number = on_demand._core.wake_event()
os.close(number)
file = open("theirs", "wb+", buffering=0)
assert file.fileno() == number
# THEN the thread ends, and neither the signal nor a child touches the file
os.kill(os.getpid(), signal.SIGUSR2)
deadline = time.monotonic() + 3000
while threads():
    assert time.monotonic() < deadline
    time.sleep(0.01)
child = os.fork()
if child == 0:
    os.fstat(number)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.fstat(number).st_size == 0
# AND the next tracer watches the signal again, and answers each one
with Tracer("y.pickle", device="cpu", dump_signal="USR2"):
    for count in (1, 2):
        os.kill(os.getpid(), signal.SIGUSR2)
        while len([name for name in os.listdir() if name.startswith("y.demand")]) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert threads()
tracer.stop()
"""
    done = run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the program closed a file descriptor of pytracer's") == 1


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["out", "out/x.pickle"])
def test_keep_last(tmp_path: Path, output: str) -> None:
    # GIVEN a tracer that keeps two snapshots
    reported: list[str] = []
    tracer = Tracer(
        tmp_path / output,
        device="cpu",
        dump_signal=SIGNAL,
        keep_last=2,
        on_snapshot=reported.append,
    )
    with tracer:
        # WHEN five snapshots are written
        for number in range(5):
            send()
            wait_until(lambda number=number: len(reported) > number)
        # THEN the last two are kept, and nothing is left of the others
        found = on_demand_files(tmp_path / "out")
        assert [str(path) for path in found] == reported[3:]
        assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize("output", ["out", "out/x.pickle"])
def test_a_failed_write_deletes_no_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    # GIVEN a tracer that keeps two files, and a disk that is full at the third snapshot
    with Tracer(tmp_path / output, device="cpu", keep_last=2) as tracer:
        for second in range(4):
            with monkeypatch.context() as patch:
                if second == 2:
                    patch.setattr(tracer._writer, "write", full_disk)
                # WHEN snapshots are written on demand
                tracer._on_demand(datetime(2026, 1, 1, 0, 0, second))
            # THEN the last two complete files are kept, and nothing else
            kept = {0: [0], 1: [0, 1], 2: [0, 1], 3: [1, 3]}[second]
            seconds = [
                int(str(path).split("-00000")[1][0]) for path in on_demand_files(tmp_path / "out")
            ]
            assert seconds == kept
            assert len(list((tmp_path / "out").iterdir())) == len(kept)
        assert tracer.stats()["failures"] == 1


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_snapshot(tmp_path: Path) -> None:
    # GIVEN a function that reads each file and stops the tracer at the second
    reported: list[tuple[str, bool]] = []

    def look(path: str) -> None:
        reported.append((path, bool(load(Path(path)))))
        if len(reported) == 2:
            tracer.stop()

    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL, on_snapshot=look)
    tracer.start()
    # WHEN the signal comes, THEN the function is called with the file; it may also stop the tracer
    for number in (1, 2):
        send()
        wait_until(lambda number=number: len(reported) >= number)
    assert reported[:2] == [(str(path), True) for path in on_demand_files(tmp_path)]
    wait_until(lambda: threads() == [])
    assert not tracer.stats()["recording"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_on_snapshot_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    # GIVEN a user's function that fails, or tries to end the process
    def fail(path: str) -> None:
        raise error(f"bad: {path}")

    tracer = Tracer(
        tmp_path / "x.pickle", device="cpu", dump_signal=SIGNAL, on_snapshot=fail, keep_last=1
    )
    with tracer, caplog.at_level(logging.WARNING, "pytracer"):
        # WHEN the signal comes twice, THEN the failures are counted and logged once, and the files
        # exist
        for number in (1, 2):
            send()
            wait_until(lambda number=number: tracer.stats()["failures"] == number)
            (path,) = on_demand_files(tmp_path)
            assert path.exists()
        assert caplog.text.count(f"on_snapshot failed: {error.__name__}('bad: ") == 1


BROKEN = "raise ValueError('broken')"
FUNCTIONS = [
    ("no_such_module:f", "No module named 'no_such_module'"),
    ("os.no_such_module:f", "No module named 'os.no_such_module'; 'os' is not a package"),
    ("os:no_such_function", "module 'os' has no attribute 'no_such_function'"),
    ("os:sep", "sep is not a function"),
    ("broken_callbacks:f", "broken"),
]


@pytest.mark.parametrize(("name", "problem"), FUNCTIONS)
def test_an_on_snapshot_that_is_not_a_function(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    problem: str,
) -> None:
    (tmp_path / "broken_callbacks.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    # WHEN the code names a function that does not exist, THEN the tracer does not start
    tracer = Tracer(tmp_path / "x.pickle", device="cpu", on_snapshot=name)
    with pytest.raises(ConfigError, match=re.escape(f"on_snapshot={name!r} cannot be used: ")) as e:
        tracer.start()
    assert problem in str(e.value)
    assert not tracer.stats()["recording"]
    # WHEN a variable names it, THEN that is logged at the start, and the program is traced
    monkeypatch.setenv("PYTRACER_ON_SNAPSHOT", name)
    with Tracer(tmp_path / "x.pickle", device="cpu") as tracer:
        assert tracer.stats()["recording"]
        logged = [m for m in caplog.messages if f"PYTRACER_ON_SNAPSHOT={name!r} cannot be" in m]
        # A module that the program has not imported is not imported for this check
        assert ["No module named" in problem or name.startswith("os:")] == [bool(logged)]
    assert (tmp_path / "x.pickle").exists()


@pytest.mark.slow
def test_an_on_snapshot_that_is_defined_later(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # GIVEN programs that define their function after the tracer starts, in a module or in a class
    module = """
import pytracer
tracer = pytracer.Tracer("x.pickle", device="cpu", on_snapshot="{}:Uploads.add").start()
class Uploads:
    @staticmethod
    def add(path):
        print("got", path)
"""
    (tmp_path / "uploads.py").write_text(module.format("uploads"))
    for program in (module.format("__main__"), "import uploads"):
        # WHEN the programs end, THEN the function is called
        done = run(program, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"got {tmp_path / 'x.pickle'}\n"


# --- threads and processes ------------------------------------------------------------------------


def test_there_is_no_thread_without_need(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN a tracer without a signal and a file, and one without an output
    with Tracer(tmp_path, device="cpu"), Tracer(device="cpu", dump_signal=SIGNAL):
        # THEN there is no thread, and the user's handler keeps the signal
        assert threads() == []
        send()
        assert handler == [SIGNAL]
    # GIVEN a tracer that watches a signal; WHEN it starts and stops, THEN so does the thread
    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL)
    for _ in range(3):
        tracer.start()
        assert len(threads()) == 1
        tracer.stop()
        assert threads() == []


def test_tracers_that_come_and_go_on_many_threads(tmp_path: Path) -> None:
    # GIVEN threads that start and stop tracers, and signals all the time
    over = threading.Event()
    ignored = signal.signal(SIGNAL, signal.SIG_IGN)

    def trace(number: int) -> None:
        for turn in range(20):
            output = tmp_path / f"{number}-{turn}.pickle"
            with Tracer(output, device="cpu", dump_signal=SIGNAL, keep_last=1):
                time.sleep(0.002)

    def demand() -> None:
        while not over.is_set():
            send()
            time.sleep(0.001)

    workers = [threading.Thread(target=trace, args=(number,)) for number in range(4)]
    sender = threading.Thread(target=demand)
    # WHEN all threads have run
    for thread in [sender, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    sender.join()
    # THEN no thread is left, and all files are complete
    assert threads() == []
    assert action() == signal.SIG_IGN
    signal.signal(SIGNAL, ignored)
    assert len([path for path in tmp_path.iterdir() if "demand" not in path.name]) == 80
    for path in tmp_path.iterdir():
        pickle.loads(path.read_bytes())


@pytest.mark.slow
def test_forked_children(tmp_path: Path) -> None:
    # GIVEN a traced program that forks
    program = """
import os, pathlib, signal, sys, time
import torch
from pytracer import Tracer

def wait_for(pattern):
    deadline = time.monotonic() + 300
    while not list(pathlib.Path().glob(pattern)):
        assert time.monotonic() < deadline, pattern
        time.sleep(0.01)

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0

def send():
    os.kill(os.getpid(), signal.SIGUSR2)

def untraced():
    # WHEN the signal comes to an untraced child, THEN the child continues
    for _ in range(10):
        send()
    tracer.stop()
    send()

def traced():
    # WHEN the child has its own tracer, THEN this tracer writes
    with Tracer("child.pickle", device="cpu", dump_signal="USR2"):
        send()
        wait_for("child.demand-*")

with Tracer("parent.pickle", device="cpu", dump_signal="USR2") as tracer:
    fork(untraced)
    fork(traced)
    time.sleep(0.3)
    # THEN the parent has written no snapshot, and still watches the signal
    assert not list(pathlib.Path().glob("parent.demand-*"))
    send()
    wait_for("parent.demand-*")
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = sorted(path.name.split("-")[0] for path in tmp_path.glob("*.pickle"))
    assert names == ["child.demand", "child.pickle", "parent.demand", "parent.pickle"]


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("sys.exit(3)", 3), ("1 / 0", 0)])
def test_a_forked_child_that_returns_to_the_watching_thread(
    tmp_path: Path, end: str, status: int
) -> None:
    # GIVEN an on_snapshot function that forks, and returns in the child too
    program = f"""
import os, signal, sys, time
import torch
from pytracer import Tracer

children = []

def fork(path):
    if "demand" in path:
        child = os.fork()
        if child == 0:
            print("child")
            {end}
        children.append(child)

with Tracer("x.pickle", device="cpu", dump_signal="USR2", on_snapshot=fork):
    for number in (1, 2):
        os.kill(os.getpid(), signal.SIGUSR2)
        deadline = time.monotonic() + 300
        while len(children) < number or not (ended := os.waitpid(children[-1], os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(children[-1], signal.SIGKILL)
                sys.exit("the child did not end")
            time.sleep(0.01)
        # THEN the child ends by itself, and the parent continues to watch the signal
        assert os.waitstatus_to_exitcode(ended[1]) == {status}
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "child\nchild\n"), done.stderr


def test_a_child_of_on_snapshot_that_exits(tmp_path: Path) -> None:
    # GIVEN an on_snapshot function that forks, and a child that exits with a message
    program = """
import os, sys
import torch
from pytracer import Tracer

children = []

def fork(path):
    child = os.fork()
    if child == 0:
        print("uploaded")
        sys.exit("no space there")
    children.append(child)

with Tracer("x.pickle", device="cpu", on_snapshot=fork):
    pass
# THEN the child ends there, and does not continue with the program
print("after", os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""
    # WHEN the file is written on the main thread, THEN only the child exits
    done = run(program, cwd=tmp_path)
    assert done.stdout == "uploaded\nafter 1\n", done.stderr
    assert done.stderr == "no space there\n"


@pytest.mark.slow
def test_signals_while_the_process_ends(tmp_path: Path) -> None:
    # GIVEN a program that ignores the signal outside of the recording, and does not stop its tracer
    program = """
import atexit, signal
import torch
from pytracer import Tracer

signal.signal(signal.SIGUSR2, signal.SIG_IGN)
late = Tracer("late.pickle", device="cpu", dump_signal="USR2")
atexit.register(late.start)  # runs after pytracer's own exit callback
Tracer("x.pickle", device="cpu", dump_signal="USR2", keep_last=3).start()
kept = [torch.empty(n + 1) for n in range(2000)]
print("recording", flush=True)
input()
"""
    for _ in range(amount(2, 5)):
        with start(program, cwd=tmp_path) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "recording\n"
            # WHEN it ends while many signals come
            send(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            while process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    send(process.pid)
                time.sleep(0.0005)
            assert process.stderr is not None
            messages = process.stderr.read()
        # THEN it ends normally, and its live blocks are in the file
        messages = re.sub(r"pytracer: no snapshots on demand: can't .* thread.*\n", "", messages)
        assert (process.returncode, without_end_line(messages)) == (0, "")
        assert len(load(tmp_path / "x.pickle")["segments"]) == 2000
        (tmp_path / "x.pickle").unlink()
    for path in on_demand_files(tmp_path):
        assert sys.getsizeof(load(path))
