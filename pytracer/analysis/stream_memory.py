"""Memory that streams keep from each other, although the program does not hold it.

Each stream has free memory of its own, which others cannot use: a program that makes a new stream
in each step reserves more and more. And a block that the program has freed cannot be used while
another stream uses it (`record_stream`): until then, the allocator takes more from the device.
"""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.blocks import blocks_of, held_at, sum_by_group
from pytracer.analysis.call_sites import UNKNOWN, frame_at
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.layout import segments_at
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import ALLOC, Column, Frame
from pytracer.reading.steps import step_at
from pytracer.text import size

_LEAST_BYTES = 256 * 2**20
_LEAST_PART = 0.2  # the least part of the reserved memory that is worth a verdict
_LEAST_STREAMS, _MOST_AT_ONCE = 8, 2
"""Before a step has ended, or if they are used again: so many streams, of which so few had blocks
in use at a time."""


@dataclass(frozen=True)
class StreamMemory:
    """Memory that is of no use because of streams.

    Attributes:
        kind: "idle": cached on streams without a block in use, but for cuBLAS's workspaces, that
            have not allocated for a complete step. "in turn": the same of many streams that were
            used one after the other, before a step has ended, or that are used again later.
            "waiting": in blocks that were freed, but that a stream still uses.
        streams: The number of streams that the memory belongs to, of idle ones at least two.
        size_bytes: The bytes of their segments, or of the blocks that wait.
        step: The step in which blocks of most bytes wait; None for idle streams, or without steps.
        call_site: The line that allocated most of it; None if it is unknown.
        freed_at: The line that freed most of what this line allocated, if the blocks wait; None if
            it is unknown.
    """

    kind: str
    streams: int
    size_bytes: int
    step: int | None
    call_site: Frame | None
    freed_at: Frame | None


def waiting_text(found: StreamMemory) -> str:
    """Return sentences about freed memory that a stream still uses, without a subject."""
    text = "were freed while another stream still used them (record_stream)"
    text += main_site_text(found.call_site)
    if found.freed_at is not None:
        text += f", freed by {call_site_text(found.freed_at)}"
    return f"{text}. Until that stream is done, the allocator takes more from the device."


def main_site_text(call_site: Frame | None) -> str:
    """Return a clause about the line that allocated most of it; "" if it is unknown."""
    return "" if call_site is None else f", most of it for {call_site_text(call_site)}"


def idle_streams_text(found: StreamMemory) -> str:
    """Return sentences about memory that is cached on idle streams."""
    which = "no longer uses" if found.kind == "idle" else "used one after the other"
    return (
        f"{size(found.size_bytes)} are cached on {found.streams} streams that the program {which}"
        f"{main_site_text(found.call_site)}. Other streams cannot use this memory."
    )


def stream_memory(data: DeviceData, entry: int, *, at_once: bool = False) -> StreamMemory | None:
    """Return the memory that streams keep from each other; None if it is little, or unknown.

    Args:
        data: The device, with a history.
        entry: The entry of the history for which idle streams are looked for.
        at_once: Whether blocks have to wait for a stream at this entry, and not at any.
    """
    return idle_streams(data, entry) or _waiting(data, entry if at_once else None)


def idle_streams(data: DeviceData, entry: int) -> StreamMemory | None:
    """Return the memory of streams that are not used any more; None if it is little, or unknown.

    Args:
        data, entry: As for `stream_memory`.
    """
    begins = [first for _, first in data.boundaries if first < entry]
    has_step = len(begins) > 1
    try:
        segments = segments_at(data.snapshot, data.device, entry)
    except PytracerError:
        return None
    trace, blocks = data.trace, data.history.blocks
    # A stream has these for ever once it has multiplied matrices.
    is_workspace = blocks_of(data).is_in("category", "workspace")
    used = {*blocks.stream[blocks.are_active_at(entry) & ~is_workspace].tolist()}
    is_alloc = trace.action == ALLOC
    end = next((first for _, first in data.boundaries if first >= entry), len(trace))
    if has_step:
        used |= {*trace.stream[begins[-2] : end][is_alloc[begins[-2] : end]].tolist()}
    idle = [segment for segment in segments if segment.stream not in used]
    streams = {segment.stream for segment in idle}
    cached = sum(segment.size_bytes for segment in idle)
    reserved = sum(segment.size_bytes for segment in segments)
    if len(streams) < 2 or cached < max(_LEAST_BYTES, _LEAST_PART * reserved):
        return None
    # torch hands its streams out in turn: a new one may be one that was used long ago.
    is_idle = has_step and streams.isdisjoint(trace.stream[end:][is_alloc[end:]].tolist())
    if not is_idle and (
        len(streams) < _LEAST_STREAMS
        or _used_at_once(data, np.isin(blocks.stream, list(streams)) & ~is_workspace)
        > _MOST_AT_ONCE
    ):
        return None
    of_streams = np.flatnonzero(is_alloc & np.isin(trace.stream, list(streams)))
    site = main_site(data, trace.stack[of_streams], trace.size_bytes[of_streams])
    return StreamMemory("idle" if is_idle else "in turn", len(streams), cached, None, site, None)


def _used_at_once(data: DeviceData, are_chosen: Column) -> int:
    """Return how many streams had some of these blocks in use at the same time, at most."""
    blocks = data.history.blocks
    rows = np.flatnonzero(are_chosen)
    last = len(data.trace)
    begin = blocks.alloc_event[rows]
    end = np.where(blocks.free_event[rows] < 0, last, blocks.free_event[rows])
    event, change = np.concatenate([begin, end]), np.repeat([1, -1], len(rows))
    stream = np.tile(blocks.stream[rows], 2)
    in_turn = np.lexsort((-change, event, stream))
    event, change, stream = event[in_turn], change[in_turn], stream[in_turn]
    # The changes of each stream add up to 0, so that one sum serves for all streams.
    blocks_in_use = np.cumsum(change)
    starts = (blocks_in_use == 1) & (change == 1)
    stops = (blocks_in_use == 0) & (change == -1)
    at = np.concatenate([event[starts], event[stops]])
    by_one = np.repeat([1, -1], [int(starts.sum()), int(stops.sum())])
    return int(np.cumsum(by_one[np.lexsort((by_one, at))]).max(initial=0))


def _waiting(data: DeviceData, at: int | None) -> StreamMemory | None:
    """Return what waits for a stream at an entry; None: when most bytes do."""
    usage, trace = data.history.usage, data.trace
    # Each block waits from one of its two events to the other: what matters is allocated meanwhile.
    entries = np.flatnonzero(trace.action == ALLOC) + 1 if at is None else np.array([at])
    waits = usage.active_bytes[entries] - usage.allocated_bytes[entries]
    most = int(waits.max(initial=0))
    entry = int(entries[waits.argmax()]) if most else 0
    if most < max(_LEAST_BYTES, _LEAST_PART * int(usage.reserved_bytes[entry])):
        return None
    held = held_at(data, entry)
    waiting = held.where(held["free_requested_event"] < entry)
    main = next((one.key[0] for one in waiting.group("site")), UNKNOWN)
    is_main = waiting.is_in("site", main) & (waiting["free_requested_event"] >= 0)
    of_main = waiting.where(is_main)
    return StreamMemory(
        "waiting",
        len(waiting.group("stream")),
        most,
        step_at(data.boundaries, entry - 1),
        frame_at(data.snapshot.stacks, main),
        main_site(data, trace.stack[of_main["free_requested_event"]], of_main["size_bytes"]),
    )


def main_site(data: DeviceData, stack: Column, size_bytes: Column) -> Frame | None:
    """Return the call site that has most bytes, of stacks with their bytes."""
    sites, site = np.unique(data.chains.sites[stack], return_inverse=True)
    sizes = sum_by_group(site, size_bytes, len(sites))
    return frame_at(data.snapshot.stacks, int(sites[sizes.argmax()])) if len(stack) else None
