"""The tracers of this process: what is done once for all, when devices appear, and at its end."""

import atexit
import multiprocessing.util
import os
import weakref
from typing import TYPE_CHECKING

from pytracer import _core, devices
from pytracer.notices import say_once

if TYPE_CHECKING:
    from pytracer.tracer import Tracer

recording: set["Tracer"] = set()
waiting: "weakref.WeakSet[Tracer]" = weakref.WeakSet()  # started, with nothing to record yet
_awaited: set[str] = set()  # backends
_prepared_pid: int | None = None


def await_devices() -> None:
    """Has the devices followed as torch initialises them; once for each backend.

    What a process sees may change until then: Ray's workers set `CUDA_VISIBLE_DEVICES` late.
    """
    for backend in devices.to_be_initialised():
        if backend not in _awaited:
            _awaited.add(backend)
            devices.when_initialised(backend, follow_devices)


def follow_devices() -> None:
    """Looks again at which devices there are, for all tracers. What fails is said, not raised.

    In the middle of torch's initialisation, after the hooks that waited for it are attached.
    """
    try:
        for tracer in [*recording, *waiting]:
            tracer._follow_devices()
    except Exception as error:  # another thread starts a tracer, say
        say_once(f"devices were not followed: {error!r}")


def prepare_process() -> None:
    """Once in a process: enables stacks, and sees to its end."""
    global _prepared_pid
    if _prepared_pid == os.getpid():
        return
    forked = _prepared_pid is not None  # what follows, but for the last, is inherited
    _prepared_pid = os.getpid()
    if not forked:
        problem = _core.frame_walk_problem()
        if problem is None:
            _core.enable_stacks()
        else:
            say_once(f"recording without stacks: {problem}")
        atexit.register(_at_exit)
        os.register_at_fork(before=_core.hold_for_fork, after_in_parent=_core.release_after_fork)
    if multiprocessing.parent_process() is not None:
        # Such a process may leave without `atexit`, but not without this.
        multiprocessing.util.Finalize(None, _at_exit, exitpriority=0)


def _at_exit() -> None:
    try:
        for tracer in list(recording):
            try:
                tracer._finish()
            except Exception as failure:  # and the others are still to write
                say_once(f"no snapshot at the end: {failure!r}")
    finally:
        # Thread states are freed soon: from here on no stack is walked.
        _core.prepare_for_exit()
