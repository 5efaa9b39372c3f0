"""Control and read the simulated devices, in the same way for both backends.

    import simulated

    simulated.set_capacity(256 << 20, device=0)

This module can always be imported. Without simulated devices, active() returns False and all other
functions raise. Devices have the numbers of the machine, independently of CUDA_VISIBLE_DEVICES and
ASCEND_RT_VISIBLE_DEVICES.
"""

import ctypes
from functools import cache

from pytracer.rehearsal.simulated import counter, library

__all__ = ["counter"]


@cache
def _control() -> ctypes.CDLL:
    try:
        found = library()
    except OSError:
        text = "no simulated device: start this by `tests/devices/simulate cuda|npu PYTHON ...`"
        raise RuntimeError(text) from None
    found.simulated_set_capacity.argtypes = [ctypes.c_int, ctypes.c_size_t]
    for name in ("capacity", "used_bytes", "context_bytes"):
        getattr(found, f"simulated_{name}").argtypes = [ctypes.c_int]
        getattr(found, f"simulated_{name}").restype = ctypes.c_size_t
    return found


def _checked(device: int) -> int:
    if not 0 <= device < devices():
        raise ValueError(f"device {device}: there are {devices()}")
    return device


def active() -> bool:
    """Return whether this process runs on simulated devices."""
    try:
        _control()
    except RuntimeError:
        return False
    return True


def devices() -> int:
    """Return the number of devices, visible or not."""
    return int(_control().simulated_devices())


def set_capacity(size_bytes: int, device: int | None = None) -> None:
    """Set the memory of one device, or of all; memory in use stays in use."""
    _control().simulated_set_capacity(-1 if device is None else _checked(device), size_bytes)


def capacity(device: int = 0) -> int:
    """Return the memory of a device in bytes."""
    return int(_control().simulated_capacity(_checked(device)))


def used_bytes(device: int = 0) -> int:
    """Return the bytes that the process uses on a device, which memory_reserved() should equal."""
    return int(_control().simulated_used_bytes(_checked(device)))


def context_bytes(device: int = 0) -> int:
    """Return the bytes of the context on a device, as NVML and DCMI count them; 0 until used."""
    return int(_control().simulated_context_bytes(_checked(device)))


def set_busy(busy: bool) -> None:
    """Set whether devices are busy.

    On a busy device, no event has happened until something waits for it, so that frees that
    depend on an event are delayed.
    """
    _control().simulated_set_busy(busy)


def set_pending_queries(queries: int) -> None:
    """Set how many queries report that an event recorded from now on has not happened yet."""
    _control().simulated_set_pending_queries(queries)
