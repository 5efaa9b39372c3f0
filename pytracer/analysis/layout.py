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
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
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
    of, address = layout.block_segment, layout.block_address
    largest = ends - begins
    largest[of] = 0
    is_first = np.append(True, of[1:] != of[:-1])[: len(of)]
    is_last = np.append(of[1:] != of[:-1], True)[: len(of)]
    end = address + layout.block_bytes
    before = np.where(is_first, begins[of], np.roll(end, 1))
    np.maximum.at(largest, of, address - before)
    np.maximum.at(largest, of[is_last], ends[of[is_last]] - end[is_last])
    return largest


def segments_at(snapshot: Snapshot, device: int, entry: int) -> list[Segment]:
    """Return the segments of a device at an entry of its history, by address.

    Raises:
        PytracerError: The segment events do not lead to the segments of the file's end.
    """
    at_end = segments_at_end(snapshot, device)
    fixed = [segment for segment in at_end if not segment.is_expandable]
    expandable = [segment for segment in at_end if segment.is_expandable]
    segments = _fixed_at(snapshot, device, entry, fixed)
    segments += _expandable_at(snapshot, device, entry, expandable)
    return sorted(segments, key=lambda segment: segment.address)


def _fixed_at(snapshot: Snapshot, device: int, entry: int, at_end: list[Segment]) -> list[Segment]:
    """Return the segments that do not expand; the CPU has as many events of them as blocks."""
    trace = snapshot.traces[device]
    events = _events(snapshot, device, entry, SEGMENT_ALLOC, SEGMENT_FREE)
    events = events[np.lexsort((events, trace.address[events]))]
    address, is_alloc = trace.address[events], trace.action[events] == SEGMENT_ALLOC
    is_first = np.append(True, address[1:] != address[:-1])[: len(events)]
    is_last = np.append(is_first[1:], True)[: len(events)]
    exists = {segment.address for segment in at_end}
    repeated = ~is_first[1:] & (is_alloc[1:] == is_alloc[:-1])
    wrong = address[1:][repeated].tolist()
    ends = zip(address[is_last].tolist(), is_alloc[is_last].tolist(), strict=True)
    wrong += [at for at, is_at_end in ends if (at in exists) != is_at_end]
    if wrong:
        raise PytracerError(_misfit(wrong[0]))
    changed = set(address[is_first].tolist())
    kept = [segment for segment in at_end if segment.address not in changed]
    return kept + [_part(trace, event) for event in events[is_first & ~is_alloc].tolist()]


def _expandable_at(
    snapshot: Snapshot, device: int, entry: int, at_end: list[Segment]
) -> list[Segment]:
    """Return the mapped parts of expandable segments."""
    trace = snapshot.traces[device]
    events = _events(snapshot, device, entry, SEGMENT_MAP, SEGMENT_UNMAP)[::-1].tolist()
    parts = [*at_end, *(_part(trace, event) for event in events)]
    is_mapped = [True] * len(at_end) + [trace.action[event] == SEGMENT_UNMAP for event in events]
    cuts = sorted({bound for part in parts for bound in (part.address, part.end)})
    part_of: list[Segment | None] = [None] * len(cuts)  # of each piece between two cuts
    for part, is_added in zip(parts, is_mapped, strict=True):
        for number in range(bisect_left(cuts, part.address), bisect_left(cuts, part.end)):
            if (part_of[number] is None) != is_added:
                raise PytracerError(_misfit(part.address))
            part_of[number] = part if is_added else None
    found: list[Segment] = []
    for (begin, end), source in zip(pairwise(cuts), part_of, strict=False):
        if source is None:
            continue
        piece = replace(source, address=begin, size_bytes=end - begin)
        if found and found[-1].end == begin and _belong_together(found[-1], piece):
            before = found.pop()
            piece = replace(piece, address=before.address, size_bytes=end - before.address)
        found.append(piece)
    return found


def _events(snapshot: Snapshot, device: int, entry: int, *actions: int) -> Column:
    action = snapshot.traces[device].action[entry:]
    found: Column = np.flatnonzero(np.isin(action, actions)) + entry
    return found


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
    expands = np.isin(action, (SEGMENT_MAP, SEGMENT_UNMAP))
    found: Column = np.where(expands, size_bytes % PAGE_BYTES != 0, size_bytes <= UNIT_BYTES)
    return found


def _misfit(address: int) -> str:
    return f"the segment events do not lead to the file's segments: at {address:#x}"


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


def _belong_together(first: Segment, second: Segment) -> bool:
    """Return whether two adjacent parts are of one expandable segment."""
    return (first.stream, first.pool) == (second.stream, second.pool)
