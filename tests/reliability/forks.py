"""Jobs in forked children of an attack that has imported torch: much faster than new processes."""

import atexit
import contextlib
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from processes import without_end_line

TEMPORARY = re.compile(r"\.pytracer-\d+-\w+\.tmp")
SMALL_BYTES = 4


@dataclass
class Ended:
    """The result of a job."""

    # The exit status, or minus the number of the signal; None if the job took too long and was
    # killed.
    status: int | None
    output: str  # standard output and standard error

    @property
    def lines(self) -> list[str]:
        """Return pytracer's log lines, without the line that names the file written at the end."""
        lines = without_end_line(self.output + "\n").splitlines()
        return [line for line in lines if "pytracer" in line]


@contextlib.contextmanager
def forked(job: Callable[[], None], limit_seconds: float = 120.0) -> Iterator["Job"]:
    """Start a job in a child; at the end of the block, wait for the child.

    Exit handlers that the child registers run at its end, as in a program. The parent's handlers
    do not run in the child.
    """
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _live(job, output.fileno())
        started = Job(child, time.monotonic() + limit_seconds)
        try:
            yield started
        finally:
            status = started.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
            started.ended = Ended(status, text)


class Job:
    """A running job and its result."""

    def __init__(self, pid: int, deadline: float) -> None:
        self.pid = pid
        self.ended = Ended(None, "")
        self._deadline = deadline
        self._status: int | None = None

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def running(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is None and time.monotonic() < self._deadline

    def wait(self) -> int | None:
        while self.running():
            time.sleep(0.002)
        if self._status is None:
            self.kill()
            os.waitpid(self.pid, 0)
        return self._status


def run(job: Callable[[], None], limit_seconds: float = 120.0) -> Ended:
    """Run a job to its end."""
    with forked(job, limit_seconds) as started:
        pass
    return started.ended


def _live(job: Callable[[], None], output: int) -> None:
    """Run the job in the child; this function does not return."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        atexit._clear()
        job()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def allocate(count: int) -> list[torch.Tensor]:
    """Allocate small blocks that stay alive: each adds some hundred bytes to a snapshot."""
    return [torch.empty(SMALL_BYTES, dtype=torch.uint8) for _ in range(count)]


def problem_of(path: Path) -> str | None:
    """Return the problem of a file with a snapshot's name, or None if it can be read to its end."""
    try:
        with path.open("rb") as file:
            content = pickle.load(file)
            rest = file.read()
    except Exception as error:
        return f"{path.name}: {type(error).__name__}: {error}"
    if rest or not isinstance(content, dict) or "device_traces" not in content:
        return f"{path.name} has {len(rest)} bytes behind its end, or is no snapshot"
    # The trace alone determines the live blocks: those that it allocates and does not free.
    alive: set[int] = set()
    for trace in content["device_traces"]:
        for event in trace:
            if event["action"] == "alloc":
                alive.add(event["addr"])
            elif event["action"] == "free_completed":
                alive.discard(event["addr"])
    there = {block["address"] for segment in content["segments"] for block in segment["blocks"]}
    older = bool(content["pytracer"]["window"]) or any(
        device["overwritten"] for device in content["pytracer"]["devices"]
    )
    if alive - there or (there - alive and not older):
        return f"{path.name}: {len(alive)} blocks are alive in the trace, {len(there)} in the state"
    return None


def files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files with a final name, and the temporary ones; no boxes."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".box")
    temporary = [path for path in found if TEMPORARY.fullmatch(path.name)]
    return [path for path in found if path not in temporary], temporary
