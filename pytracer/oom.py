"""Tells tracers that a device has run out of memory, before the exception reaches Python."""

from collections.abc import Callable
from dataclasses import dataclass

from pytracer import devices
from pytracer.notices import say_once


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed for good.

    Attributes:
        device: Index of the device.
        requested_bytes: What was asked for, as the allocator rounded it.
        total_bytes: What the process may use of the device.
        free_bytes: What the device's driver had left.
    """

    device: int
    requested_bytes: int
    total_bytes: int
    free_bytes: int


Listener = Callable[[OutOfMemory], None]

listeners: set[Listener] = set()
_watched: set[str] = set()
_telling = False


def watch(backend: str) -> None:
    """Attaches to the allocator, once; the device is initialised. What fails is said."""
    if backend in _watched:
        return
    _watched.add(backend)
    try:
        devices.attach_oom_observer(backend, _tell)
    except Exception as error:
        say_once(f"no snapshots when {backend.upper()} memory runs out: {error!r}")


def _tell(device: int, requested: int, total: int, free: int) -> None:
    """On the thread that ran out. An exception from here would take the place of torch's own."""
    global _telling
    if _telling:  # out of memory in a listener, or on two threads: the first one tells the story
        return
    _telling = True
    try:
        for listener in list(listeners):
            listener(OutOfMemory(device, requested, total, free))
    except Exception as error:
        say_once(f"no snapshot of the out-of-memory: {error!r}")
    finally:
        _telling = False
