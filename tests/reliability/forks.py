"""Jobs in forked children of an attack that has imported torch: much faster than new processes."""

import atexit
import contextlib
import os
import pickle
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cases
import torch

TEMPORARY = re.compile(r"\.pytracer-\d+-\w+\.tmp")
SMALL_BYTES = 4


@dataclass
class Ended:
    """A job, and its result once it has ended."""

    pid: int
    # The exit status, or minus the number of the signal; None if the job took too long and was
    # killed.
    status: int | None = None
    output: str = ""  # standard output and standard error

    def is_running(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


@contextlib.contextmanager
def forked(job: Callable[[], None], limit_seconds: float = 120.0) -> Iterator[Ended]:
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
        ended = Ended(child)
        try:
            yield ended
        finally:
            ended.status = cases.wait(child, limit_seconds)
            if ended.status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            output.seek(0)
            ended.output = output.read().decode(errors="replace")


def run(job: Callable[[], None], limit_seconds: float = 120.0) -> Ended:
    """Run a job to its end."""
    with forked(job, limit_seconds) as ended:
        pass
    return ended


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
