"""Memory that the allocator has reserved and the program has not allocated.

It is cached for the next request, or too fragmented for it.
"""

from pytracer.analysis.history import History
from pytracer.analysis.usage import is_observable
from pytracer.reading.snapshot import Trace


def unallocated_after(history: History, event: int) -> int | None:
    """Return reserved - allocated bytes after an event, or None if that is not known exactly."""
    entry = event + 1
    if entry < history.exact_from:
        return None
    usage = history.usage
    return int(usage.reserved_bytes[entry] - usage.allocated_bytes[entry])


def peak_unallocated(history: History, trace: Trace) -> int | None:
    """Return the largest reserved - allocated bytes at one event, or None if none is exact.

    Entries that no other thread could observe do not count.
    """
    usage = history.usage
    counts = is_observable(trace)
    counts[: history.exact_from] = False
    unallocated = (usage.reserved_bytes - usage.allocated_bytes)[counts]
    return int(unallocated.max()) if len(unallocated) else None
