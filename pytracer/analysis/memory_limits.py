"""How much memory a device's allocator could reserve, as far as a file has it."""

import numpy as np

from pytracer.analysis.history import History
from pytracer.reading.snapshot import OOM, Snapshot


def limit_bytes_of(snapshot: Snapshot, device: int, history: History) -> int | None:
    """Return how many bytes a device's allocator could reserve; None if unknown.

    The limit is the sum of the reserved and the free memory at the last out-of-memory, or else when
    the file was written, and at most the memory fraction.
    """
    fraction_bytes = fraction_bytes_of(snapshot, device)
    limits = [] if fraction_bytes is None else [fraction_bytes]
    trace = snapshot.traces[device]
    ooms = np.flatnonzero(trace.action == OOM)
    if len(ooms) > 0:
        last = ooms[-1]
        limits.append(int(history.usage.reserved_bytes[last] + trace.address[last]))
    metadata = snapshot.metadata.device(device)
    free, reserved = metadata.free_bytes, metadata.reserved_bytes
    if len(ooms) == 0 and free is not None and reserved is not None:
        limits.append(free + reserved)
    limit = min(limits, default=0)
    return limit if limit > 0 else None


def fraction_bytes_of(snapshot: Snapshot, device: int) -> int | None:
    """Return the limit of the process (`set_per_process_memory_fraction`); None: none is known."""
    limits = []
    metadata, oom = snapshot.metadata.device(device), snapshot.metadata.oom
    fraction, total = metadata.memory_fraction, metadata.total_bytes
    if total is not None and fraction is not None and 0 < fraction < 1:
        limits.append(round(fraction * total))
    if oom is not None and oom.device == device:
        allowed = oom.total_bytes
        if allowed is not None and (total is None or allowed < total):
            limits.append(allowed)  # the allocator reports the limit as the size of the device
    limit = min(limits, default=0)
    return limit if limit > 0 else None
