"""How much memory a device's allocator could reserve, as far as a file has it."""

import numpy as np

from pytracer.analysis.history import History
from pytracer.reading.metadata import device_metadata, read_number
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
    metadata = device_metadata(snapshot, device)
    free, reserved = read_number(metadata, "free_bytes"), read_number(metadata, "reserved_bytes")
    if len(ooms) == 0 and free is not None and reserved is not None:
        limits.append(free + reserved)
    limit = min(limits, default=0)
    return limit if limit > 0 else None


def fraction_bytes_of(snapshot: Snapshot, device: int) -> int | None:
    """Return the limit of the process (`set_per_process_memory_fraction`); None: none is known."""
    limits = []
    metadata = device_metadata(snapshot, device)
    statistics, total = metadata.get("statistics"), read_number(metadata, "total_bytes")
    fraction = statistics.get("memory_fraction") if isinstance(statistics, dict) else None
    if total is not None and isinstance(fraction, float) and 0 < fraction < 1:
        limits.append(round(fraction * total))
    oom = snapshot.metadata.get("oom")
    if isinstance(oom, dict) and oom.get("device") == device:
        allowed = read_number(oom, "total_bytes")
        if allowed is not None and (total is None or allowed < total):
            limits.append(allowed)  # the allocator reports the limit as the size of the device
    limit = min(limits, default=0)
    return limit if limit > 0 else None
