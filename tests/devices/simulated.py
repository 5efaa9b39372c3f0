"""What a test can set and ask of the simulated devices, the same for both backends.

    import simulated

    simulated.set_capacity(256 << 20, device=0)

Importing it is always possible; outside `tests/devices/simulate` active() is False and all else
raises. Devices are numbered as the machine has them, whatever CUDA_VISIBLE_DEVICES or
ASCEND_RT_VISIBLE_DEVICES leaves.
"""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = [
    "active",
    "capacity",
    "context_bytes",
    "counter",
    "devices",
    "set_busy",
    "set_capacity",
    "set_pending_queries",
    "used_bytes",
]


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
    library.simulated_set_busy.argtypes = [ctypes.c_int]
    library.simulated_set_pending_queries.argtypes = [ctypes.c_int]
    library.simulated_counter.argtypes = [ctypes.c_char_p]
    library.simulated_counter.restype = ctypes.c_uint64
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
    """Whether this process runs on simulated devices."""
    return _library() is not None


def devices() -> int:
    return _model().simulated_devices()


def set_capacity(size_bytes: int, device: int | None = None) -> None:
    """Sets how much memory a device has, or all; what is taken stays taken."""
    _model().simulated_set_capacity(-1 if device is None else _checked(device), size_bytes)


def capacity(device: int = 0) -> int:
    return _model().simulated_capacity(_checked(device))


def used_bytes(device: int = 0) -> int:
    """What the process took from a device: what memory_reserved() should say, seen from below."""
    return _model().simulated_used_bytes(_checked(device))


def context_bytes(device: int = 0) -> int:
    """What the driver takes on a device beside that, as NVML and DCMI count it; 0 until used."""
    return _model().simulated_context_bytes(_checked(device))


def set_busy(busy: bool) -> None:
    """While busy, no event has happened that nobody waited for: frees that wait for one stay put
    off."""
    _model().simulated_set_busy(busy)


def set_pending_queries(queries: int) -> None:
    """How often an event recorded from now on says that it has not happened, before it has."""
    _model().simulated_set_pending_queries(queries)


def counter(name: str) -> int:
    """How often the driver was asked to malloc, free, create, release, map, unmap, launch, memcpy,
    memset; and `stub`, for all that it only pretends to do."""
    value = _model().simulated_counter(name.encode())
    if value == 2**64 - 1:
        raise ValueError(f"no counter {name!r}")
    return value
