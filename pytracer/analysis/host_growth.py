"""Whether the host memory of a process grows from step to step, and the recorded CPU does not; and
how much more pinned memory torch took from the system than the program requested.

torch rounds each request for pinned memory up to a power of two, and keeps what the program frees.
"""

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.layout import segments_at
from pytracer.analysis.stream_memory import main_site, main_site_text
from pytracer.reading.snapshot import SEGMENT_ALLOC, SNAPSHOT, Frame, used_devices
from pytracer.text import size

_LEAST_SAMPLES = 12
_LEAST_BYTES = 128 * 2**20
_LEAST_PART = 0.2  # of pinned memory, that was taken and not requested
_LIMITS_MIB = [2**power for power in range(20, -1, -1)]
_LEAST_A_STEP = 2**20
"""The least growth that counts: what pytracer itself takes grows at first, by less than that."""


@dataclass(frozen=True)
class HostGrowth:
    """Host memory that grows from step to step.

    Attributes:
        bytes_per_step: By how much.
        first, last: The steps in which it grew.
        first_bytes, last_bytes: The memory of the process in these steps.
        is_cpu_recorded: Whether the tensors on the CPU are in the file, and are not what grows.
    """

    bytes_per_step: int
    first: int
    last: int
    first_bytes: int
    last_bytes: int
    is_cpu_recorded: bool


def host_growth(data: DeviceData) -> HostGrowth | None:
    """Return the growth of host memory, for the first device of a file; else, and without, None.

    It has to grow evenly in the last three quarters of the steps: a program that warms up, or that
    fills a cache, does not.
    """
    samples = data.snapshot.metadata.host_memory
    samples = samples[len(samples) // 4 :]
    if len(samples) < _LEAST_SAMPLES or used_devices(data.snapshot)[:1] != [data.device]:
        return None
    bounds = [len(samples) * i // 4 for i in range(5)]
    parts = [samples[begin:end] for begin, end in pairwise(bounds)]
    middles = [[median(column) for column in zip(*part, strict=True)] for part in parts]
    rises = [after - before for (_, before), (_, after) in pairwise(middles)]
    (first, first_bytes), (last, last_bytes) = samples[0], samples[-1]
    grown, a_step = sum(rises), sum(rises) / max(middles[-1][0] - middles[0][0], 1)
    if grown < _LEAST_BYTES or a_step < _LEAST_A_STEP or min(rises) < grown / 6:
        return None
    is_recorded = data.is_cpu is True and data.history.is_known
    if is_recorded:
        usage = data.history.usage.allocated_bytes
        begins = [event for step, event in data.boundaries if first <= step <= last]
        if not begins or 2 * (usage[begins[-1]] - usage[begins[0]]) > last_bytes - first_bytes:
            return None
    return HostGrowth(round(a_step), first, last, first_bytes, last_bytes, is_recorded)


@dataclass(frozen=True)
class PinnedMemory:
    """Pinned memory of which the program requested far less than torch took.

    Attributes:
        taken_bytes: The bytes that torch had taken from the system.
        requested_bytes: The bytes that the program requested of them.
        rounding_bytes: By how much torch rounded these requests up.
        cached_bytes: The bytes that were free, and kept for further requests.
        call_site: The line for which torch took most; None if it is unknown.
        limit_mib: The `pinned_max_cached_size_mb` that helps; None if none does.
        limited_bytes: The bytes that torch would have taken with it.
    """

    taken_bytes: int
    requested_bytes: int
    rounding_bytes: int
    cached_bytes: int
    call_site: Frame | None
    limit_mib: int | None
    limited_bytes: int


def pinned_memory(data: DeviceData) -> PinnedMemory | None:
    """Return the pinned memory that was not requested; None if it is little, or unknown.

    What is free and requested again later does not count: the moment is when most was requested, of
    the second half of the time since most was taken. Only the first device of a file has it.
    """
    snapshot, device = data.snapshot, data.snapshot.host_device
    if device is None or used_devices(snapshot)[:1] != [data.device]:
        return None
    host = device_data(snapshot, device)
    usage, trace = host.history.usage, host.trace
    if not host.history.is_known:
        return None
    times = (each.time_us[each.action != SNAPSHOT] for each in snapshot.traces)
    first = max(int(usage.reserved_bytes.argmax()), 1)
    middle = (int(trace.time_us[first - 1]) + max(int(each.max(initial=0)) for each in times)) / 2
    entry = max(first, int(np.searchsorted(trace.time_us, middle, "right")))
    entry += int(usage.requested_bytes[entry:].argmax())
    requested, active, taken = (
        int(column[entry])
        for column in (usage.requested_bytes, usage.active_bytes, usage.reserved_bytes)
    )
    if taken - requested < max(_LEAST_BYTES, _LEAST_PART * taken):
        return None
    is_new = trace.action == SEGMENT_ALLOC
    site = main_site(host, trace.stack[is_new], trace.size_bytes[is_new])
    limit = _limit(host, entry, taken)
    return PinnedMemory(taken, requested, active - requested, taken - active, site, *limit)


def _limit(host: DeviceData, entry: int, taken: int) -> tuple[int | None, int]:
    """Return the largest `pinned_max_cached_size_mb` that helps, and what would be taken then.

    Larger requests are neither rounded up nor kept when they are free. Of the setting that prevents
    only rounding, torch 2.13 overruns blocks: its issue 192722.
    """
    blocks = host.history.blocks
    active = blocks.at(blocks.are_active_at(entry))
    segments, used = segments_at(host.snapshot, host.device, entry), {*active.address.tolist()}
    free = np.array([each.size_bytes for each in segments if each.address not in used], np.int64)

    def taken_with(limit_mib: int) -> int:
        limit, requested = limit_mib * 2**20, active.requested_bytes
        kept = np.where(requested > limit, requested, active.size_bytes)
        return int(kept.sum() + free[free <= limit].sum())

    least = taken_with(1)
    if taken - least < _LEAST_BYTES:
        return None, taken
    found = (each for each in _LIMITS_MIB if 10 * (taken_with(each) - least) <= taken - least)
    limit = next(found)
    return limit, taken_with(limit)


def pinned_text(found: PinnedMemory) -> str:
    """Return what was taken, requested, and why, as a part of an answer."""
    requested = f"{size(found.requested_bytes)} requested"
    parts = []
    if found.rounding_bytes:
        parts.append(f"{size(found.rounding_bytes)} by rounding up to powers of two")
    if found.cached_bytes:
        requested = f"at most {requested} later"
        parts.append(f"{size(found.cached_bytes)} kept after it was freed")
    taken = f"{size(found.taken_bytes)} of pinned memory were taken"
    why = " and ".join(parts) + main_site_text(found.call_site)
    return f"{taken}, {requested}: {why}"
