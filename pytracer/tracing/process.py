"""The tracers of this process, for what is done for all: at its start, for new devices, at exit."""

import atexit
import contextlib
import multiprocessing.util
import os
import sys
import threading
import weakref
from typing import Any, NoReturn

from pytracer import _core
from pytracer.backends import running_torch
from pytracer.log import harmless, print_line, report_once, warn_once

recording: set[Any] = set()  # tracers
waiting: weakref.WeakSet[Any] = weakref.WeakSet()  # tracers that are started, without a device
_awaited: set[str] = set()  # backends
_prepared_pid: int | None = None
_watches_threads = False


def await_devices() -> None:
    """Call `follow_devices` when torch initialises the devices; idempotent.

    The visible devices may change until then: Ray's workers set `CUDA_VISIBLE_DEVICES` late.
    """
    for backend in running_torch.uninitialised_accelerators():
        if backend not in _awaited:
            _awaited.add(backend)
            running_torch.when_initialised(backend, follow_devices)


def follow_devices() -> None:
    """Have all tracers look again at which devices there are. A failure is logged, not raised.

    It runs in the middle of torch's initialisation, after hooks that waited for it are attached.
    """
    # Another thread may start a tracer meanwhile, say.
    with harmless("new devices are not recorded, because looking for them failed: {error}"):
        for tracer in [*recording, *waiting]:
            tracer._follow_devices()


def prepare_process() -> None:
    """Enable stacks and register what is done at exit; once in a process."""
    global _prepared_pid
    if _prepared_pid == os.getpid():
        return
    forked = _prepared_pid is not None  # what follows is inherited, except for the last part
    _prepared_pid = os.getpid()
    if not forked:
        problem = _core.frame_walk_problem()
        if problem is None:
            _core.enable_stacks()
        else:
            warn_once(f"recording without stacks and without names of what holds memory: {problem}")
        atexit.register(finish)
    if multiprocessing.parent_process() is not None:
        # A child of multiprocessing may end without `atexit`, but not without this.
        multiprocessing.util.Finalize(None, finish, exitpriority=0)


def watch_threads() -> None:
    """Have the tracers look at each exception that ends a thread; once in a process."""
    global _watches_threads
    if _watches_threads:
        return
    _watches_threads = True
    before = threading.excepthook

    def excepthook(arguments: threading.ExceptHookArgs) -> None:
        with contextlib.suppress(Exception):  # another thread starts a tracer, say
            for tracer in [*recording]:
                tracer._notify_hidden_oom(arguments.exc_value)
        before(arguments)

    threading.excepthook = excepthook


def end_forked_child(request: SystemExit | None = None) -> NoReturn:
    """End a child that an `on_snapshot` forked, as children of `multiprocessing` end.

    What the child printed is written, and no function that the program registered for its exit
    runs: the child has none of the threads that such a function may wait for. `request` is what
    `sys.exit()` raised in the child; None: the function returned.
    """
    code = None if request is None else request.code
    if not (code is None or isinstance(code, int)):
        with contextlib.suppress(Exception):
            print_line(str(code))
        code = 1
    end(code or 0)


def end(code: int) -> NoReturn:
    """End this process at once: what it printed is written, and no function for its exit runs."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def finish() -> None:
    """Write what the tracers of this process write at its end."""
    try:
        for tracer in list(recording):
            try:  # the other tracers still have to write
                with harmless("no snapshot was written at the end: {error}", log=report_once):
                    tracer._finish(getattr(sys, "last_value", None))  # of the main thread
            except KeyboardInterrupt:
                report_once("the last snapshot or its on_snapshot was interrupted")
    finally:
        # The interpreter frees thread states soon, so no stack may be walked from here on.
        _core.prepare_for_exit()
