"""The segments of a device at any entry of its history, with the blocks inside them.

A file has the segments of its end. `layout_at` undoes the segment events from there, and takes the
blocks from the history.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pytracer.analysis.allocator_rules import PAGE_BYTES, UNIT_BYTES
from pytracer.analysis.history import History, Lifetimes
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import (
    GIVES_MEMORY,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    TAKES_MEMORY,
    Blocks,
    Column,
    Snapshot,
    Trace,
)


@dataclass(frozen=True)
class Segment:
    """A segment, or a contiguous mapped part of an expandable one."""

    # Where it is.
    address: int
    size_bytes: int
    stream: int  # the stream of its blocks
    pool: int  # its memory pool, an index in the snapshot's pools
    is_small: bool  # whether it has blocks of at most 1 MiB
    is_expandable: bool  # whether it belongs to an expandable segment

    @property
    def end(self) -> int:
        """Return the address after the segment."""
        return self.address + self.size_bytes


@dataclass(frozen=True, eq=False)
class Layout:
    """The memory of a device at one moment."""

    segments: list[Segment]  # the segments, by address
    block_segment: Column  # int64, for each block in use the index of its segment; ascending
    # int64, by address.
    block_address: Column
    block_bytes: Column
    block_stack: Column  # uint32, an index in the snapshot's stacks


def layout_at(snapshot: Snapshot, device: int, history: History, entry: int) -> Layout:
    """Return the layout of a device at an entry of its history.

    Raises:
        PytracerError: The segment events do not lead to the segments of the file's end.
    """
    alive = np.flatnonzero(history.blocks.are_active_at(entry))
    return _with_blocks(segments_at(snapshot, device, entry), history.blocks, alive)


def largest_pieces(layout: Layout) -> Column:
    """Return the bytes of the largest free piece of each segment: int64.

    It is a gap between blocks: files of other recorders may lack free blocks.
    """
    begins = np.array([segment.address for segment in layout.segments], np.int64)
    ends = np.array([segment.end for segment in layout.segments], np.int64)
    gap_from = np.sort(np.append(begins, layout.block_address + layout.block_bytes))
    gap_to = np.sort(np.append(ends, layout.block_address))
    largest = np.zeros(len(begins), np.int64)
    segment_of = np.searchsorted(begins, gap_from, "right") - 1
    np.maximum.at(largest, segment_of, gap_to - gap_from)
    return largest


def segments_at(snapshot: Snapshot, device: int, entry: int) -> list[Segment]:
    """Return the segments of a device at an entry of its history, by address.

    Raises:
        PytracerError: The segment events do not lead to the segments of the file's end.
    """
    trace, at_end = snapshot.traces[device], segments_at_end(snapshot, device)
    is_change = np.isin(trace.action[entry:], [*TAKES_MEMORY, *GIVES_MEMORY])
    undone = (np.flatnonzero(is_change)[::-1] + entry).tolist()
    parts = [*at_end, *(_part(trace, event) for event in undone)]
    are_there = [True] * len(at_end) + [trace.action[event] in GIVES_MEMORY for event in undone]
    cuts = sorted({bound for part in parts for bound in (part.address, part.end)})
    part_of: list[Segment | None] = [None] * len(cuts)  # of each piece between two cuts
    for part, is_there in zip(parts, are_there, strict=True):
        for number in range(bisect_left(cuts, part.address), bisect_left(cuts, part.end)):
            if (part_of[number] is None) != is_there:
                raise PytracerError(
                    f"the segment events do not match the file's segments at {cuts[number]:#x}"
                )
            part_of[number] = part if is_there else None
    found: list[Segment] = []
    before: Segment | None = None
    for (begin, end), source in zip(pairwise(cuts), part_of, strict=False):
        if source is not None:
            is_same = before is not None and _belong_together(before, source)
            address = found.pop().address if is_same else begin
            found.append(replace(source, address=address, size_bytes=end - address))
        before = source
    return found


def _belong_together(first: Segment, second: Segment) -> bool:
    """Return whether two adjacent pieces are of one segment."""
    are_one = (first.stream, first.pool) == (second.stream, second.pool)
    return first is second or (first.is_expandable and second.is_expandable and are_one)


def _part(trace: Trace, event: int) -> Segment:
    return Segment(
        address=int(trace.address[event]),
        size_bytes=int(trace.size_bytes[event]),
        stream=int(trace.stream[event]),
        pool=int(trace.pool[event]),
        is_small=bool(are_small(trace.action[event], trace.size_bytes[event])),
        is_expandable=int(trace.action[event]) in (SEGMENT_MAP, SEGMENT_UNMAP),
    )


def are_small(action: Column, size_bytes: Column) -> Column:
    """Return whether segment events are of segments for blocks of at most 1 MiB: bool."""
    expands = (action == SEGMENT_MAP) | (action == SEGMENT_UNMAP)
    found: Column = np.where(expands, size_bytes % PAGE_BYTES != 0, size_bytes <= UNIT_BYTES)
    return found


def layout_at_end(snapshot: Snapshot, device: int) -> Layout:
    """Return the layout of a device at the end of the file, without its history."""
    used = snapshot.blocks_in_use(device)
    return _with_blocks(segments_at_end(snapshot, device), snapshot.blocks, used)


def segments_at_end(snapshot: Snapshot, device: int) -> list[Segment]:
    """Return the segments of a device at the end of the file, by address."""
    columns = snapshot.segments
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
    return sorted(segments, key=lambda segment: segment.address)


def _with_blocks(segments: list[Segment], blocks: Lifetimes | Blocks, rows: Column) -> Layout:
    rows = rows[np.argsort(blocks.address[rows], kind="stable")]
    address = blocks.address[rows]
    begins = np.array([segment.address for segment in segments], np.int64)
    block_segment = np.searchsorted(begins, address, "right") - 1
    if np.any(block_segment < 0):
        raise PytracerError("a block is in no segment")
    return Layout(segments, block_segment, address, blocks.size_bytes[rows], blocks.stack[rows])
