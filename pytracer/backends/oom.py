"""Report to tracers that a device has run out of memory, before the exception reaches Python."""

import functools
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytracer.backends import devices, running_torch
from pytracer.backends.devices import OomObserver
from pytracer.log import harmless, report_once


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed for good.

    If a library has asked without the allocator, `library_error` is its error, such as
    "CUBLAS_STATUS_ALLOC_FAILED", and the line of the program.
    """

    device: int  # -1: the CPU
    requested_bytes: int  # as the allocator rounded them; 0: unknown
    total_bytes: int  # of the device, that the process may use
    free_bytes: int  # that the device's driver, or the system, had left
    library_error: str | None = None


_ASSERTION = ("NVML_SUCCESS", "INTERNAL ASSERT FAILED", "CUDACachingAllocator")
_OF_LIBRARIES = re.compile(
    r"^(?:\w+ error: (\w+_ALLOC_FAILED)|(CUDA (?:driver )?error: out of memory)"
    r"|(Cuda failure \d* ?'out of memory'))",
    re.MULTILINE,
)
"""What exceptions say when CUDA or a library, such as cuBLAS, gets no memory of the device."""

_MAX_CAUSES = 10

Listener = Callable[[OutOfMemory], None]

listeners: set[Listener] = set()
_notifying_in: int | None = None  # the process; a forked child may lack the thread
_this_thread = threading.local()


class Watch:
    """The observer of one backend's allocator: calls other observers, then notifies the listeners.

    Other observers (`adopt`) are called as torch calls them: in their order, and an exception of
    theirs takes the place of torch's own. If one of them takes a snapshot (`mark_snapshot`), the
    listeners are not notified, so that there is one file.
    """

    def __init__(self) -> None:
        self.observers: list[OomObserver] = []
        self.attached = False  # or attaching has failed

    def __call__(self, device: int, requested: int, total: int, free: int) -> None:
        """Handle an out-of-memory, on the thread that ran out."""
        before = getattr(_this_thread, "has_snapshot", False)
        _this_thread.has_snapshot = False
        try:
            for observer in list(self.observers):
                observer(device, requested, total, free)
        finally:
            has_snapshot, _this_thread.has_snapshot = _this_thread.has_snapshot, before
            if not has_snapshot:
                _notify(OutOfMemory(device, requested, total, free))


_watches: dict[str, Watch] = {}


def watch(backend: str) -> None:
    """Attach to the allocator, once. The device must be initialised. A failure is logged."""
    watch = _watches.setdefault(backend, Watch())
    if watch.attached:
        return
    watch.attached = True
    with harmless(
        f"no snapshot will be written when {backend.upper()} memory runs out: torch refused the "
        "observer ({error}). Everything else is recorded"
    ):
        devices.attach_oom_observer(backend, watch)


def adopt(backend: str, observer: OomObserver) -> None:
    """Attach an observer of other code, as soon as the device is initialised."""
    _watches.setdefault(backend, Watch()).observers.append(observer)
    running_torch.when_initialised(backend, functools.partial(watch, backend))


def notify_hidden(error: BaseException | None, indices: Iterable[int]) -> None:
    """Report an out-of-memory for which torch raised another exception; each once. Never raises.

    A library takes memory of the device without the allocator. And where NVML fails, as in some
    containers, CUDA's allocator fails an assertion while it writes the message of an out-of-memory,
    before it reports the out-of-memory to anybody. `error` has ended a part of the program, and
    `indices` are the CUDA devices that are recorded and in use.
    """
    with harmless("an out-of-memory error was not recorded: {error}"):
        hidden, library_error = _hidden(error)
        if hidden is None:
            return
        hidden._pytracer = True  # type: ignore[attr-defined]
        known = [(devices.memory("cuda", index), index) for index in indices]
        sizes = [
            (memory["free_bytes"], memory["total_bytes"] or 0, index)
            for memory, index in known
            if memory["free_bytes"] is not None  # unknown as after a failed assertion of a kernel
        ]
        if sizes:
            from pytracer import _core  # most of the package can be imported without the core

            place = ""
            for frame, line in traceback.walk_tb(hidden.__traceback__):  # the innermost is the last
                place = f" at {frame.f_code.co_filename}:{line}"
            if library_error is None:
                report_once(
                    f"memory ran out{place}: torch raised an internal assertion instead of "
                    "torch.OutOfMemoryError, because NVML fails. How much was requested is unknown"
                )
            else:
                library_error += place
            free, total, index = min(sizes)  # the exception does not name the device
            _core.record_oom(index, 0, free)
            _notify(OutOfMemory(index, 0, total, free, library_error))


def _hidden(error: BaseException | None) -> tuple[BaseException | None, str | None]:
    """Return the exception that hides an out-of-memory, among an exception and its causes.

    None if none does, or if it was reported. Also return what it says of a library; None if the
    allocator failed. What a program has handled, and has not raised again `from`, is no library's.
    """
    hidden: tuple[BaseException | None, str | None] = None, None
    was_handled = False
    for _ in range(_MAX_CAUSES):
        if error is None:
            break
        if hasattr(error, "_pytracer"):
            return None, None
        if isinstance(error, RuntimeError):
            text = str(error)
            if all(part in text for part in _ASSERTION):
                return error, None
            if not was_handled and (found := _OF_LIBRARIES.search(text)):
                hidden = error, next(filter(None, found.groups()))
        was_handled = was_handled or error.__cause__ is None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return hidden


def mark_snapshot() -> None:
    """Note that this thread takes a snapshot. In an observer it replaces the listeners'."""
    _this_thread.has_snapshot = True


def _notify(event: OutOfMemory) -> None:
    """Call the listeners. An exception from here would take the place of torch's own.

    An out-of-memory in a listener, or on another thread meanwhile, gets no snapshot of its own.
    Waiting for the other thread could deadlock: `on_snapshot` may need a lock that this thread
    holds.
    """
    global _notifying_in
    if _notifying_in == os.getpid():
        report_once(
            "memory ran out again while the snapshot of an out-of-memory error was being "
            "written. The second error gets no snapshot of its own"
        )
        return
    _notifying_in = os.getpid()
    try:
        for listener in list(listeners):
            failed = "a tracer wrote no snapshot of the out-of-memory error: {error}"
            with harmless(failed, f"out-of-memory listener {hash(listener)}", report_once):
                listener(event)
    finally:
        _notifying_in = None
