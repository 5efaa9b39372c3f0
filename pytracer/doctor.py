"""What can be recorded here, and what is missing where something cannot.

Nothing in this module raises, builds a hook or records: it looks, and tries what it finds in a
child process.
"""

import os
import platform
import sys
from dataclasses import dataclass

from pytracer import devices, hooks
from pytracer.errors import HookError
from pytracer.hook_compile import find_compiler, running_torch
from pytracer.hook_places import destination


@dataclass(frozen=True)
class BackendReport:
    """Whether one allocator can be recorded.

    Attributes:
        backend: "cpu", "cuda" or "npu".
        available: A tracer can record it: its hook is there and works, or can be built when needed.
        torch: The version of the running torch, which is the one the hook is built for; None if
            there is none.
        hook: The hook's file; None if there is none for this torch yet.
        place: Which of the places of the lookup had it.
        message: What happens next, or what is missing and what to do about it.
    """

    backend: str
    available: bool
    torch: str | None
    hook: str | None
    place: str | None
    message: str


@dataclass(frozen=True)
class InterpreterReport:
    """Whether the Python call stacks can be recorded.

    Attributes:
        python: Implementation and version.
        executable: Its path.
        stacks: Events will carry call stacks.
        message: Why not, and what to do about it; empty if they will.
    """

    python: str
    executable: str
    stacks: bool
    message: str


def examine() -> list[BackendReport]:
    """Examines every backend pytracer knows of; takes seconds, as torch is imported twice."""
    try:
        torch = running_torch().version
        hooks.load_core()
    except HookError as error:
        return [_unavailable(backend, None, str(error)) for backend in hooks.BACKENDS]
    return [_examine(backend, torch) for backend in hooks.BACKENDS]


def examine_interpreter() -> InterpreterReport:
    """Examines whether this interpreter's frames can be walked."""
    try:
        problem = hooks.load_core().frame_walk_problem() or ""
    except HookError as error:
        problem = str(error)
    except Exception as error:
        problem = _failed(error)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return InterpreterReport(python, sys.executable or "", not problem, problem)


def _examine(backend: str, torch: str) -> BackendReport:
    found = None
    try:
        if backend in devices.ACCELERATORS:
            devices.indices(backend, None)
        found = hooks.find(backend)
        if found is None:
            command, folder = " ".join(find_compiler()), destination().directory
            message = f"not built yet: the first tracer compiles it with {command} into {folder}"
            return BackendReport(backend, True, torch, None, None, message)
        hooks.probe(backend, found.path)
    except HookError as error:
        return _unavailable(backend, torch, str(error), found)
    except Exception as error:
        return _unavailable(backend, torch, _failed(error), found)
    return BackendReport(backend, True, torch, os.fspath(found.path), found.place, "ready")


def _unavailable(
    backend: str, torch: str | None, message: str, found: hooks.Found | None = None
) -> BackendReport:
    path, place = (os.fspath(found.path), found.place) if found else (None, None)
    return BackendReport(backend, False, torch, path, place, message)


def _failed(error: Exception) -> str:
    return f"the examination itself failed: {error!r}; please report this"
