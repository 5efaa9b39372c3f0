"""A second `replay`: short, slow, everything counted anew after each event.

What the allocator does when it rounds and splits is told by the caller, as `Rules`; `replay` finds
that out from the file.
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
    """How blocks get their sizes.

    Attributes:
        unit: what sizes are multiples of; 1 on the CPU, where a block is its segment.
        padding: what is added to a request before it is rounded.
        divisions: parts of a power of two that requests of a size are rounded to, by the logarithm.
        max_split: what is never split.
        toggled: whether segments that expand may have been switched on and off.
        aligned: whether large blocks may begin within free memory (torch_npu).
    """

    unit: int = 512
    padding: int = 0
    divisions: dict[int, int] = field(default_factory=dict)
    max_split: int = 2**63
    toggled: bool = False
    aligned: bool = False

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
    size: int = 0  # 0: not known yet
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
    """Levels (a dict for each entry), blocks by their beginning, and the first exact entry."""
    trace = snapshot.traces[device]
    events = list(
        zip(trace.action.tolist(), trace.address.tolist(), trace.size_bytes.tolist(), strict=True)
    )
    places, blocks = undone(snapshot, device, events)
    whole = [runs(segments) for segments in places]
    blocks.sort(key=lambda b: (b.alloc_event, b.address))
    for block in blocks:
        if block.size == 0:
            give_size(block, blocks, whole, rules)
    levels = [
        counted(segments, [b for b in blocks if b.alloc_event < entry <= b.free_event], entry)
        for entry, segments in enumerate(places)
    ]
    exact_from = max((b.free_event + 1 for b in blocks if not b.is_sized), default=0)
    return levels, blocks, exact_from


def undone(
    snapshot: Snapshot, device: int, events: list[tuple[int, int, int]]
) -> tuple[list[list[Segment]], list[Block]]:
    """The segments at each entry, and all blocks with when they came and went."""
    all_of = snapshot.segments
    last = len(events)
    segments = {
        Segment(int(begin), int(begin + size), bool(expandable))
        for begin, size, expandable, of in zip(
            all_of.address, all_of.size_bytes, all_of.is_expandable, all_of.device, strict=True
        )
        if of == device
    }
    found, live = [], {}
    of_blocks = snapshot.blocks
    for i in range(len(of_blocks)):
        if of_blocks.state[i] != INACTIVE and all_of.device[of_blocks.segment[i]] == device:
            state = of_blocks.state[i]
            assert state in (ALLOCATED, PENDING_FREE)
            block = Block(
                int(of_blocks.address[i]),
                int(of_blocks.requested_bytes[i]),
                int(of_blocks.size_bytes[i]),
                free_requested_event=last if state == ALLOCATED else -1,
                free_event=last,
            )
            live[block.address] = block
            found.append(block)

    places = [sorted(segments, key=lambda s: s.begin)]
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
            segments = set(runs(sorted(segments, key=lambda s: s.begin)))
            (around,) = [s for s in segments if s.expandable and s.begin <= address < s.end]
            segments.remove(around)
            segments |= {Segment(around.begin, address, True), Segment(end, around.end, True)}
        elif action == SEGMENT_UNMAP:
            segments.add(Segment(address, end, True))
        segments = {s for s in segments if s.begin < s.end}
        places.append(sorted(segments, key=lambda s: s.begin))
    if any(b.free_requested_event == -1 < b.alloc_event for b in found):
        # These events are left out.
        assert all(action != FREE_REQUESTED for action, _, _ in events)
        for block in found:
            if block.free_requested_event == -1:
                block.free_requested_event = block.free_event
    return places[::-1], found


def runs(segments: list[Segment]) -> list[Segment]:
    """Mapped pieces that touch are one."""
    result: list[Segment] = []
    for s in segments:
        if s.expandable and result and result[-1].expandable and result[-1].end == s.begin:
            result[-1] = Segment(result[-1].begin, s.end, True)
        else:
            result.append(s)
    return result


def give_size(block: Block, blocks: list[Block], places: list[list[Segment]], rules: Rules) -> None:
    """What the allocator made of a request whose block is gone in the end."""
    entries = range(block.alloc_event + 1, block.free_event + 1)
    least = rules.rounded(block.requested)
    segment = next(s for s in places[block.free_event] if s.begin <= block.address < s.end)
    # The nearest that anything ever began behind it.
    beside = [
        other
        for other in blocks
        if segment.begin <= other.address < segment.end
        and other.address > block.address
        and other.alloc_event < entries[-1]
        and other.free_event >= entries[0]
    ]
    room = min([segment.end] + [other.address for other in beside]) - block.address
    if rules.unit == 1:
        block.size = segment.end - block.address
    elif segment.expandable or least <= MIB or room == least:
        block.size = least
    elif block.alloc_event >= 0:
        # What was free there when it came.
        live = [b for b in blocks if b.alloc_event < block.alloc_event <= b.free_event]
        extent = min([segment.end] + [b.address for b in live if b.address > block.address])
        extent -= block.address
        splits = least < rules.max_split and extent - least > MIB
        if rules.toggled and not splits:
            followed(block, beside, room, least, rules)
        else:
            block.size = extent if room == extent and not splits else least
    elif not rules.toggled and room - least <= MIB:
        block.size = room
    else:
        followed(block, beside, room, least, rules)


def followed(block: Block, beside: list[Block], room: int, least: int, rules: Rules) -> None:
    """An allocation begins where another block ends; else the size is not known."""
    block.is_sized = not rules.aligned and any(
        other.address == block.address + room and other.alloc_event > block.alloc_event
        for other in beside
        if other.alloc_event >= 0
    )
    block.size = room if block.is_sized else least


def counted(segments: list[Segment], blocks: list[Block], entry: int) -> dict[str, float]:
    free: list[int] = []
    inactive_split = 0
    for s in runs(segments):
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
