"""Finding a hook, and building the hook that no folder has.

A hook's file name carries a key made of everything that it was compiled from, so that a hook made
for another torch is never found, let alone loaded: see docs/explanation/hooks.md.
"""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytracer.backends.hook_compile import HookCompiler
from pytracer.backends.hook_folders import (
    BUILD_BYTES,
    PREBUILT_REMEDY,
    HookFolder,
    HookFolders,
    sealed,
)
from pytracer.backends.names import AUTOGRAD, HOST, package_of
from pytracer.backends.probe_process import probe_in_child
from pytracer.backends.ready_hooks import ReadyHooks, public
from pytracer.backends.running_torch import torch_module
from pytracer.errors import HookError
from pytracer.log import warn_once
from pytracer.text import brief

WAIT_SECONDS = 300.0

ABANDONED_S = 3600.0
"""The age after which what a build left is deleted: no build takes so long. Its process may run on
another machine, so that only the age tells."""

READY = "the package's prebuilt hooks"  # the name of their folder

_SCRATCH = ".build-"
_OF_OPEN_ATOMICALLY = r"\.pytracer-\d+-[0-9a-f]+\.tmp"
_LEFTOVER = re.compile(rf"{re.escape(_SCRATCH)}.+|{_OF_OPEN_ATOMICALLY}")

Probe = Callable[[str, Path], None]
"""Tries the hook of a backend; raises HookError if the hook must not be used."""


@dataclass(frozen=True)
class Found:
    """The file of a hook that fits the running torch."""

    backend: str  # one of `LIBRARIES`
    path: Path
    folder: str  # the name of a `HookFolder`, or `READY`


class HookBuilder:
    """Finds hooks and builds missing ones, one process of a node at a time.

    A fresh hook is tried by `probe` before it gets its name. A process that builds the same hook is
    waited for at most `wait_s` seconds. What is left out is made for the running torch and this
    process.
    """

    def __init__(
        self,
        folders: HookFolders | None = None,
        compiler: HookCompiler | None = None,
        probe: Probe = probe_in_child,
        wait_s: float = WAIT_SECONDS,
    ) -> None:
        self.folders = folders or HookFolders()
        self.compiler = compiler or HookCompiler(self.folders)
        self.ready = ReadyHooks(self.folders.package, self.compiler)
        self.probe = probe
        self.wait_s = wait_s
        self._file_name = functools.cache(self.compiler.file_name)  # it reads headers
        self._failures: dict[tuple[str, ...], str] = {}  # by file name and compiler

    def find(self, backend: str) -> Found | None:
        """Look in the folder that the user named, in the prebuilt hooks, and in pytracer's folders.

        Nothing is built or written. Raises a HookError without torch, its headers or the sources.
        """
        if found := self._look_up(backend, self.folders.named()):
            return found
        if path := self.ready.find(backend):
            return Found(backend, path, READY)
        return self._look_up(backend, self.folders.chosen())

    def _look_up(self, backend: str, folders: Sequence[HookFolder]) -> Found | None:
        for folder in folders:
            if path := folder.find_hook(self._file_name(backend)):
                return Found(backend, path, folder.name)
        return None

    def compiler_for(self, backend: str) -> list[str]:
        """Return the compiler's command as `find_command`; the error names prebuilt hooks, too."""
        try:
            return self.compiler.find_command()
        except HookError as error:
            if not (releases := self.ready.releases(backend)):
                raise
            package, running = package_of(backend), self.compiler.release(backend)
            why = f"the prebuilt hooks are for {package} {', '.join(releases)}"
            if public(running) in releases:
                why += f" as officially published, but the headers of this {package}"
                raise HookError(f"{why} {running} differ; {error}") from error
            raise HookError(f"{why}, and this is {package} {running}; {error}") from error

    def find_or_build(self, backend: str) -> Found:
        """Look the hook up, and build it if no folder has it, or raise a HookError.

        A build that failed is not repeated in this process with the same compiler.
        """
        self.compiler.is_allowed()  # a wrong PYTRACER_BUILD is logged even if nothing is compiled
        for named in self.folders.named():
            if not named.directory.is_dir():
                warn_once(
                    f"{named.name}={brief(str(named.directory))} is not a folder and is ignored"
                )
        if found := self.find(backend):
            return found
        attempt = (self._file_name(backend), *self.compiler_for(backend))
        if attempt in self._failures:
            raise HookError(self._failures[attempt])
        try:
            return self._build_in_turn(backend)
        except HookError as error:
            self._failures[attempt] = str(error)
            raise

    def build(self, backend: str, directory: Path) -> Path:
        """Compile and probe the hook. `directory`, made if missing, gets the complete file or none.

        Raises:
            HookError: Compiling is forbidden, not possible or failed, or the hook failed its probe.
        """
        command = self.compiler.find_command()
        target = directory.absolute() / self._file_name(backend)
        try:
            # No folder that is made here may be written to by others, whatever the umask.
            above = (target.parent, *target.parent.parents)
            for folder in reversed([each for each in above if not each.exists()]):
                folder.mkdir(mode=0o755, exist_ok=True)
            _remove_leftovers(target.parent)
            with tempfile.TemporaryDirectory(
                prefix=_SCRATCH, dir=target.parent, ignore_cleanup_errors=True
            ) as scratch:
                fresh = Path(scratch) / target.name
                self.compiler.compile(command, backend, fresh)
                fresh.write_bytes(sealed(fresh.read_bytes()))
                # An image may be built on a machine without the device.
                device = "cuda" if backend == HOST else backend
                if backend in ("cpu", AUTOGRAD) or torch_module(device).device_count() > 0:
                    self.probe(backend, fresh)
                fresh.chmod(0o755)
                with fresh.open("rb") as written:
                    os.fsync(written.fileno())
                os.replace(fresh, target)
        except OSError as error:
            raise HookError(
                f"cannot write {target}: {error.strerror}; give `pytracer doctor --build "
                "--output` a folder that you can write to, and set PYTRACER_HOOK_DIR to it"
            ) from error
        return target

    def _build_in_turn(self, backend: str) -> Found:
        """Build the hook while other processes of this node wait.

        A process that had to wait and finds no hook takes over the reason that the builder left,
        so that not every process repeats the failure.
        """
        try:
            private = self.folders.private().made(for_hooks=False)
        except OSError:  # several may build at once, and all get a hook
            return self.build_in_chosen(backend)
        lock_file = private.directory / f"{self._file_name(backend)}.lock"
        reason_file = lock_file.with_suffix(".failed")
        with self._turn(backend, lock_file) as waited:
            if found := self._look_up(backend, self.folders.lookup()):
                return found
            with contextlib.suppress(OSError):
                if waited and (reason := reason_file.read_text("utf-8", "replace")):
                    raise HookError(reason)
            with contextlib.suppress(OSError):
                reason_file.unlink()
            try:
                return self.build_in_chosen(backend)
            except HookError as error:
                with contextlib.suppress(OSError):
                    reason_file.write_text(str(error), "utf-8", "replace")
                raise

    def build_in_chosen(self, backend: str) -> Found:
        """Build the hook, as `build` does, in the first of pytracer's folders that can keep it."""
        release = f"{package_of(backend)} {self.compiler.release(backend)}"
        warn_once(f"compiling the hook {backend} for {release}, once: this can take some 20 s")

        def build(folder: HookFolder) -> Found:
            try:
                return Found(backend, self.build(backend, folder.directory), folder.name)
            except HookError:
                # The folder may have become full meanwhile. Compilers do not always say so.
                folder.made(BUILD_BYTES)
                raise

        return self.folders.in_first_usable(build, BUILD_BYTES)

    @contextlib.contextmanager
    def _turn(self, backend: str, lock_file: Path) -> Iterator[bool]:
        """Hold the node's lock; the value is whether another process had the lock first.

        The lock file is in a folder of this node: locks on network file systems may not work, or
        may block for good. `filelock` unlocks explicitly, which also ends the hold of children
        that were forked meanwhile and inherited the open file.

        If the lock fails, the hook is built without it. Several processes may then build the
        same hook, which costs time, and all get a complete one.

        Raises:
            HookError: Another process has had the lock for longer than `wait_s`.
        """
        lock, waited = None, False
        try:
            # Only a process that builds needs the package, and it may be missing.
            from filelock import FileLock, Timeout

            lock = FileLock(lock_file)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                waited = True
                lock.acquire(timeout=self.wait_s)
        except Exception as error:
            if type(error).__name__ == "Timeout":
                raise HookError(
                    f"another process has been building the hook for {backend!r} for more than "
                    f"{self.wait_s:g} s; start again when it is done, or {PREBUILT_REMEDY}"
                ) from error
            lock, waited = None, False
        try:
            yield waited
        finally:
            if lock is not None:
                with contextlib.suppress(Exception):
                    lock.release()


def _remove_leftovers(directory: Path) -> None:
    """Delete what killed processes left in a folder of hooks."""
    # A fresh file has the time of the machine that keeps the files.
    with tempfile.TemporaryFile(dir=directory) as file:
        now = os.fstat(file.fileno()).st_mtime
    for path in directory.iterdir():
        with contextlib.suppress(OSError):  # another process deletes it too
            if _LEFTOVER.fullmatch(path.name) and now - path.lstat().st_mtime > ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
