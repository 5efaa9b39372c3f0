"""Reports on what can be recorded here, and on what is missing where something cannot.

Nothing in this module raises, builds a hook or records. It looks hooks up, and tries what it finds
in a child process.
"""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pytracer.backends import devices
from pytracer.backends.hook_attach import HOOKS, Hooks
from pytracer.backends.names import ACCELERATORS, AUTOGRAD, HOST, LIBRARIES
from pytracer.backends.running_torch import built_backends
from pytracer.errors import HookError

_OPTIONS = {AUTOGRAD: " with forward_stacks=True", HOST: " with pinned_memory=True"}


@dataclass(frozen=True)
class BackendReport:
    """Whether one allocator can be recorded."""

    backend: str  # one of `LIBRARIES`
    available: bool  # the hook exists and works, or can be built when it is needed
    torch: str | None  # the version for which the hook is built; None without torch
    hook: str | None  # the file; None: there is none for this torch yet
    folder: str | None  # the name of the folder that has the hook
    message: str  # what happens next, or what is missing and what to do about it


@dataclass(frozen=True)
class InterpreterReport:
    """Whether Python call stacks can be recorded."""

    python: str  # the implementation and its version
    executable: str
    stacks: bool
    message: str  # why events have no call stacks, and what to do about it; or empty


@dataclass(frozen=True)
class Examination:
    """What the doctor found; recording works without `autograd` and `host`."""

    requested: tuple[str, ...]  # of `LIBRARIES`
    interpreter: InterpreterReport
    backends: tuple[BackendReport, ...]  # all that pytracer knows
    autograd: BackendReport
    host: BackendReport
    ready_hooks: dict[str, list[str]]  # the releases that have ready hooks, by backend

    @property
    def problems(self) -> list[str]:
        """Why something requested cannot be recorded; empty if all of it can."""
        reports = {each.backend: each for each in (*self.backends, self.autograd, self.host)}
        lacking = [name for name in self.requested if not reports[name].available]
        problems = [f"{name}: {reports[name].message}" for name in lacking]
        if not self.interpreter.stacks:
            problems.append(f"call stacks: {self.interpreter.message}")
        return problems


def examine(requested: Sequence[str] = (), hooks: Hooks = HOOKS) -> Examination:
    """Examine this installation. It takes seconds, because torch is imported twice.

    Without `requested`, the accelerator that torch finds should be recorded, or else the CPU.
    """
    *backends, autograd, host = _examine_libraries(hooks)
    return Examination(
        requested=tuple(dict.fromkeys(requested)) or (_present_backend(),),
        interpreter=_examine_interpreter(hooks),
        backends=tuple(backends),
        autograd=autograd,
        host=host,
        ready_hooks={name: hooks.builder.ready.releases(name) for name in LIBRARIES},
    )


def _present_backend() -> str:
    try:
        return devices.present_accelerator() or "cpu"
    except Exception:  # without a torch that works, the reports say so
        return "cpu"


def _examine_libraries(hooks: Hooks) -> tuple[BackendReport, ...]:
    try:
        torch = hooks.builder.compiler.torch().version
        hooks.load_core()
    except HookError as error:
        return tuple(BackendReport(name, False, None, None, None, str(error)) for name in LIBRARIES)
    return tuple(_examine_library(name, torch, hooks) for name in LIBRARIES)


def _examine_interpreter(hooks: Hooks) -> InterpreterReport:
    try:
        problem = hooks.load_core().frame_walk_problem() or ""
    except HookError as error:
        problem = str(error)
    except Exception as error:
        problem = _failed(error)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return InterpreterReport(python, sys.executable or "", not problem, problem)


def _examine_library(backend: str, torch: str, hooks: Hooks) -> BackendReport:
    builder = hooks.builder
    found = None
    available = False
    try:
        if backend in ACCELERATORS:
            devices.indices(backend, None)
        elif backend == HOST:
            if "cuda" not in built_backends():
                raise HookError("pinned memory is recorded only with CUDA; not needed otherwise")
            devices.indices("cuda", None)
        if found := builder.find(backend):
            builder.probe(backend, found.path)
            message = "ready"
        else:
            command = " ".join(builder.compiler_for(backend))
            directory = builder.folders.destination().directory
            first = f"the first tracer{_OPTIONS.get(backend, '')}"
            message = f"not built yet: {first} compiles it with {command} into {directory}"
        available = True
    except HookError as error:
        message = str(error)
    except Exception as error:
        message = _failed(error)
    path, folder = (os.fspath(found.path), found.folder) if found else (None, None)
    return BackendReport(backend, available, torch, path, folder, message)


def _failed(error: Exception) -> str:
    return f"the examination itself failed: {error!r}; please report this"
