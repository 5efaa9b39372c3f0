"""Does a signal lead to a snapshot, whatever the program does with signals?"""

import logging
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from demands import SIGNAL, action, on_demand_files, send, threads, wait_for, wait_until
from files_left import live_sizes, load
from processes import start, without_end_line

from pytracer import Tracer
from pytracer.tracing import on_demand

pytestmark = pytest.mark.usefixtures("handler", "short_intervals")


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


def test_a_signal_to_a_tracer_that_cannot_write(tmp_path: Path) -> None:
    # GIVEN tracers with a signal, without an output or without a device to record
    for options in ({}, {"output": tmp_path, "device": "npu"}):
        signal.signal(SIGNAL, signal.SIG_DFL)
        with Tracer(dump_signal=SIGNAL, **{"device": "cpu", **options}):  # type: ignore[arg-type]
            # WHEN the signal comes, THEN the program continues
            send()
    assert on_demand_files(tmp_path) == []


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
