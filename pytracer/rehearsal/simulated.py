"""What the library of the simulated devices counts, and what it calls.

Tests also control the devices: see `tests/devices/simulated.py`.
"""

import atexit
import ctypes
from collections.abc import Callable
from functools import cache

_ON_READ = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 3)
_kept: list[object] = []  # what the library calls


@cache
def library() -> ctypes.CDLL:
    """Return the library of the devices.

    Raises:
        OSError: This process has no simulated devices.
    """
    found = ctypes.CDLL("libsimulated_device.so")
    found.simulated_counter.restype = ctypes.c_uint64
    found.simulated_set_on_read.argtypes = [_ON_READ]
    return found


def counter(name: str) -> int:
    """Return how often the driver was called for malloc, free, create, release, map, unmap, launch,
    memcpy or memset; `stub` counts the calls of all stubs, `unknown_workspaces` the requests for a
    workspace whose size is not known here, so that the program got none."""
    value = int(library().simulated_counter(name.encode()))
    if value == 2**64 - 1:
        raise ValueError(f"no counter {name!r}")
    return value


def on_read(function: Callable[[int, int, int], object]) -> None:
    """Have a function called for each copy from a device whose values are unknown.

    It gets the destination, where it may write the values, the source, and the number of bytes,
    in the thread that copies, below the frame that asked for the values.
    """
    _kept[:] = [_ON_READ(function)]
    atexit.register(library().simulated_set_on_read, _ON_READ())  # no Python in what is later
    library().simulated_set_on_read(_kept[0])
