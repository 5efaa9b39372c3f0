"""Tells tracers that a device has run out of memory, before the exception reaches Python."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pytracer import devices
from pytracer.devices import OomObserver
from pytracer.notices import say_once


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed for good.

    Attributes:
        device: Index of the device; -1: the CPU.
        requested_bytes: What was asked for, as the allocator rounded it.
        total_bytes: What the process may use of the device.
        free_bytes: What the device's driver, or the system, had left.
    """

    device: int
    requested_bytes: int
    total_bytes: int
    free_bytes: int


Listener = Callable[[OutOfMemory], None]

listeners: set[Listener] = set()
_telling = False
_this_thread = threading.local()


class Watch:
    """What is attached to one backend's allocator: calls others' observers, tells the listeners.

    An observer that takes a snapshot (`told_by_observer`) has told the story: the listeners are not
    told then, and there is one file.

    Attributes:
        observers: Others' (`adopt`), called as torch calls them: in their order, and what one of
            them raises takes the place of torch's own exception.
        attached: Whether it is, or that was tried.
    """

    def __init__(self) -> None:
        """Watches nothing yet."""
        self.observers: list[OomObserver] = []
        self.attached = False

    def __call__(self, device: int, requested: int, total: int, free: int) -> None:
        """On the thread that ran out."""
        before = getattr(_this_thread, "told", False)
        _this_thread.told = False
        try:
            for observer in list(self.observers):
                observer(device, requested, total, free)
        finally:
            told, _this_thread.told = _this_thread.told, before
            if not told:
                _tell(OutOfMemory(device, requested, total, free))


_watches: dict[str, Watch] = {}


def watch(backend: str) -> None:
    """Attaches to the allocator, once; the device is initialised. What fails is said."""
    watch = _watches.setdefault(backend, Watch())
    if watch.attached:
        return
    watch.attached = True
    try:
        devices.attach_oom_observer(backend, watch)
    except Exception as error:
        say_once(f"no snapshots when {backend.upper()} memory runs out: {error!r}")


def adopt(backend: str, observer: OomObserver) -> None:
    """Attaches the observer of another; one that comes before the device is initialised waits."""
    _watches.setdefault(backend, Watch()).observers.append(observer)
    devices.when_initialised(backend, functools.partial(watch, backend))


def told_by_observer() -> None:
    """A snapshot is taken on this thread: should an observer do it, the listeners need not."""
    _this_thread.told = True


def _tell(event: OutOfMemory) -> None:
    """An exception from here would take the place of torch's own."""
    global _telling
    if _telling:  # out of memory in a listener, or on two threads: the first one tells the story
        return
    _telling = True
    try:
        for listener in list(listeners):
            listener(event)
    except Exception as error:
        say_once(f"no snapshot of the out-of-memory: {error!r}")
    finally:
        _telling = False
