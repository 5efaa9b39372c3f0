"""A reference implementation of `replay`: short and slow, it counts all usage after each event.

The caller gives the allocator's rules for rounding and splitting as `Rules`; the real `replay`
derives these rules from the file.
"""

from dataclasses import dataclass, field
from typing import Any

from pytracer.reading.snapshot import (
    ALLOC,
    ALLOCATED,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    PENDING_FREE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Snapshot,
)

MIB = 2**20


@dataclass
class Rules:
    """The rules that turn a requested size into a block size."""

    unit: int = 512  # sizes are multiples of it; 1 on the CPU, where each block has its own segment
    padding: int = 0  # the bytes added to a request before it is rounded
    # The number of parts of a power of two that requests are rounded to, by the logarithm of the
    # size (the setting `roundup_power2_divisions`).
    divisions: dict[int, int] = field(default_factory=dict)
    max_split: int = 2**63  # blocks of this size or larger are never split
    toggled: bool = False  # whether expandable segments may have been switched on and off
    aligned: bool = False  # whether large blocks may begin in the middle of free memory (torch_npu)

    def rounded(self, requested: int) -> int:
        size = requested + self.padding
        size = max(size, self.unit)
        divisions = self.divisions.get(min(max(size.bit_length() - 1, 20), 35), 0)
        if divisions > 1 and size > 512 * divisions:
            power = 1 << (size.bit_length() - 1)
            part = power // (1 << (divisions.bit_length() - 1)) or power
            return -(-size // part) * part
        return -(-size // self.unit) * self.unit


@dataclass
class Block:
    address: int
    requested: int
    size: int = 0  # 0: not computed yet
    alloc_event: int = -1
    free_requested_event: int = -1
    free_event: int = -1
    is_sized: bool = True


@dataclass(frozen=True)
class Segment:
    begin: int
    end: int
    expandable: bool


def replay(snapshot: Snapshot, device: int, rules: Rules) -> tuple[list[Any], list[Block], int]:
    """Return the usage at each entry, the blocks by allocation, and the first exact entry."""
    trace = snapshot.traces[device]
    events = list(
        zip(trace.action.tolist(), trace.address.tolist(), trace.size_bytes.tolist(), strict=True)
    )
    segments_at, blocks = undo_events(snapshot, device, events)
    merged_at = [merge_adjacent(segments) for segments in segments_at]
    blocks.sort(key=lambda b: (b.alloc_event, b.address))
    for block in blocks:
        if block.size == 0:
            compute_size(block, blocks, merged_at, rules)
    usage = [
        count_usage(segments, [b for b in blocks if b.alloc_event < entry <= b.free_event], entry)
        for entry, segments in enumerate(segments_at)
    ]
    exact_from = max((b.free_event + 1 for b in blocks if not b.is_sized), default=0)
    return usage, blocks, exact_from


def undo_events(
    snapshot: Snapshot, device: int, events: list[tuple[int, int, int]]
) -> tuple[list[list[Segment]], list[Block]]:
    """Return the segments at each entry, and all blocks with their events."""
    table = snapshot.segments
    last = len(events)
    segments = {
        Segment(int(begin), int(begin + size), bool(expandable))
        for begin, size, expandable, owner in zip(
            table.address, table.size_bytes, table.is_expandable, table.device, strict=True
        )
        if owner == device
    }
    found, live = [], {}
    final = snapshot.blocks
    for i in range(len(final)):
        if final.state[i] != INACTIVE and table.device[final.segment[i]] == device:
            state = final.state[i]
            assert state in (ALLOCATED, PENDING_FREE)
            block = Block(
                int(final.address[i]),
                int(final.requested_bytes[i]),
                int(final.size_bytes[i]),
                free_requested_event=last if state == ALLOCATED else -1,
                free_event=last,
            )
            live[block.address] = block
            found.append(block)

    segments_at = [sorted(segments, key=lambda s: s.begin)]
    for event in reversed(range(last)):
        action, address, size = events[event]
        end = address + size
        if action == ALLOC:
            block = live.pop(address)
            block.requested = size
            block.alloc_event = event
        elif action == FREE_REQUESTED:
            live[address].free_requested_event = event
        elif action == FREE_COMPLETED:
            live[address] = Block(address, size, free_event=event)
            found.append(live[address])
        elif action == SEGMENT_ALLOC:
            segments.remove(Segment(address, end, False))
        elif action == SEGMENT_FREE:
            segments.add(Segment(address, end, False))
        elif action == SEGMENT_MAP:
            segments = set(merge_adjacent(sorted(segments, key=lambda s: s.begin)))
            (around,) = [s for s in segments if s.expandable and s.begin <= address < s.end]
            segments.remove(around)
            segments |= {Segment(around.begin, address, True), Segment(end, around.end, True)}
        elif action == SEGMENT_UNMAP:
            segments.add(Segment(address, end, True))
        segments = {s for s in segments if s.begin < s.end}
        segments_at.append(sorted(segments, key=lambda s: s.begin))
    if any(b.free_requested_event == -1 < b.alloc_event for b in found):
        # The file's recorder leaves out `free_requested` events.
        assert all(action != FREE_REQUESTED for action, _, _ in events)
        for block in found:
            if block.free_requested_event == -1:
                block.free_requested_event = block.free_event
    return segments_at[::-1], found


def merge_adjacent(segments: list[Segment]) -> list[Segment]:
    """Return the segments, with adjacent pieces of expandable segments merged into one."""
    result: list[Segment] = []
    for s in segments:
        if s.expandable and result and result[-1].expandable and result[-1].end == s.begin:
            result[-1] = Segment(result[-1].begin, s.end, True)
        else:
            result.append(s)
    return result


def compute_size(
    block: Block, blocks: list[Block], segments_at: list[list[Segment]], rules: Rules
) -> None:
    """Compute the size of a block that was freed before the snapshot, which has no entry for it."""
    entries = range(block.alloc_event + 1, block.free_event + 1)
    least = rules.rounded(block.requested)
    segment = next(s for s in segments_at[block.free_event] if s.begin <= block.address < s.end)
    # The blocks behind this block during its lifetime. The nearest of them limits its size.
    following = [
        neighbor
        for neighbor in blocks
        if segment.begin <= neighbor.address < segment.end
        and neighbor.address > block.address
        and neighbor.alloc_event < entries[-1]
        and neighbor.free_event >= entries[0]
    ]
    room = min([segment.end] + [neighbor.address for neighbor in following]) - block.address
    if rules.unit == 1:
        block.size = segment.end - block.address
    elif segment.expandable or least <= MIB or room == least:
        block.size = least
    elif block.alloc_event >= 0:
        # The extent is the memory that was free at this address before the allocation.
        live = [b for b in blocks if b.alloc_event < block.alloc_event <= b.free_event]
        extent = min([segment.end] + [b.address for b in live if b.address > block.address])
        extent -= block.address
        splits = least < rules.max_split and extent - least > MIB
        if rules.toggled and not splits:
            infer_size(block, following, room, least, rules)
        else:
            block.size = extent if room == extent and not splits else least
    elif not rules.toggled and room - least <= MIB:
        block.size = room
    else:
        infer_size(block, following, room, least, rules)


def infer_size(block: Block, following: list[Block], room: int, least: int, rules: Rules) -> None:
    """Derive the size from a later allocation at the block's end; without one it is unknown."""
    block.is_sized = not rules.aligned and any(
        neighbor.address == block.address + room and neighbor.alloc_event > block.alloc_event
        for neighbor in following
        if neighbor.alloc_event >= 0
    )
    block.size = room if block.is_sized else least


def count_usage(segments: list[Segment], blocks: list[Block], entry: int) -> dict[str, float]:
    free: list[int] = []
    inactive_split = 0
    for s in merge_adjacent(segments):
        inside = sorted(
            (b for b in blocks if s.begin <= b.address < s.end), key=lambda b: b.address
        )
        edges = [s.begin, *[e for b in inside for e in (b.address, b.address + b.size)], s.end]
        extents = [e - b for b, e in zip(edges[::2], edges[1::2], strict=True)]
        assert min(extents) >= 0
        free += extents
        if not s.expandable and inside:
            inactive_split += sum(extents)
    return {
        "requested_bytes": sum(b.requested for b in blocks),
        "allocated_bytes": sum(b.size for b in blocks if entry <= b.free_requested_event),
        "active_bytes": sum(b.size for b in blocks),
        "reserved_bytes": sum(s.end - s.begin for s in segments),
        "inactive_split_bytes": inactive_split,
        "largest_free_bytes": max(free, default=0),
        "free_squares": float(sum(f * f for f in free)),
        "segments": sum(not s.expandable for s in segments),
    }
