"""Which segments of a device have free memory when a request fails, and what it could use."""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytracer.analysis.allocator_rules import SMALL_BYTES
from pytracer.analysis.blocks import sum_by_group
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.layout import Segment, largest_pieces, layout_at, layout_at_end
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Frame, Trace


@dataclass(frozen=True)
class FreePool:
    """A memory pool that has segments without a block in use.

    Attributes:
        name: The pool as torch numbers it, as in "(0, 3)".
        segment_bytes: The bytes of these segments.
        call_site: The line that allocated the largest block of the pool; None if it is unknown.
        streams: The number of streams that these segments belong to.
        pools: The number of pools that have such segments, of which this one has most.
        all_bytes: The bytes of such segments in all these pools.
    """

    name: str
    segment_bytes: int
    call_site: Frame | None
    streams: int
    pools: int
    all_bytes: int


class Free(NamedTuple):
    """The free bytes of a segment, and those of its largest free piece."""

    free: int
    largest: int


def free_segments(data: DeviceData, event: int, is_at_end: bool) -> dict[Segment, Free] | None:
    """Return the segments at an event that are not full; None if the segments are unknown.

    Args:
        data: The device.
        event: The event.
        is_at_end: Whether the state at the event is that of the file's end.
    """
    try:
        layout = (
            layout_at_end(data.snapshot, data.device)
            if is_at_end
            else layout_at(data.snapshot, data.device, data.history, event + 1)
        )
    except PytracerError:
        return None
    used = sum_by_group(layout.block_segment, layout.block_bytes, len(layout.segments))
    largest = largest_pieces(layout)
    return {
        segment: Free(segment.size_bytes - in_use, piece)
        for segment, in_use, piece in zip(
            layout.segments, used.tolist(), largest.tolist(), strict=True
        )
        if segment.size_bytes > in_use
    }


def own_pool(trace: Trace, event: int, free_of: dict[Segment, Free]) -> dict[Segment, Free]:
    """Return the segments that could serve the request of an event."""
    pool, is_small = trace.pool[event], trace.size_bytes[event] <= SMALL_BYTES
    return {
        segment: part
        for segment, part in free_of.items()
        if segment.pool == pool and segment.is_small == is_small
    }


def other_pool(data: DeviceData, event: int, free_of: dict[Segment, Free]) -> FreePool | None:
    """Return the pool with most free segments of those that the request of an event cannot use."""
    others: dict[int, int] = defaultdict(int)
    streams: dict[int, set[int]] = defaultdict(set)
    for segment, part in free_of.items():
        if segment.pool != data.trace.pool[event] and part.free == segment.size_bytes:
            others[segment.pool] += part.free
            streams[segment.pool].add(segment.stream)
    if not others:
        return None
    pool = max(others, key=others.__getitem__)
    blocks = data.history.blocks
    rows = np.flatnonzero((blocks.pool == pool) & (blocks.alloc_event >= 0))
    high, low = data.snapshot.pools[pool].tolist()
    return FreePool(
        name=f"({high}, {low})",
        segment_bytes=others[pool],
        call_site=data.chains.site(int(blocks.stack[rows[blocks.size_bytes[rows].argmax()]]))
        if len(rows)
        else None,
        streams=len(streams[pool]),
        pools=len(others),
        all_bytes=sum(others.values()),
    )
