"""Control and read the simulated devices, in the same way for both backends.

    from pytracer.rehearsal import simulated

    simulated.set_capacity(256 << 20, device=0)

This module can always be imported. Without simulated devices, active() returns False and all other
functions raise. Devices have the numbers of the machine, independently of CUDA_VISIBLE_DEVICES and
ASCEND_RT_VISIBLE_DEVICES.
"""

import atexit
import ctypes
from collections.abc import Callable
from functools import cache

_ON_READ = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
_kept: list[object] = []  # what the library calls


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libsimulated_device.so")
    except OSError:
        return None
    library.simulated_set_capacity.argtypes = [ctypes.c_int, ctypes.c_size_t]
    for name in ("capacity", "used_bytes", "context_bytes"):
        getattr(library, f"simulated_{name}").argtypes = [ctypes.c_int]
        getattr(library, f"simulated_{name}").restype = ctypes.c_size_t
    library.simulated_counter.restype = ctypes.c_uint64
    library.simulated_set_on_read.argtypes = [_ON_READ]
    return library


def _model() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise RuntimeError(
            "no simulated device: start this by `tests/devices/simulate cuda|npu PYTHON ...`"
        )
    return library


def _checked(device: int) -> int:
    if not 0 <= device < devices():
        raise ValueError(f"device {device}: there are {devices()}")
    return device


def active() -> bool:
    """Return whether this process runs on simulated devices."""
    return _library() is not None


def devices() -> int:
    """Return the number of devices, visible or not."""
    return int(_model().simulated_devices())


def set_capacity(size_bytes: int, device: int | None = None) -> None:
    """Set the memory of one device, or of all; memory in use stays in use."""
    _model().simulated_set_capacity(-1 if device is None else _checked(device), size_bytes)


def capacity(device: int = 0) -> int:
    """Return the memory of a device in bytes."""
    return int(_model().simulated_capacity(_checked(device)))


def used_bytes(device: int = 0) -> int:
    """Return the bytes that the process uses on a device, which memory_reserved() should equal."""
    return int(_model().simulated_used_bytes(_checked(device)))


def context_bytes(device: int = 0) -> int:
    """Return the bytes of the context on a device, as NVML and DCMI count them; 0 until used."""
    return int(_model().simulated_context_bytes(_checked(device)))


def set_busy(busy: bool) -> None:
    """Set whether devices are busy.

    On a busy device, no event has happened until something waits for it, so that frees that
    depend on an event are delayed.
    """
    _model().simulated_set_busy(busy)


def set_pending_queries(queries: int) -> None:
    """Set how many queries report that an event recorded from now on has not happened yet."""
    _model().simulated_set_pending_queries(queries)


def counter(name: str) -> int:
    """Return how often the driver was called for malloc, free, create, release, map, unmap, launch,
    memcpy or memset; `stub` counts the calls of all stubs, `unknown_workspaces` the requests for a
    workspace whose size is not known here, so that the program got none."""
    value = int(_model().simulated_counter(name.encode()))
    if value == 2**64 - 1:
        raise ValueError(f"no counter {name!r}")
    return value


def on_read(function: Callable[[int], None]) -> None:
    """Have a function called with the bytes of each copy from a device whose values are unknown.

    It is called in the thread that copies, below the frame that asked for the values.
    """
    _kept[:] = [_ON_READ(function)]
    atexit.register(_model().simulated_set_on_read, _ON_READ())  # no Python in what is later
    _model().simulated_set_on_read(_kept[0])
