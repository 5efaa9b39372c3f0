"""Out-of-memory errors, the retries that avoided some, and how much memory a process could have.

Each has what was requested, what was free, and whether the free memory was enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytracer.analysis.allocator_rules import PAGE_BYTES, SMALL_BYTES, UNIT_BYTES
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.free_segments import FreePool, free_segments, other_pool, own_pool
from pytracer.analysis.history import History
from pytracer.analysis.holder_names import is_of_exception
from pytracer.analysis.usage import UsageSample, final_sample, sample_at, time_of
from pytracer.reading.snapshot import (
    ALLOC,
    ANNOTATE,
    GIVES_MEMORY,
    OOM,
    SNAPSHOT,
    TAKES_MEMORY,
    WORKSPACE_SNAPSHOT,
    Frame,
    Snapshot,
    Trace,
)
from pytracer.reading.steps import step_at


@dataclass(frozen=True)
class OutOfMemory:
    """One out-of-memory: an allocation that failed.

    `fits_...` compare sizes only, although an allocation cannot use a free block of another stream
    or pool. None means unknown: there is no history, or the sizes of free blocks are not known
    exactly enough.

    Attributes:
        event: The index of the event.
        time_us: The time of the event; None if unknown.
        step: The step of the event; None if unknown.
        phase: The phase of the event; "" for no phase.
        requested_bytes: The size of the allocation.
        segment_bytes: The size of the segment that the allocator needed for the allocation.
        device_free_bytes: The free memory of the device, as its driver reported it.
        available_bytes: The bytes that the allocator could still take from the device:
            `device_free_bytes`, or less if the process has a limit
            (`set_per_process_memory_fraction`).
        limit_bytes: The bytes that the allocator may reserve on the device, at most all of it; None
            if unknown.
        free_in_segments_bytes: The bytes of all free blocks in the allocator's segments; an upper
            bound if `sample` is not exact. None without a history.
        own_pool_free_bytes: The part of `free_in_segments_bytes` in segments that the allocation
            could use if it was in one piece and on its stream: those of its memory pool, for blocks
            of its size. None, as the following three, if this is not the last out-of-memory error
            of the file, or `sample` is not exact.
        own_pool_segments: The number of these segments that have free memory.
        own_pool_streams: The number of streams of these segments.
        own_pool_largest_bytes: The largest free piece in those of the allocation's stream.
        other_pool: The pool with most free segments of those that the allocation could not use,
            such as a CUDA graph's; None if no other pool has one.
        fits_in_largest_block: Whether the largest free block is as large as the request.
        fits_in_free_blocks: Whether all free blocks together are as large as the request.
        fits_if_joined: Whether all free blocks and `available_bytes` together are as large as the
            request. `pytracer show` needs more than that to call memory fragmented. None for
            the CPU.
        is_one_pool: Whether all segments and events of the device belong to one stream and one
            memory pool, so that any free block can serve any request.
        elsewhere_bytes: The device's total bytes, minus `device_free_bytes`, minus the allocator's
            reserved bytes: memory of other processes, and of this process outside the allocator.
            None if unknown.
        call_site: The call site of the allocation.
        callers: The program's frames that called the call site, innermost first.
        is_at_end: Whether the file's final state is the state at the out-of-memory error, because
            no event that changes it follows. Then everything about the state is exact.
        has_allocated_since: Whether the file has allocations after it, so that the program went on.
        earlier_peak_bytes: The most bytes that were allocated at any time before; None without a
            history.
        sample: The usage of the device at that time; None without a history.
        library_error: The error of the library that asked the device for memory, without the
            allocator, and the line of the program; None if the allocator asked. The sizes of such
            a request are 0, for unknown.
    """

    event: int
    time_us: int | None
    step: int | None
    phase: str
    requested_bytes: int
    segment_bytes: int
    device_free_bytes: int
    available_bytes: int
    limit_bytes: int | None
    free_in_segments_bytes: int | None
    own_pool_free_bytes: int | None
    own_pool_segments: int | None
    own_pool_streams: int | None
    own_pool_largest_bytes: int | None
    other_pool: FreePool | None
    fits_in_largest_block: bool | None
    fits_in_free_blocks: bool | None
    fits_if_joined: bool | None
    is_one_pool: bool
    elsewhere_bytes: int | None
    call_site: Frame | None
    callers: list[Frame]
    is_at_end: bool
    has_allocated_since: bool
    earlier_peak_bytes: int | None
    sample: UsageSample | None
    library_error: str | None

    @property
    def most_reserved_bytes(self) -> int:
        """What the allocator could have: what it had reserved, and what was available to it."""
        return self.available_bytes + (0 if self.sample is None else self.sample.reserved_bytes)


def out_of_memories(data: DeviceData) -> list[OutOfMemory]:
    """Return each out-of-memory error of a device."""
    snapshot, device, trace, history = data.snapshot, data.device, data.trace, data.history
    events = np.flatnonzero(trace.action == OOM).tolist()
    if not events:
        return []
    chains, is_known = data.chains, history.is_known
    limit, is_one_pool = _limit(data), _is_one_pool(data)
    record = snapshot.metadata.oom_of(device)
    tried = 0 if record is None else record.requested_bytes or 0
    last_alloc = int(np.flatnonzero(trace.action == ALLOC).max(initial=-1))
    # The state of a file whose trace does not lead to it may be that of a later moment.
    at_end = _event_at_end(trace) if is_known and history.has_bounds else -1
    found = []
    for event in events:
        requested, free = int(trace.size_bytes[event]), int(trace.address[event])
        time_us, step = time_of(trace, event), step_at(data.boundaries, event)
        phase, stack = snapshot.strings[trace.user_metadata[event]], int(trace.stack[event])
        sample = sample_at(data, event + 1) if is_known else None
        if event == at_end:
            sample = replace(
                final_sample(data), event=event, time_us=time_us, step=step, phase=phase
            )
        is_last_and_exact = event == events[-1] and sample is not None and sample.is_exact
        stream = int(trace.stream[event])
        free_of = free_segments(data, event, event == at_end) if is_last_and_exact else None
        own = None if free_of is None else own_pool(trace, event, free_of)
        reserved = None if sample is None else sample.reserved_bytes
        fits = partial(_fits, sample=sample)
        available = free
        if limit is not None and reserved is not None:
            available = min(free, max(limit - reserved, 0))
        found.append(
            OutOfMemory(
                event=event,
                time_us=time_us,
                step=step,
                phase=phase,
                requested_bytes=requested,
                segment_bytes=max(_segment_bytes(requested), tried if event == at_end else 0),
                device_free_bytes=free,
                available_bytes=available,
                limit_bytes=limit,
                free_in_segments_bytes=None if sample is None else sample.free_bytes,
                own_pool_free_bytes=None
                if own is None
                else sum(part.free for part in own.values()),
                own_pool_segments=None if own is None else len(own),
                own_pool_streams=None if own is None else len({each.stream for each in own}),
                own_pool_largest_bytes=None
                if own is None
                else max(
                    (part.largest for each, part in own.items() if each.stream == stream), default=0
                ),
                other_pool=None if free_of is None else other_pool(data, event, free_of),
                fits_in_largest_block=fits(requested, "largest_free_bytes"),
                fits_in_free_blocks=fits(requested, "free_bytes"),
                fits_if_joined=None if data.is_cpu else fits(requested - available, "free_bytes"),
                is_one_pool=is_one_pool,
                elsewhere_bytes=remainder(data.metadata.total_bytes, free, reserved),
                call_site=chains.site(stack),
                callers=chains.caller_frames(stack),
                is_at_end=event == at_end,
                has_allocated_since=event < last_alloc,
                earlier_peak_bytes=int(history.usage.allocated_bytes[: event + 2].max())
                if is_known
                else None,
                sample=sample,
                library_error=record.library_error if record and event == events[-1] else None,
            )
        )
    return found


def _event_at_end(trace: Trace) -> int:
    """Return the index of the last event that is not a mark; -1 if there is none."""
    marks = np.isin(trace.action, (SNAPSHOT, WORKSPACE_SNAPSHOT, ANNOTATE))
    return int(np.flatnonzero(~marks)[-1]) if not marks.all() else -1


def _segment_bytes(requested_bytes: int) -> int:
    """Return the size of the segment that torch's allocators take for a request."""
    if requested_bytes <= SMALL_BYTES:
        return UNIT_BYTES
    if requested_bytes < PAGE_BYTES // 2:
        return PAGE_BYTES
    return -(-requested_bytes // UNIT_BYTES) * UNIT_BYTES


def _is_one_pool(data: DeviceData) -> bool:
    segments, trace = data.snapshot.segments, data.trace
    is_own = segments.device == data.device
    pairs = ((segments.stream, trace.stream), (segments.pool, trace.pool))
    return all(len(np.union1d(here[is_own], there)) <= 1 for here, there in pairs)


def is_of_failure(data: DeviceData) -> Callable[[str], bool]:
    """Return a function: whether a holder is an exception that the program could have dropped.

    In a file of the end, the last uncaught exception is the end of the program.
    """
    return partial(is_of_exception, may_go_on=is_oom_snapshot(data))


def is_oom_snapshot(data: DeviceData) -> bool:
    """Return whether the file was written because this device was out of memory.

    Files of other recorders do not contain the reason. If it was an out-of-memory error, that is
    the last event of the trace.
    """
    if data.snapshot.metadata.is_pytracers:
        return data.snapshot.metadata.oom_of(data.device) is not None
    actions = data.trace.action
    actions = actions[actions != SNAPSHOT]
    return len(actions) > 0 and bool(actions[-1] == OOM)


def remainder(total: int | None, *parts: int | None) -> int | None:
    """Return the total minus its parts; None if one is unknown, or the result is below 0."""
    known = [part for part in parts if part is not None]
    if total is None or len(known) < len(parts) or sum(known) > total:
        return None
    return total - sum(known)


def _limit(data: DeviceData) -> int | None:
    """Return the bytes that the process may take of the device; None if unknown or unlimited."""
    record = data.snapshot.metadata.oom_of(data.device)
    if data.is_cpu:
        return None
    if record is not None and record.total_bytes is not None:
        return record.total_bytes
    fraction, total = data.metadata.memory_fraction, data.metadata.total_bytes
    if total is not None and fraction is not None and 0 <= fraction < 1:
        return int(fraction * total)
    return None


def _fits(requested_bytes: int, name: str, sample: UsageSample | None) -> bool | None:
    """Return whether a request fits into `largest_free_bytes` or `free_bytes` of a sample.

    If the sample is not exact, these are upper bounds, too large by up to `uncertain_bytes`.
    """
    if sample is None or sample.uncertain_bytes is None:
        return None
    left_bytes = getattr(sample, name) - requested_bytes
    return None if 0 <= left_bytes < sample.uncertain_bytes else left_bytes >= 0


def count_retries(trace: Trace) -> int:
    """Estimate how often the allocator gave its cached memory back and tried again.

    `memory_stats()` counts these as `num_alloc_retries`; traces have no event for them. A retry
    shows in a trace as memory that is taken from the device directly after memory was given back,
    or as an out-of-memory error, before which the allocator always tries again. The estimate is too
    high where memory is given back for another reason just before more is taken: by
    `empty_cache()`, by the allocator's garbage collector (`garbage_collection_threshold`), or, with
    `max_split_size_mb`, by the release of some cached blocks, which torch does not count. It is
    also too high for an out-of-memory error under graph capture, where the allocator does not try
    again. It is too low for a retry that had nothing to give back and found memory that another
    process had just freed.
    """
    took = np.isin(trace.action, TAKES_MEMORY)
    gave_back = np.isin(trace.action, GIVES_MEMORY)
    return int(np.count_nonzero(took[1:] & gave_back[:-1]) + np.count_nonzero(trace.action == OOM))


def limit_bytes_of(snapshot: Snapshot, device: int, history: History) -> int | None:
    """Return how many bytes a device's allocator could reserve; None if unknown.

    The limit is the sum of the reserved and the free memory at the last out-of-memory error, or
    else when the file was written, and at most the memory fraction.
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
