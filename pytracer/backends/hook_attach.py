"""Attaching hooks to torch's allocators, in a process that records."""

import contextlib
import functools
import os
from collections.abc import Callable
from types import ModuleType

from pytracer.backends import oom, running_torch
from pytracer.backends.hook_build import Found, HookBuilder
from pytracer.backends.names import ACCELERATORS, AUTOGRAD, HOST
from pytracer.errors import HookError
from pytracer.log import warn_once


def load_core() -> ModuleType:
    """Import the C++ core, or raise a HookError. Most of the package can be imported without it."""
    try:
        from pytracer import _core
    except ImportError as error:
        raise HookError(
            f"pytracer's core cannot be imported ({error}); install torch-pytracer again"
        ) from error
    core: ModuleType = _core
    return core


class Hooks:
    """The hooks of one process. A hook stays attached until the process ends.

    `watch_oom` is called with each backend whose hook was attached.
    """

    def __init__(
        self,
        builder: HookBuilder | None = None,
        load_core: Callable[[], ModuleType] = load_core,
        watch_oom: Callable[[str], None] = oom.watch,
    ) -> None:
        self.builder = builder or HookBuilder()
        self.load_core = load_core
        self._watch_oom = watch_oom
        self._attached: set[str] = set()
        self._deferred: set[str] = set()  # until torch has initialised the device
        self._late_problems: dict[str, str] = {}
        self._has_looked_for_autograd = self._watches_threads = False

    def attach(self, backend: str) -> None:
        """Attach the hook for `backend`, and build it first if no folder has it; idempotent.

        The hook of an accelerator that torch has not initialised is attached when torch does. A
        HookError says why the backend cannot be recorded here, and what to do.
        """
        if backend in self._attached:
            return
        accelerators = {backend, *self._attached, *self._deferred} & set(ACCELERATORS)
        if len(accelerators) > 1:
            raise HookError(
                f"{' and '.join(sorted(accelerators))} in one process: pytracer records one kind "
                "of accelerator; trace the other in another process"
            )
        found = self._find(backend)
        if not self._attach(found) and backend not in self._deferred:
            self._deferred.add(backend)
            running_torch.when_initialised(backend, functools.partial(self._attach_late, found))

    def attach_host(self, *, build: bool) -> bool:
        """Return whether the hook for pinned host memory is attached; idempotent.

        `build`: whether it is built if no folder has it.
        """
        find = self._find if build else self.builder.find
        if HOST not in self._attached and (found := find(HOST)):
            self.load_core().attach_hook(os.fsencode(found.path))
            self._attached.add(HOST)
        return HOST in self._attached

    def attach_autograd(self, *, build: bool) -> None:
        """Attach the library that reads autograd's state; `build` it first if no folder has it.

        Idempotent. Without the library, allocations in backward have no forward stacks, and on
        accelerators it is known only that a node ran; all else works. `pytracer doctor` reports why
        it is missing.
        """
        if AUTOGRAD in self._attached:
            return
        core, builder, found = self.load_core(), self.builder, None
        with contextlib.suppress(Exception):
            if build:
                found = builder.find_or_build(AUTOGRAD)
            elif not self._has_looked_for_autograd:
                found = builder.find(AUTOGRAD)
            if found:
                core.attach_autograd(os.fsencode(found.path))
                self._attached.add(AUTOGRAD)
                return
        self._has_looked_for_autograd = True
        # The CPU's nodes run on threads of the program.
        if not self._watches_threads and {*self._attached, *self._deferred} & {*ACCELERATORS}:
            with contextlib.suppress(Exception):
                core.watch_autograd_threads()  # waits for all hooks
                self._watches_threads = True

    @property
    def reads_autograd(self) -> bool:
        """Whether the library is attached."""
        return AUTOGRAD in self._attached

    def late_problem(self, backend: str) -> str | None:
        """Return why a deferred hook could not be attached when torch initialised the device."""
        return self._late_problems.get(backend)

    def _find(self, backend: str) -> Found:
        try:
            return self.builder.find_or_build(backend)
        except OSError as error:
            raise HookError(f"finding the hook for {backend!r} failed: {error}") from error

    def _attach(self, found: Found) -> bool:
        """Return whether the hook is attached; False: torch has not initialised the device yet."""
        if not self.load_core().attach_hook(os.fsencode(found.path)):  # it may not be UTF-8
            return False
        self._attached.add(found.backend)
        self._late_problems.pop(found.backend, None)
        self._watch_oom(found.backend)
        return True

    def _attach_late(self, found: Found) -> None:
        """Attach in the middle of torch's initialisation, which must not fail because of us."""
        try:
            if not self._attach(found):
                raise HookError(
                    f"the {found.backend.upper()} allocator is not torch's own, but for example "
                    "a pluggable one; pytracer cannot record it, so run without that allocator"
                )
        except Exception as error:
            self._late_problems[found.backend] = str(error)
            warn_once(f"{found.backend.upper()} is not recorded: {error}")


HOOKS = Hooks()  # the hooks of this process
