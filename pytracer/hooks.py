"""Finding, building and attaching the allocator hooks.

A hook is a small shared library compiled against the headers of the torch that is running, since
c10's C++ ABI changes between torch versions. Its file name carries a key made of everything it was
compiled from, so that a hook made for another torch is never found, let alone loaded.

`attach` looks in a few folders (`hook_places.places`), and where none has the hook it builds one:
one process of a node compiles (`hook_compile`), the others wait for it a bounded time. A fresh hook
is tried in a child process (`hook_probe`) before it gets its name. Whatever fails is a `HookError`
that says what is missing and what to do about it; the caller runs on untraced.
"""

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TextIO

from pytracer import devices, oom
from pytracer.devices import BACKENDS
from pytracer.errors import HookError
from pytracer.hook_compile import building_allowed, compile_hook, file_name, find_compiler, key
from pytracer.hook_places import PREBUILT_REMEDY, destination, places, private_place
from pytracer.notices import say_once

__all__ = ["BACKENDS", "Found", "attach", "build", "find", "key", "load_core", "probe"]

WAIT_SECONDS = 120.0  # for the process of this node that is building the same hook
PROBE_SECONDS = 120.0
REFUSED, NOT_TRIED = 3, 4  # exit codes of a probe: the hook says no; the device cannot be used

_ready: set[str] = set()  # attached
_queued: set[str] = set()  # to be, as soon as torch has initialised the device
_late_problems: dict[str, str] = {}  # by backend
_failures: dict[tuple[str, ...], str] = {}  # by what was tried: the next tracer need not try again


@dataclass(frozen=True)
class Found:
    """A hook that fits the running torch: its file, and the name of the place that had it."""

    backend: str
    path: Path
    place: str


def attach(backend: str) -> None:
    """Attaches the hook for `backend`, building it first if no place has it; idempotent.

    An accelerator that torch has not initialised yet is attached to when it is.

    Raises:
        HookError: The backend cannot be recorded here; the message says why and what to do.
    """
    if backend in _ready:
        return
    accelerators = {backend, *_ready, *_queued} & set(devices.ACCELERATORS)
    if len(accelerators) > 1:
        raise HookError(
            f"{' and '.join(sorted(accelerators))} in one process: pytracer records one kind of "
            "accelerator; trace the other in another process"
        )
    try:
        building_allowed()  # a mistake in PYTRACER_BUILD is told even where it does no harm
        found = find(backend) or _build_once(backend)
    except OSError as error:
        raise HookError(f"finding the hook for {backend!r} failed: {error}") from error
    if not _attach(found) and backend not in _queued:
        _queued.add(backend)
        devices.when_initialised(backend, functools.partial(_attach_late, found))


def _attach(found: Found) -> bool:
    """False: torch has not initialised the device yet."""
    if not load_core().attach_hook(str(found.path)):
        return False
    _ready.add(found.backend)
    _late_problems.pop(found.backend, None)
    oom.watch(found.backend)
    return True


def late_problem(backend: str) -> str | None:
    """Why the hook could not be attached once the device was initialised, after `attach`."""
    return _late_problems.get(backend)


def _attach_late(found: Found) -> None:
    """Runs in the middle of torch's initialisation, which must not fail because of us."""
    try:
        if not _attach(found):
            raise HookError(
                f"torch's own {found.backend.upper()} allocator is not in use, but another, a "
                "pluggable one perhaps; pytracer records no other: do without it"
            )
    except Exception as error:
        _late_problems[found.backend] = str(error)
        say_once(f"not recording {found.backend}: {error}")


def load_core() -> ModuleType:
    """Imports the C++ core, which the package can be looked at without.

    Raises:
        HookError: It is not there or does not load.
    """
    try:
        from pytracer import _core
    except ImportError as error:
        raise HookError(
            f"pytracer's core cannot be imported ({error}); install torch-pytracer again"
        ) from error
    core: ModuleType = _core
    return core


def find(backend: str) -> Found | None:
    """Looks the hook up; builds nothing and writes nothing.

    Raises:
        HookError: There is nothing to look for: no such hook, no torch, or no headers.
    """
    name = file_name(backend)
    for place in places():
        if place.holds(name):
            return Found(backend, place.directory / name, place.name)
    return None


def build(backend: str, directory: Path) -> Path:
    """Compiles and probes the hook; `directory` gets it whole or not at all.

    Raises:
        HookError: Compiling is forbidden, not possible or failed, or the hook failed its probe.
    """
    compiler = find_compiler()
    target = directory.absolute() / file_name(backend)
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".build-", dir=target.parent, ignore_cleanup_errors=True
        ) as scratch:
            fresh = Path(scratch) / target.name
            compile_hook(compiler, backend, fresh)
            if backend == "cpu" or devices.torch_module(backend).device_count() > 0:
                probe(backend, fresh)  # else an image is made where there is no device
            fresh.chmod(0o755)
            with fresh.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(fresh, target)
    except OSError as error:
        raise HookError(f"cannot write {target}: {error.strerror}; {PREBUILT_REMEDY}") from error
    return target


def probe(backend: str, path: Path) -> None:
    """Tries a hook in a child process: attach, allocate, free.

    Raises:
        HookError: The child died, failed or took too long; the message says which.
    """
    failed = f"the hook for {backend!r} is not used: its trial in a child process"
    command = [sys.executable or "python3", "-m", "pytracer.hook_probe", backend, str(path)]
    # The child imports what we would import, whatever folder we were started in.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    env["PYTRACER"] = "0"
    try:
        child = subprocess.run(
            command,
            timeout=PROBE_SECONDS,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HookError(
            f"{failed} took longer than {PROBE_SECONDS:g} s; {PREBUILT_REMEDY}"
        ) from error
    except OSError as error:
        raise HookError(f"{failed} could not start ({error}); {PREBUILT_REMEDY}") from error
    if child.returncode in (0, NOT_TRIED):
        return
    last = (child.stderr.strip().splitlines() or ["it wrote no message"])[-1]
    if child.returncode == REFUSED:
        raise HookError(last)
    how = f"exited with code {child.returncode}"
    if child.returncode < 0:
        how = f"died of {_signal_name(-child.returncode)}"
    raise HookError(f"{failed} {how} ({last}); report this, with what `pytracer doctor` prints")


def _build_once(backend: str) -> Found:
    attempt = (file_name(backend), *find_compiler())
    if attempt in _failures:
        raise HookError(_failures[attempt])
    try:
        return _build_in_turn(backend)
    except HookError as error:
        _failures[attempt] = str(error)
        raise


def _build_in_turn(backend: str) -> Found:
    """Builds where the hook can be kept: one process of a node does, the others wait for it.

    The lock is a file of this node, never one on a network file system. Who had to wait and finds
    no hook takes over the reason left in the file, so that a failure is not repeated by everyone.
    """
    private = private_place()
    lock = None
    if private.unwritable() is None:
        with contextlib.suppress(OSError):
            path = private.directory / f"{file_name(backend)}.lock"
            lock = path.open("a+", encoding="utf-8", errors="replace")
    if lock is None:  # then several may build at once: a waste, but all of them get a hook
        return _build_somewhere(backend)
    with lock:
        waited = _wait_for(lock, backend)
        if found := find(backend):
            return found
        lock.seek(0)
        if waited and (failure := lock.read()):
            raise HookError(failure)
        lock.truncate(0)
        try:
            return _build_somewhere(backend)
        except HookError as error:
            with contextlib.suppress(OSError):
                lock.write(str(error))
                lock.flush()
            raise


def _build_somewhere(backend: str) -> Found:
    place = destination()
    return Found(backend, build(backend, place.directory), place.name)


def _wait_for(lock: TextIO, backend: str) -> bool:
    """Takes the lock; returns whether another process had it first."""
    deadline = time.monotonic() + WAIT_SECONDS
    waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
        if time.monotonic() >= deadline:
            raise HookError(
                f"another process has been building the hook for {backend!r} for more than "
                f"{WAIT_SECONDS:g} s; start again once it is done, or {PREBUILT_REMEDY}"
            )
        time.sleep(0.05)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
