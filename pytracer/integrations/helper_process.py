"""A child process of the job that works on snapshots, such as uploads them, one after another.

`send("pytracer.integrations.fsspec", path, url="s3://...")` in the job, which does not wait, has
`pytracer.integrations.fsspec.work(path, url="s3://...")` called in the child, which survives a job
that is killed. docs/explanation/processes.md has the reasons. Each process of the job has at most
one child. The requests wait in a pipe (64 KiB), and one that finds the pipe full is refused.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

from pytracer.child_process import python_command
from pytracer.errors import PytracerError
from pytracer.log import print_line, warn_once

END_SECONDS = 60.0  # how long the end of the job waits for the helper process

_lock = threading.RLock()
_helper: "subprocess.Popen[bytes] | None" = None
_has_exit_handler = False


def remote_name(path: str) -> str:
    """Return the path in the working directory, or else the absolute path without its first `/`.

    Names in pytracer's folders differ between ranks and processes, so files do not meet.
    """
    absolute = Path(os.path.abspath(path))
    folder = Path.cwd()
    inside = absolute.relative_to(folder if absolute.is_relative_to(folder) else absolute.anchor)
    return inside.as_posix()


def send(module: str, path: str, **arguments: str) -> None:
    """Have `module.work(path, **arguments)` called in the helper process.

    At the end of the process, when nothing runs any more, wait for it, at most `END_SECONDS`.

    Raises:
        PytracerError: Too much waits for the helper process, or it cannot be started.
    """
    request = json.dumps({"module": module, "path": os.path.abspath(path), "arguments": arguments})
    line = request.encode() + b"\n"
    if len(line) > select.PIPE_BUF:  # would not be written in one piece
        raise PytracerError(f"the path and the arguments are too long for a pipe: {path}")
    with _lock:
        for is_last_try in (False, True):
            try:
                os.write(_input_of_helper(), line)
                break
            except BrokenPipeError as error:  # someone has killed the process
                _forget()
                if is_last_try:
                    raise PytracerError("the helper process ends at once") from error
            except BlockingIOError as error:
                raise PytracerError(
                    f"too many snapshots wait for the helper process, so {path} is left out. "
                    "Write fewer snapshots, or find out why the uploads are slow"
                ) from error
    if not threading.main_thread().is_alive():  # `atexit` runs, and may have called `finish` before
        finish()


def _input_of_helper() -> int:
    """Return the pipe to the helper process; start the process if there is none."""
    global _helper, _has_exit_handler
    if _helper is None:
        _helper = subprocess.Popen(
            python_command(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTRACER": "0"},
            start_new_session=True,  # Ctrl-C ends the job, not the upload of its snapshot
        )
        assert _helper.stdin is not None
        os.set_blocking(_helper.stdin.fileno(), False)
        if not _has_exit_handler:
            _has_exit_handler = True
            atexit.register(finish)
    assert _helper.stdin is not None
    return _helper.stdin.fileno()


def _forget() -> None:
    """Close this process's end of the pipe, without waiting for the helper process."""
    global _helper
    if _helper is not None and _helper.stdin is not None:
        with contextlib.suppress(OSError):
            _helper.stdin.close()
        _helper.returncode = 0  # not waited for here; or `subprocess` would warn
    _helper = None


def finish(timeout_s: float = END_SECONDS) -> None:
    """Wait until the helper process has done everything, at most so long. Never raises."""
    global _helper
    with _lock:
        helper, _helper = _helper, None
    if helper is None or helper.stdin is None:
        return
    with contextlib.suppress(OSError):
        # A forked child may hold the pipe open, so that closing it is not enough.
        os.write(helper.stdin.fileno(), b"\n")
    with contextlib.suppress(OSError):
        helper.stdin.close()
    try:
        helper.wait(timeout_s)
    except subprocess.TimeoutExpired:
        helper.returncode = 0  # it continues
        warn_once(
            f"after {timeout_s:.0f} s, snapshots are still being uploaded or logged by process "
            f"{helper.pid}. The job ends, and process {helper.pid} continues"
        )


def _after_fork() -> None:
    """Forget the parent's helper process. Another thread may have held the lock."""
    global _lock, _has_exit_handler
    _lock = threading.RLock()
    _has_exit_handler = False
    _forget()


os.register_at_fork(after_in_child=_after_fork)


def main() -> None:
    """Be the helper process: work on the requests until an empty line, or the end of the input.

    The first failure is printed at once, and their number at the end.
    """
    tried, failed = 0, 0
    for line in sys.stdin.buffer:
        if not line.strip():
            break
        request = json.loads(line)
        tried += 1
        try:
            module = importlib.import_module(request["module"])
            module.work(request["path"], **request["arguments"])
        except Exception as error:
            failed += 1
            if failed == 1:
                print_line(
                    f"pytracer: {request['module']} failed for {request['path']}: {error!r}. The "
                    "file stays, and the job continues. Further failures are only counted"
                )
    if failed > 1:
        print_line(f"pytracer: {failed} of {tried} snapshots were not uploaded or logged")


if __name__ == "__main__":
    main()
