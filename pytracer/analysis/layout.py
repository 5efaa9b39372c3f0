"""The segments of a device at any entry of its history, with the blocks inside them.

A file has the segments of its end. `layout_at` undoes the segment events from there, and takes the
blocks from the history.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from pytracer.analysis.allocator_rules import PAGE_BYTES, UNIT_BYTES
from pytracer.analysis.call_sites import active_at
from pytracer.analysis.history import History
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import (
    INACTIVE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Column,
    Snapshot,
)


@dataclass(frozen=True)
class Segment:
    """A segment, or a contiguous mapped part of an expandable one.

    Attributes:
        address, size_bytes: Where it is.
        stream: The stream of its blocks.
        pool: Its memory pool, an index in the snapshot's pools.
        is_small: Whether it has blocks of at most 1 MiB.
        is_expandable: Whether it belongs to an expandable segment.
    """

    address: int
    size_bytes: int
    stream: int
    pool: int
    is_small: bool
    is_expandable: bool

    @property
    def end(self) -> int:
        """Return the address after the segment."""
        return self.address + self.size_bytes


@dataclass(frozen=True, eq=False)
class Layout:
    """The memory of a device at one moment.

    Attributes:
        segments: The segments, by address.
        block_segment: int64, for each block in use the index of its segment; ascending.
        block_address, block_bytes: int64, by address.
        block_stack: uint32, an index in the snapshot's stacks.
    """

    segments: list[Segment]
    block_segment: Column
    block_address: Column
    block_bytes: Column
    block_stack: Column


def layout_at(snapshot: Snapshot, device: int, history: History, entry: int) -> Layout:
    """Return the layout of a device at an entry of its history.

    Raises:
        PytracerError: The segment events do not lead to the segments of the file's end.
    """
    blocks, alive = history.blocks, np.flatnonzero(active_at(history, entry))
    segments = _Segments(layout_at_end(snapshot, device).segments)
    trace = snapshot.traces[device]
    changes = np.isin(trace.action, (SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP))
    for event in np.flatnonzero(changes)[::-1].tolist():
        if event < entry:
            break
        action, size = int(trace.action[event]), int(trace.size_bytes[event])
        expands = action in (SEGMENT_MAP, SEGMENT_UNMAP)
        is_small = size % PAGE_BYTES != 0 if expands else size <= UNIT_BYTES
        part = Segment(
            int(trace.address[event]),
            size,
            int(trace.stream[event]),
            int(trace.pool[event]),
            is_small,
            expands,
        )
        if action in (SEGMENT_ALLOC, SEGMENT_MAP):
            segments.remove(part)
        else:
            segments.add(part)
    return _with_blocks(
        segments.all(), blocks.address[alive], blocks.size_bytes[alive], blocks.stack[alive]
    )


def layout_at_end(snapshot: Snapshot, device: int) -> Layout:
    """Return the layout of a device at the end of the file, without its history."""
    columns, blocks = snapshot.segments, snapshot.blocks
    segments = [
        Segment(
            int(columns.address[i]),
            int(columns.size_bytes[i]),
            int(columns.stream[i]),
            int(columns.pool[i]),
            snapshot.strings[columns.kind[i]] == "small",
            bool(columns.is_expandable[i]),
        )
        for i in np.flatnonzero(columns.device == device)
    ]
    used = np.flatnonzero((blocks.state != INACTIVE) & (columns.device[blocks.segment] == device))
    return _with_blocks(
        sorted(segments, key=lambda segment: segment.address),
        blocks.address[used],
        blocks.size_bytes[used],
        blocks.stack[used],
    )


def _with_blocks(
    segments: list[Segment], address: Column, size_bytes: Column, stack: Column
) -> Layout:
    order = np.argsort(address, kind="stable")
    begins = np.array([segment.address for segment in segments], np.int64)
    block_segment = np.searchsorted(begins, address[order], "right") - 1
    if np.any(block_segment < 0):
        raise PytracerError("a block is in no segment")
    return Layout(
        segments=segments,
        block_segment=block_segment,
        block_address=address[order],
        block_bytes=size_bytes[order],
        block_stack=stack[order],
    )


class _Segments:
    """Segments by address, in which parts of expandable segments are added and removed."""

    def __init__(self, segments: list[Segment]) -> None:
        self._begins = [segment.address for segment in segments]
        self._by_begin = {segment.address: segment for segment in segments}

    def all(self) -> list[Segment]:
        return [self._by_begin[begin] for begin in self._begins]

    def add(self, part: Segment) -> None:
        """Add a part, joined with the mapped parts of its expandable segment around it."""
        before, after = self._around(part.address)
        if before is not None and before.end == part.address and _belong_together(before, part):
            self._drop(before)
            part = replace(before, size_bytes=before.size_bytes + part.size_bytes)
        if after is not None and part.end == after.address and _belong_together(part, after):
            self._drop(after)
            size_bytes = part.size_bytes + after.size_bytes
            part = replace(after, address=part.address, size_bytes=size_bytes)
        self._put(part)

    def remove(self, part: Segment) -> None:
        """Remove a part, which may leave a piece of the segment on each side."""
        found, _ = self._around(part.address)
        if found is None or found.end < part.end:
            raise PytracerError(
                f"the segment events do not lead to the file's segments: at {part.address:#x}"
            )
        self._drop(found)
        if found.address < part.address:
            self._put(replace(found, size_bytes=part.address - found.address))
        if part.end < found.end:
            self._put(replace(found, address=part.end, size_bytes=found.end - part.end))

    def _around(self, address: int) -> tuple[Segment | None, Segment | None]:
        """Return the last segment that begins at an address or before, and the next one."""
        at = bisect_right(self._begins, address)
        before = self._by_begin[self._begins[at - 1]] if at else None
        after = self._by_begin[self._begins[at]] if at < len(self._begins) else None
        return before, after

    def _put(self, segment: Segment) -> None:
        self._begins.insert(bisect_right(self._begins, segment.address), segment.address)
        self._by_begin[segment.address] = segment

    def _drop(self, segment: Segment) -> None:
        self._begins.pop(bisect_right(self._begins, segment.address) - 1)
        del self._by_begin[segment.address]


def _belong_together(first: Segment, second: Segment) -> bool:
    """Return whether two adjacent parts are of one expandable segment."""
    return (
        first.is_expandable
        and second.is_expandable
        and (first.stream, first.pool) == (second.stream, second.pool)
    )
