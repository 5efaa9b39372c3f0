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
    """Whether one allocator can be recorded.

    Attributes:
        backend: "cpu", "cuda" or "npu"; "autograd" for the library for forward stacks; "host" for
            pinned host memory.
        available: Whether a tracer can record the allocator: the hook exists and works, or can be
            built when it is needed.
        torch: The version of the running torch, for which the hook is built; None without torch.
        hook: The hook's file; None if there is no hook for this torch yet.
        folder: The name of the folder that has the hook; None without a hook.
        message: What happens next, or what is missing and what to do about it.
    """

    backend: str
    available: bool
    torch: str | None
    hook: str | None
    folder: str | None
    message: str


@dataclass(frozen=True)
class InterpreterReport:
    """Whether Python call stacks can be recorded.

    Attributes:
        python: The implementation and version of Python.
        executable: The interpreter's path.
        stacks: Whether events have call stacks.
        message: Why events have no call stacks, and what to do about it; empty if they have them.
    """

    python: str
    executable: str
    stacks: bool
    message: str


@dataclass(frozen=True)
class Examination:
    """What the doctor found.

    Attributes:
        requested: The backends that should be recorded, and "autograd" or "host" if requested.
        interpreter: The report on call stacks.
        backends: A report on each backend that pytracer knows, requested or not.
        autograd: The report on the library for forward stacks. Recording works without it.
        host: The report on pinned host memory. Recording works without it.
        ready_hooks: The versions of torch, and for "npu" of torch_npu, for which this package has
            prebuilt hooks, by backend. Other versions need a C++ compiler.
    """

    requested: tuple[str, ...]
    interpreter: InterpreterReport
    backends: tuple[BackendReport, ...]
    autograd: BackendReport
    host: BackendReport
    ready_hooks: dict[str, list[str]]

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

    Args:
        requested: What should be recorded, of `LIBRARIES`; empty: the accelerator that torch finds,
            or else the CPU.
        hooks: How hooks are found and attached.
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
                raise HookError("pinned memory is recorded only with CUDA; without it, ignore this")
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
    return f"the check itself failed: {error!r}; please report this"
