"""Snapshots on demand: at a signal, or when a file is touched, whatever the main thread does."""

import contextlib
import ctypes
import logging
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from processes import run, start

from pytracer import Tracer, on_demand

SIGNAL = signal.SIGUSR2


def load(path: Path) -> dict[str, Any]:
    """A snapshot that viewers accept."""
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def live_sizes(snapshot: dict[str, Any]) -> list[int]:
    return sorted(segment["total_size"] for segment in snapshot["segments"])


def demanded(directory: Path) -> list[Path]:
    """In order of time."""
    found = [*directory.glob("demand_*/*.pickle"), *directory.glob("*.demand-*.pickle")]
    return sorted(found)


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def wait_for(number: int, directory: Path) -> list[Path]:
    wait_until(lambda: len(demanded(directory)) >= number)
    return demanded(directory)


def send(pid: int = 0) -> None:
    os.kill(pid or os.getpid(), SIGNAL)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pytracer"]


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """The user's own; the numbers it was called with."""
    calls: list[int] = []
    before = signal.signal(SIGNAL, lambda number, frame: calls.append(number))
    yield calls
    assert threads() == []
    signal.signal(SIGNAL, before)


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "LOOK_SECONDS", 0.02)


@pytest.fixture
def touch() -> Callable[[Path], None]:
    """Touches a file with a time of its own, however coarse the file system's are."""
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
        # WHEN the signal comes, twice, and Python runs meanwhile
        for number in (1, 2):
            send()
            wait_for(number, tmp_path)
        # THEN there are two snapshots of what it holds; the recording goes on
        assert tracer.stats()["recording"]
        del kept
    for path in demanded(tmp_path):
        assert re.fullmatch(r"demand_\d{8}-\d{6}-\d{6}", path.parent.name)
        assert re.fullmatch(rf"torch_memory_[\w.-]+_pid{os.getpid()}\.pickle", path.name)
        assert live_sizes(load(path)) == [4004]
    assert live_sizes(load(next(tmp_path.glob("exit/*")))) == []
    # AND the user's own handler knows nothing of it
    assert handler == []


def test_a_signal_while_the_main_thread_hangs_in_c(tmp_path: Path) -> None:
    # GIVEN a program whose main thread is in C, without the GIL, until something can be read
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
        # THEN the snapshots are there before it comes back
        assert process.poll() is None
        assert [live_sizes(load(path)) for path in paths] == [[4004], [4004]]
        # AND C did not notice the signal
        assert process.communicate("\n") == ("1\n", "")
    assert process.returncode == 0
    assert (tmp_path / "x.pickle").exists()


def test_two_tracers(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN two tracers with one signal
    one = Tracer(tmp_path / "one.pickle", device="cpu", dump_signal=SIGNAL)
    two = Tracer(tmp_path / "two.pickle", device="cpu", dump_signal=SIGNAL)
    with one:
        with two:
            # WHEN it comes
            send()
            # THEN each writes its own, on the one thread
            assert len(wait_for(2, tmp_path)) == 2
            assert len(threads()) == 1
        # WHEN one of them has stopped, THEN the other goes on
        send()
        names = [path.name for path in wait_for(3, tmp_path)]
        assert [name.split(".")[0] for name in names] == ["one", "one", "two"]
        assert handler == []
    # WHEN both have, THEN the signal is the user's again
    send()
    assert handler == [SIGNAL]
    assert len(demanded(tmp_path)) == 3


def test_a_signal_once_too_often_does_not_end_the_program(tmp_path: Path) -> None:
    # GIVEN a program without a handler of its own, which the signal would end
    signal.signal(SIGNAL, signal.SIG_DFL)
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        pass
    # WHEN it comes after the end, THEN it does nothing
    send()
    assert demanded(tmp_path) == []
    # AND a tracer that comes later gets it
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        send()
        wait_for(1, tmp_path)


def test_a_signal_to_a_tracer_that_cannot_write(tmp_path: Path) -> None:
    # GIVEN tracers that asked for a signal, and have no output, or nothing to record
    for options in ({}, {"output": tmp_path, "device": "npu"}):
        signal.signal(SIGNAL, signal.SIG_DFL)
        with Tracer(dump_signal=SIGNAL, **{"device": "cpu", **options}):  # type: ignore[arg-type]
            # WHEN it comes, THEN the program lives
            send()
    assert demanded(tmp_path) == []


def test_the_handler_of_before_is_put_back(tmp_path: Path) -> None:
    # GIVEN a program that ignores the signal
    before = signal.SIG_IGN
    signal.signal(SIGNAL, before)
    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL)
    for turn in (1, 2):
        # WHEN a tracer watched it, twice
        with tracer:
            assert action() not in (signal.SIG_DFL, signal.SIG_IGN)
            send()
            wait_for(turn, tmp_path)
        # THEN it is as it was
        assert action() == before


def action() -> int:
    """What the system does at the signal; Python's own functions tell what they last set."""
    # The handler is the first field of `struct sigaction`.
    now = (ctypes.c_uint64 * 32)()
    assert ctypes.CDLL(None).sigaction(int(SIGNAL), None, now) == 0
    return now[0]


def test_a_handler_set_later_wins(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN a tracer that watches a signal
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL):
        # WHEN the program sets a handler of its own
        later: list[int] = []
        signal.signal(SIGNAL, lambda number, frame: later.append(number))
        send()
        # THEN it is called, and goes on being so
        assert later == [SIGNAL]
    send()
    assert (later, handler) == ([SIGNAL] * 2, [])
    assert demanded(tmp_path) == []


def test_a_hundred_signals_in_quick_succession(tmp_path: Path) -> None:
    # GIVEN a program that allocates
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL) as tracer:
        # WHEN a hundred signals come at once
        for number in range(100):
            send()
            torch.empty(number + 1)
        # THEN some snapshots are written, whole, and the next signal has one too
        wait_until(lambda: len(demanded(tmp_path)) >= 1)
        time.sleep(0.3)
        before = len(demanded(tmp_path))
        send()
        paths = wait_for(before + 1, tmp_path)
    assert len(paths) <= 101
    assert {len(load(path)["segments"]) for path in paths} <= {0, 1}
    assert tracer.stats()["failures"] == 0


def test_a_signal_that_cannot_be_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a system that has no file descriptor left
    def fail(number: int) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(on_demand._core, "watch_signal", fail)
    # WHEN a tracer starts, THEN it records, and that is said
    with Tracer(tmp_path, device="cpu", dump_signal=SIGNAL) as tracer:
        assert tracer.stats()["recording"]
    assert "no snapshots on demand: too many open files" in caplog.text


# --- files ----------------------------------------------------------------------------------------


def test_a_trigger_file(
    tmp_path: Path, touch: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a tracer that watches a file, by a relative name, in a folder that is not there yet
    monkeypatch.chdir(tmp_path)
    trigger = tmp_path / "folder" / "trigger"
    with Tracer("out", device="cpu", trigger_file="folder/trigger"):
        monkeypatch.chdir("/")
        # WHEN nothing happens, THEN nothing is written
        time.sleep(0.2)
        assert demanded(tmp_path / "out") == []
        # WHEN it is made, touched, deleted and made again, THEN each but the deletion is a demand
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
    assert len(demanded(tmp_path / "out")) == 3
    # AND nobody deleted it
    assert trigger.exists()


def test_a_trigger_file_that_is_there_at_the_start(
    tmp_path: Path, touch: Callable[[Path], None]
) -> None:
    # GIVEN two tracers that watch one file, which is there
    trigger = tmp_path / "trigger"
    touch(trigger)
    one = Tracer(tmp_path / "one", device="cpu", trigger_file=trigger)
    two = Tracer(tmp_path / "two", device="cpu", trigger_file=trigger, dump_signal=SIGNAL)
    with one, two:
        time.sleep(0.2)
        assert demanded(tmp_path / "one") == demanded(tmp_path / "two") == []
        # WHEN it is touched, THEN both write
        touch(trigger)
        wait_for(1, tmp_path / "one")
        wait_for(1, tmp_path / "two")
        # WHEN a signal comes instead, THEN the one that watches it does
        send()
        wait_for(2, tmp_path / "two")
    # WHEN it is touched after the stop, THEN nobody does
    touch(trigger)
    time.sleep(0.2)
    assert len(demanded(tmp_path / "one")) == 1


# --- what becomes of the files --------------------------------------------------------------------


@pytest.mark.parametrize("output", ["out", "out/x.pickle"])
def test_keep_last(tmp_path: Path, output: str) -> None:
    # GIVEN a tracer that keeps two
    told: list[str] = []
    tracer = Tracer(
        tmp_path / output, device="cpu", dump_signal=SIGNAL, keep_last=2, on_snapshot=told.append
    )
    with tracer:
        # WHEN five are written
        for number in range(5):
            send()
            wait_until(lambda number=number: len(told) > number)
        # THEN the last two are there, and nothing of the others
        found = demanded(tmp_path / "out")
        assert [str(path) for path in found] == told[3:]
        assert len(list((tmp_path / "out").iterdir())) == 2


def test_on_snapshot(tmp_path: Path) -> None:
    # GIVEN a function that looks at each file and stops the tracer at the second
    told: list[tuple[str, bool]] = []

    def look(path: str) -> None:
        told.append((path, bool(load(Path(path)))))
        if len(told) == 2:
            tracer.stop()

    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL, on_snapshot=look)
    tracer.start()
    # WHEN the signal comes, THEN it is called with the file; it may stop the tracer too
    for number in (1, 2):
        send()
        wait_until(lambda number=number: len(told) == number)
    assert told == [(str(path), True) for path in demanded(tmp_path)]
    wait_until(lambda: threads() == [])
    assert not tracer.stats()["recording"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_on_snapshot_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    # GIVEN a function of the user's that fails, or wants to end the process
    def fail(path: str) -> None:
        raise error("bad")

    tracer = Tracer(
        tmp_path / "x.pickle", device="cpu", dump_signal=SIGNAL, on_snapshot=fail, keep_last=1
    )
    with tracer, caplog.at_level(logging.WARNING, "pytracer"):
        # WHEN the signal comes, twice, THEN that is counted and said, and the files are there
        for number in (1, 2):
            send()
            wait_until(lambda number=number: tracer.stats()["failures"] == number)
            (path,) = demanded(tmp_path)
            assert path.exists()
        assert caplog.text.count(f"on_snapshot failed: {error('bad')!r}") == 1


# --- threads and processes ------------------------------------------------------------------------


def test_there_is_no_thread_for_nothing(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN a tracer without a signal and a file, and one that has nowhere to write
    with Tracer(tmp_path, device="cpu"), Tracer(device="cpu", dump_signal=SIGNAL):
        # THEN there is no thread, and the signal is the user's
        assert threads() == []
        send()
        assert handler == [SIGNAL]
    # GIVEN one that watches; WHEN it starts and stops, THEN so does the thread
    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL)
    for _ in range(3):
        tracer.start()
        assert len(threads()) == 1
        tracer.stop()
        assert threads() == []


def test_tracers_that_come_and_go_on_many_threads(tmp_path: Path) -> None:
    # GIVEN threads that start and stop tracers, and signals all the while
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
    # WHEN they all run
    for thread in [sender, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    sender.join()
    # THEN nothing is left of it but whole files
    assert threads() == []
    assert action() == signal.SIG_IGN
    signal.signal(SIGNAL, ignored)
    assert len([path for path in tmp_path.iterdir() if "demand" not in path.name]) == 80
    for path in tmp_path.iterdir():
        pickle.loads(path.read_bytes())


def test_forked_children(tmp_path: Path) -> None:
    # GIVEN a traced program that forks
    program = """
import os, pathlib, signal, sys, time
import torch
from pytracer import Tracer

def wait_for(pattern):
    deadline = time.monotonic() + 30
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
    # WHEN the signal comes to a child that is not traced, THEN it does no harm
    for _ in range(10):
        send()
    tracer.stop()
    send()

def traced():
    # WHEN the child has a tracer of its own, THEN that one writes
    with Tracer("child.pickle", device="cpu", dump_signal="USR2"):
        send()
        wait_for("child.demand-*")

with Tracer("parent.pickle", device="cpu", dump_signal="USR2") as tracer:
    fork(untraced)
    fork(traced)
    time.sleep(0.3)
    # THEN the parent has written nothing, and still watches
    assert not list(pathlib.Path().glob("parent.demand-*"))
    send()
    wait_for("parent.demand-*")
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = sorted(path.name.split("-")[0] for path in tmp_path.glob("*.pickle"))
    assert names == ["child.demand", "child.pickle", "parent.demand", "parent.pickle"]


@pytest.mark.slow
def test_signals_while_the_process_ends(tmp_path: Path) -> None:
    # GIVEN a program that ignores the signal but for a tracer, and does not stop it
    program = """
import atexit, signal
import torch
from pytracer import Tracer

signal.signal(signal.SIGUSR2, signal.SIG_IGN)
late = Tracer("late.pickle", device="cpu", dump_signal="USR2")
atexit.register(late.start)  # our own exit callback has run then
Tracer("x.pickle", device="cpu", dump_signal="USR2", keep_last=3).start()
kept = [torch.empty(n + 1) for n in range(2000)]
print("recording", flush=True)
input()
"""
    for _ in range(5):
        with start(program, cwd=tmp_path) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "recording\n"
            # WHEN it ends under a hail of signals
            send(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            while process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    send(process.pid)
                time.sleep(0.0005)
            assert process.stderr is not None
            said = process.stderr.read()
        # THEN it ends as it would, and what it held is written
        said = re.sub(r"pytracer: no snapshots on demand: can't .* thread.*\n", "", said)
        assert (process.returncode, said) == (0, "")
        assert len(load(tmp_path / "x.pickle")["segments"]) == 2000
        (tmp_path / "x.pickle").unlink()
    for path in demanded(tmp_path):
        assert sys.getsizeof(load(path))
