"""Run programs in forks of one process that has imported torch, which takes 1.5 to 2 seconds.

A program has a process of its own, `__main__`, and no object of another program. It differs from a
program in a new process in four ways: torch was imported, and pytracer started, before its first
line; the outermost frame of its main thread is this module's; the memory that torch's import took
is shared; and the process ends after the exit callbacks, because the interpreter takes a second to
free all that torch has imported. What depends on the last one asks for it (`is_finalised`); what
depends on another one needs a new process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from typing import Any

FDS = 3  # standard input, output and error


class WarmPython:
    """The process that is forked for each program."""

    def __init__(self, env: dict[str, str]) -> None:
        """Start the process, with this environment; it imports torch in the meantime."""
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore::DeprecationWarning", __file__, str(other.fileno())],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        self._replies = self._socket.makefile("r")

    def run(
        self,
        arguments: list[str],
        cwd: str,
        changes: dict[str, str | None],
        timeout: float,
        is_finalised: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, and return what it wrote.

        Args:
            arguments: Python's arguments: a script, `-c` and code, or `-m` and a module, and the
                program's arguments.
            cwd: The program's folder.
            changes: Variables that are set, or, if None, removed.
            timeout: The seconds after which the program is killed.
            is_finalised: Whether the interpreter is finalised at the program's end.

        Raises:
            TimeoutExpired: The program was killed.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            message = json.dumps(
                {
                    "arguments": arguments,
                    "cwd": cwd,
                    "changes": changes,
                    "is_finalised": is_finalised,
                }
            )
            with open(os.devnull) as nothing:
                files = [nothing.fileno(), out.fileno(), err.fileno()]
                socket.send_fds(self._socket, [message.encode()], files)
            pid = int(self._replies.readline())
            self._socket.settimeout(timeout)
            try:
                status = int(self._replies.readline())
            except TimeoutError as error:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout) from error
            finally:
                self._socket.settimeout(None)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(
            arguments, os.waitstatus_to_exitcode(status), texts[0], texts[1]
        )

    def end(self) -> None:
        """End the process."""
        self._replies.close()
        self._socket.close()
        self._process.wait()


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request; return the request in the child, and leave the parent at the end."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1 << 20, FDS)
        if not message:
            sys.exit()
        request: dict[str, Any] = json.loads(message)
        child = os.fork()
        if child == 0:
            connection.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return request
        for file in files:
            os.close(file)
        connection.sendall(f"{child}\n".encode())
        connection.sendall(f"{os.waitpid(child, 0)[1]}\n".encode())


def prepare(request: dict[str, Any]) -> types.CodeType | str:
    """Make this process the program's; return the code of the program, or its module's name."""
    os.chdir(request["cwd"])
    for name, value in request["changes"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "SIMULATED_CAPACITY_MB" in request["changes"]:  # was read with torch's import
        import simulated

        simulated.set_capacity(int(os.environ.get("SIMULATED_CAPACITY_MB", 16384)) << 20)
    first, *rest = request["arguments"]
    folder, file = "", None
    if first in ("-c", "-m"):
        target, *rest = rest
        code = target if first == "-m" else compile(target, "<string>", "exec")
        sys.argv = [first, *rest]
    else:
        folder, file = os.path.dirname(os.path.abspath(first)), first
        with open(first, "rb") as source:
            code = compile(source.read(), first, "exec")
        sys.argv = [first, *rest]
    sys.path[0] = folder
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins)
    if file is not None:
        vars(main).update(__file__=file)
    sys.modules["__main__"] = main
    if any(name.startswith("PYTRACER") for name in request["changes"]):
        import _torch_pytracer

        _torch_pytracer.autoload()  # as at the end of torch's import
    return code


def run_program(code: types.CodeType | str) -> None:
    """Run the code of a program, or a module."""
    if isinstance(code, str):
        import runpy

        runpy.run_module(code, run_name="__main__", alter_sys=True)
    else:
        exec(code, vars(sys.modules["__main__"]))


def run_and_leave(code: types.CodeType | str) -> None:
    """Run a program, and end the process as the interpreter does, but for its finalisation."""
    status, is_interrupted = 0, False
    try:
        run_program(code)
    except SystemExit as end:
        if isinstance(end.code, int):
            status = end.code & 0xFF
        elif end.code is not None:
            print(end.code, file=sys.stderr)
            status = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status, is_interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the other threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


if __name__ == "__main__":
    # The first step of an optimizer imports _dynamo, in 3 seconds.
    import torch._dynamo  # noqa: F401

    # As a command does, in half a second.
    import pytracer.commands.show_answer  # noqa: F401

    with contextlib.suppress(ImportError):
        import torch_npu  # noqa: F401
    REQUEST = serve(socket.socket(fileno=int(sys.argv[1])))
    (run_program if REQUEST["is_finalised"] else run_and_leave)(prepare(REQUEST))
