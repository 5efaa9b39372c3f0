"""Programs in processes of their own: how Python is started, what it said, and its end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytracer.reading.text import printable

PATIENCE_S = 15.0
"""How long a program may take to end, and to write its snapshot, once it is interrupted."""

_POLL_S = 0.05
_MOMENT_S = 2.0


def python_command(module: str, *arguments: str) -> list[str]:
    """What runs a module of ours as a program, with the places for imports that are ours.

    `python -m` would look into the working directory first, where anything may be.
    """
    start = f"import runpy, sys; sys.path[:] = {sys.path!r}; "
    start += f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", start, *arguments]


_EXCEPTION = re.compile(r"(?:\[\w+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception): .+)")
"""Launchers and torch_npu say more after it; torch says the rank before."""

_MAX_LINE = 200


def last_exception(text: str) -> str:
    """What a program said of its failure: its last exception, or else its last line."""
    said = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    exceptions = [match[1] for match in map(_EXCEPTION.match, said) if match]
    told = exceptions or said or ["it said nothing"]
    return printable(told[-1][:_MAX_LINE])


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> tuple[int, float]:
    """Runs a program; it prints into `log` and reads nothing.

    What it leaves in its process group is killed, for it would hold memory of the device. An
    exception here (Ctrl-C) interrupts it first, and gives it `PATIENCE_S`; a second one kills it.

    Returns:
        Its exit code, as `subprocess` has it, and how many seconds it took.

    Raises:
        OSError: It cannot be started.
    """
    with open(log, "wb") as file:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process.pid)
        took_s = time.monotonic() - began
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        _wait(process.pid, PATIENCE_S)
        raise
    finally:
        _kill(process.pid)
        process.wait()
        _await_end(process.pid)
    return process.returncode, took_s


def _wait(pid: int, patience_s: float | None = None) -> None:
    """Until it has ended, or patience has; it is not reaped, so that its number stays its own."""
    if patience_s is None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    """A process, its group, and what they started in other groups, as torchrun does its workers."""
    others = _descendants(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for other in others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)


def _await_end(group: int) -> None:
    """Until all that was killed has given back its memory of the device, which takes a moment."""
    end = time.monotonic() + _MOMENT_S
    while time.monotonic() < end and any(each.group == group for each in _processes()):
        time.sleep(_POLL_S)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for each in _processes():
        children[each.parent].append(each.pid)
    found = [pid]
    for parent in found:
        found += children[parent]
    return found[1:]


class _Process(NamedTuple):
    pid: int
    parent: int
    group: int


def _processes() -> Iterator[_Process]:
    """All that are not over."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is over by now
            state, parent, group = stat.read_bytes().rpartition(b")")[2].split()[:3]
            if state not in (b"Z", b"X"):
                yield _Process(int(stat.parent.name), int(parent), int(group))
