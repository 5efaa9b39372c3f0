"""Demands for snapshots of a running program, and the files that they lead to."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

SIGNAL = signal.SIGUSR2


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


def action() -> int:
    """Return the system's handler of the signal; Python's functions return what they last set."""
    # The handler is the first field of `struct sigaction`.
    now = (ctypes.c_uint64 * 32)()
    assert ctypes.CDLL(None).sigaction(int(SIGNAL), None, now) == 0
    return now[0]
