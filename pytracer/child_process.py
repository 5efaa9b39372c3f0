"""Programs in child processes: how Python is started, why it failed, and how it is ended.

Processes are read from `/proc`: `psutil` would be a dependency more and save few lines.
"""

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytracer.text import END_LINE, printable

PATIENCE_S = 15.0  # how long an interrupted program may take to write its snapshot and end
_POLL_S = 0.05
_KILLED_S = 2.0


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of pytracer as a program, with this process's imports.

    `python -m` would import from the working directory first, which may have any file.
    """
    start = f"import runpy, sys; sys.path[:] = {sys.path!r}; "
    start += f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", start, *arguments]


_WATCHED = """
is_child() {
  while read -r key value; do
    if [ "$key" = PPid: ]; then [ "$value" = "$1" ]; return; fi
  done < /proc/$$/status
}
parent=$1
shift
if is_child "$parent"; then
  while sleep 1; do is_child "$parent" || kill -KILL 0; done </dev/null >/dev/null 2>&1 &
fi
exec "$@"
"""
"""A shell that becomes the program. Its process group is killed when the program has ended, or has
another parent because its own one has ended. `PR_SET_PDEATHSIG` would end the program alone, and
not what it has started: a compiler consists of several processes."""


def run_captured(
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str],
    directory: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its output. It reads nothing.

    The program and what it has started end with this process, whatever ends this process. If it
    takes too long, it is killed, and a `TimeoutExpired` is raised.
    """
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    shell = shutil.which("sh")
    watched = [shell, "-c", _WATCHED, "sh", str(os.getpid())] if shell else []
    with subprocess.Popen(
        [*watched, *command],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired(list(command), timeout_s) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)


_RANK = r"(?:\[\w+\]:\s*)?"  # torch writes it before the line of an exception
_EXCEPTION = re.compile(_RANK + r"((?:\w+\.)*\w*(?:Error|Exception): .+)")
# A tracer's line about its file also follows the message of a program that failed.
_END_LINE = re.compile(_RANK + re.escape(END_LINE))
_MAX_LINE = 200
_LOG_TAIL_BYTES = 2**16


def last_exception(text: str) -> str:
    """Return a failed program's last exception from its output, or else its own last line."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    lines = [line for line in lines if not _END_LINE.match(line)]
    exceptions = [match[1] for match in map(_EXCEPTION.match, lines) if match]
    candidates = exceptions or lines or ["it wrote no message"]
    return printable(candidates[-1][:_MAX_LINE])


def last_exception_in(log: Path) -> str:
    """Return the last exception that a program printed into a file, or else its last line."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return last_exception(file.read().decode("utf-8", "replace"))


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path | None,
    timeout_s: float | None = None,
) -> tuple[int, float]:
    """Run a program to its end. It reads nothing.

    It prints into `log`; None: to where this process prints.

    Processes that the program leaves behind in its process group are killed, because they would
    hold memory of the device. An exception here (Ctrl-C) interrupts the program and gives it
    `PATIENCE_S` to end. A second exception kills it.

    Returns:
        The exit code, as `subprocess` reports it, and how many seconds the program took.

    Raises:
        TimeoutExpired: It took longer than `timeout_s`, and was interrupted.
    """
    output = contextlib.nullcontext() if log is None else open(log, "wb")  # noqa: SIM115
    with output as file, _children_heed_interrupts():
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=None if log is None else subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if not _wait(process.pid, timeout_s):
            raise subprocess.TimeoutExpired(list(command), timeout_s or 0)
        took_s = time.monotonic() - began
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        _wait(process.pid, PATIENCE_S)
        raise
    finally:
        # Descendants may be in other groups, such as torchrun's workers.
        descendants = _descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for descendant in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)
        process.wait()
        # The killed processes return their memory of the device.
        end = time.monotonic() + _KILLED_S
        while time.monotonic() < end and any(group == process.pid for *_, group in _processes()):
            time.sleep(_POLL_S)
    return process.returncode, took_s


@contextlib.contextmanager
def _children_heed_interrupts() -> Iterator[None]:
    """Start processes with SIGINT's default action, even where this process ignores SIGINT.

    A shell makes background jobs ignore Ctrl-C, and processes inherit that. `run_to_end` starts a
    session that no terminal reaches, and needs SIGINT to end it with a snapshot.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)  # ignores too, and is not inherited
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait(pid: int, timeout_s: float | None = None) -> bool:
    """Wait until a child has ended, at most for `timeout_s`; return whether it has.

    The child is not reaped, so that no other process gets its process id.
    """
    options = os.WEXITED | os.WNOWAIT | (0 if timeout_s is None else os.WNOHANG)
    end = time.monotonic() + (timeout_s or 0)
    while not (has_ended := os.waitid(os.P_PID, pid, options)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return has_ended is not None


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent, _ in _processes():
        children[parent].append(child)
    found = [pid]
    for parent in found:
        found += children[parent]
    return found[1:]


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield the id, the parent and the group of each process that has not ended.

    Zombies, which a container's first process may never reap, must not be waited for.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            state, parent, group = stat.read_bytes().rpartition(b")")[2].split()[:3]
            if state not in (b"Z", b"X"):
                yield int(stat.parent.name), int(parent), int(group)
