"""The memory at the first event of a trace, from which a simulation of its requests starts.

A ring that wrapped has lost the events that made this memory. The final state and the trace give
the segments and blocks at the first event (see `layout_at`). They do not give the order in which
these were created, which decides between free blocks of the same size. The trace shows part of it:
of several such blocks, the allocator took the first one first.
"""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.allocator_rules import SMALL_BYTES, UNIT_BYTES
from pytracer.analysis.history import History, Lifetimes
from pytracer.analysis.layout import Layout, Segment, layout_at
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import (
    ALLOC,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    TAKES_MEMORY,
    Column,
    Snapshot,
    Trace,
)


@dataclass(frozen=True, eq=False)
class Start:
    """The segments of a device at one moment, and the blocks that fill them: both by address."""

    settings: str  # the settings of the allocator that made it, as in `Recording`
    address: Column  # int64, by segment: the distance to the lowest address of the file
    # int64, the same of the lowest known address of the expandable segment; 0 for other segments.
    range_address: Column
    size_bytes: Column  # int64, the bytes of the segment
    # int64, as in `Requests`.
    stream: Column
    pool: Column
    order: Column  # int64, the place among all segments, in the order of their creation
    is_small: Column  # bool, whether the segment serves requests of at most 1 MiB
    is_expandable: Column  # bool, whether it is a mapped part of an expandable segment
    block_segment: Column  # int64, by block: the index of its segment
    block_size_bytes: Column  # int64, the bytes of the block
    block_number: Column  # int64, the block in `Requests.block`; -1: the block is free
    block_order: Column  # int64, the place among all blocks, in the order of their creation

    @property
    def kept_bytes(self) -> int:
        """The free bytes in private pools, which never go back to the device."""
        is_kept = (self.block_number < 0) & (self.pool[self.block_segment] > 0)
        return int(self.block_size_bytes[is_kept].sum())


def start_of(snapshot: Snapshot, device: int, history: History, settings: str) -> Start | None:
    """Return the memory of a device at the first event.

    The streams and pools are those of the snapshot. Blocks in use are counted by address, as
    `block_order` counts blocks older than the trace.

    Returns:
        None if no memory was reserved, or if the file does not show which.
    """
    if int(history.usage.reserved_bytes[0]) == 0:
        return None
    try:
        layout = layout_at(snapshot, device, history, 0)
    except PytracerError:
        return None
    trace, segments = snapshot.traces[device], layout.segments
    is_expandable = np.array([segment.is_expandable for segment in segments])
    is_small = _are_small(segments, trace, history.blocks)
    address = _column(segment.address for segment in segments)
    taken = trace.address[np.isin(trace.action, TAKES_MEMORY)]
    lowest = int(np.concatenate((taken, address)).min())
    size_bytes = _column(segment.size_bytes for segment in segments)
    begin, end, number = _filled(layout, address, address + size_bytes)
    if np.any(end < begin):  # blocks overlap in a damaged file
        return None
    begin, end, number = (column[end > begin] for column in (begin, end, number))
    segment = np.searchsorted(address, begin, "right") - 1
    first_use = _first_use(trace, begin)
    earliest = np.full(len(segments), len(trace))
    np.minimum.at(earliest, segment, first_use)
    return Start(
        settings=settings,
        address=address - lowest,
        range_address=_range_addresses(trace, segments, is_small, lowest),
        size_bytes=size_bytes,
        stream=_column(segment.stream for segment in segments),
        pool=_column(segment.pool for segment in segments),
        order=_ranks(earliest, address),
        is_small=is_small,
        is_expandable=is_expandable,
        block_segment=segment,
        block_size_bytes=end - begin,
        block_number=number,
        block_order=_ranks(first_use, begin),
    )


def _column(values: object) -> Column:
    column: Column = np.array(list(values), np.int64)  # type: ignore[call-overload]
    return column


def _filled(layout: Layout, address: Column, end: Column) -> tuple[Column, Column, Column]:
    """Return where blocks begin and end, and their numbers; the free ones may be empty."""
    used, used_end = layout.block_address, layout.block_address + layout.block_bytes
    free = np.concatenate((address, used_end))
    free_end = np.concatenate((end, end[layout.block_segment]))
    following = np.append(used, np.iinfo(np.int64).max)[np.searchsorted(used, free)]
    begins = np.concatenate((used, free))
    ends = np.concatenate((used_end, np.minimum(free_end, following)))
    number = np.concatenate((np.arange(len(used)), np.full(len(free), -1)))
    order = np.lexsort((ends, begins))
    return begins[order], ends[order], number[order]


def _are_small(segments: list[Segment], trace: Trace, blocks: Lifetimes) -> Column:
    """Return which segments are of the small pool: bool.

    The first block in a mapped part shows it. The size of the part does not, because it may be of
    several pages. After a part is unmapped, another expandable segment may get its addresses.
    """
    found = np.array([segment.is_small for segment in segments])
    by_address = np.argsort(blocks.address, kind="stable")
    address = blocks.address[by_address]
    unmaps = np.flatnonzero(trace.action == SEGMENT_UNMAP)
    begin = trace.address[unmaps]
    for i, segment in enumerate(segments):
        if not segment.is_expandable:
            continue
        low, high = np.searchsorted(address, (segment.address, segment.end))
        gone = unmaps[(begin >= segment.address) & (begin < segment.end)]
        first = int(by_address[low:high].min(initial=len(blocks)))
        if first < len(blocks) and blocks.alloc_event[first] < min(gone, default=len(trace)):
            found[i] = blocks.size_bytes[first] <= SMALL_BYTES
    return found


def _range_addresses(
    trace: Trace, segments: list[Segment], is_small: Column, lowest_address: int
) -> Column:
    """Return the lowest address of the same stream and pool that is, or will be, mapped."""
    (maps,) = np.nonzero(trace.action == SEGMENT_MAP)
    lowest: dict[tuple[int, int, bool], int] = {}

    def note(stream: int, pool: int, is_small: bool, address: int) -> None:
        key = (stream, pool, is_small)
        lowest[key] = min(lowest.get(key, address), address)

    for i in maps.tolist():
        # The small pool maps one page at a time.
        is_page = int(trace.size_bytes[i]) <= UNIT_BYTES
        note(int(trace.stream[i]), int(trace.pool[i]), is_page, int(trace.address[i]))
    for segment, small in zip(segments, is_small.tolist(), strict=True):
        if segment.is_expandable:
            note(segment.stream, segment.pool, small, segment.address)
    return _column(
        lowest[segment.stream, segment.pool, small] - lowest_address if segment.is_expandable else 0
        for segment, small in zip(segments, is_small.tolist(), strict=True)
    )


def _first_use(trace: Trace, address: Column) -> Column:
    """Return the first allocation at each address; the number of events where there is none."""
    events = np.flatnonzero(trace.action == ALLOC)
    used, first = np.unique(trace.address[events], return_index=True)
    if len(used) == 0:
        return np.full(len(address), len(trace))
    place = np.minimum(np.searchsorted(used, address), len(used) - 1)
    found: Column = np.where(used[place] == address, events[first[place]], len(trace))
    return found


def _ranks(first: Column, then: Column) -> Column:
    """Return the place of each element in the order of two keys: int64."""
    ranks = np.empty(len(first), np.int64)
    ranks[np.lexsort((then, first))] = np.arange(len(first))
    return ranks
