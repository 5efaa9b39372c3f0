"""A reference caching allocator in Python, against whose usage `replay` is tested.

The allocator chooses sizes and addresses as c10/cuda/CUDACachingAllocator.cpp does, on simple
lists, and records its usage after each event.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from reference_history import MIB, Rules

FREE, ALLOCATED, PENDING, UNMAPPED = (
    "inactive",
    "active_allocated",
    "active_pending_free",
    "unmapped",
)
ADDRESS_SPACE = 2**40  # bytes reserved for an expandable segment


@dataclass
class Block:
    address: int
    size: int
    state: str = FREE
    requested: int = 0

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass
class Segment:
    small: bool
    stream: int
    pool: tuple[int, int]
    expandable: bool
    blocks: list[Block] = field(default_factory=list)


class Allocator:
    """The allocator of one device.

    Args:
        rules: The rules for rounding and splitting.
        aligned: The alignment of large blocks in expandable segments, as in torch_npu; 0 for none.
        keeps_usage: Whether to compute `usage` after each event, which is slow.

    Attributes:
        expands: Whether new segments are expandable.
        events: The trace.
        usage: The usage before the first event and after each event.
        sizes: The size of each block, by its address and its `free_completed` event (None if the
            block was not freed).
    """

    def __init__(self, rules: Rules, aligned: int = 0, keeps_usage: bool = True) -> None:
        self.rules = rules
        self.expands = False
        self.events: list[dict[str, Any]] = []
        self.segments: list[Segment] = []
        self.sizes: dict[tuple[int, int | None], int] = {}
        self._aligned = aligned
        self._next_address = 2**32
        self._totals: Counter[str] = Counter()
        self._keeps_usage = keeps_usage
        self.usage = [self._counted()]

    # --- the operations of a program ---

    def malloc(self, requested: int, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> int:
        size = self.rules.rounded(requested)
        if self.rules.unit == 1:
            return self._malloc_on_cpu(requested)
        segment, block = self._best_fit(size, stream, pool) or self._grow(size, stream, pool)
        at = segment.blocks.index(block)
        if self._aligned and self.expands and size >= 2 * MIB and block.address % self._aligned:
            offset = -block.address % self._aligned
            if offset + size <= block.size:
                before = Block(block.address, offset)
                block.address, block.size = block.address + offset, block.size - offset
                segment.blocks.insert(at, before)
                at += 1
        left = block.size - size
        if segment.small or self.expands:
            splits = left >= 512
        else:
            splits = size < self.rules.max_split and left > MIB
        if splits:
            segment.blocks.insert(at + 1, Block(block.address + size, left))
            block.size = size
        self._hand_out(segment, block, requested)
        return block.address

    def free(self, address: int, waits: bool = False) -> None:
        segment, block = self._at(address)
        assert block.state == ALLOCATED
        block.state = PENDING
        self._totals["allocated_bytes"] -= block.size
        self._note("free_requested", block.address, block.requested, segment)
        if not waits:
            self.complete(address)

    def complete(self, address: int) -> None:
        segment, block = self._at(address)
        assert block.state == PENDING
        block.state = FREE
        self._totals["active_bytes"] -= block.size
        self._totals["requested_bytes"] -= block.requested
        self.sizes[address, len(self.events)] = self.sizes.pop((address, None))
        requested, block.requested = block.requested, 0
        self._merge(segment)
        self._note("free_completed", address, requested, segment)
        if self.rules.unit == 1:
            self._release(segment)

    def empty_cache(self) -> None:
        for segment in list(self.segments):
            if segment.expandable:
                for block in [b for b in segment.blocks if b.state == FREE]:
                    self._unmap(segment, block)
            elif [b.state for b in segment.blocks] == [FREE]:
                self._release(segment)

    def state(self) -> list[dict[str, Any]]:
        """Return the key `segments` as torch writes it."""
        result = []
        for segment in self.segments:
            run: list[Block] = []
            for block in [*segment.blocks, Block(0, 0, UNMAPPED)]:
                if block.state != UNMAPPED:
                    run.append(block)
                elif run:
                    result.append(segment_entry(segment, run))
                    run = []
        return sorted(result, key=lambda s: s["address"])

    def live(self) -> list[Block]:
        return [b for s in self.segments for b in s.blocks if b.state in (ALLOCATED, PENDING)]

    # --- the choice of blocks and segments ---

    def _best_fit(
        self, size: int, stream: int, pool: tuple[int, int]
    ) -> tuple[Segment, Block] | None:
        """Return the smallest free block that is large enough."""
        fitting = [
            (block.size, block.address, segment, block)
            for segment in self.segments
            if (segment.small, segment.stream, segment.pool) == (size <= MIB, stream, pool)
            and (self.expands or not segment.expandable)
            for block in segment.blocks
            if block.state == FREE and block.size >= size
        ]
        if not fitting:
            return None
        best = min(fitting, key=lambda candidate: candidate[:2])
        limit = self.rules.max_split
        if (size < limit <= best[0]) or (size >= limit and best[0] >= size + 20 * MIB):
            return None
        return best[2:]

    def _grow(self, size: int, stream: int, pool: tuple[int, int]) -> tuple[Segment, Block]:
        """Reserve memory: a new segment, or more of an expandable one."""
        small = size <= MIB
        if not self.expands:
            bytes_ = (
                2 * MIB if small else 20 * MIB if size < 10 * MIB else rounded_up(size, 2 * MIB)
            )
            segment = Segment(small, stream, pool, False, [Block(self._next_address, bytes_)])
            self._next_address += bytes_  # the next segment is adjacent
            self.segments.append(segment)
            self._totals["segments"] += 1
            self._totals["reserved_bytes"] += bytes_
            self._note("segment_alloc", segment.blocks[0].address, bytes_, segment)
            return segment, segment.blocks[0]
        kind = (small, stream, pool, True)
        for segment in self.segments:
            if (segment.small, segment.stream, segment.pool, segment.expandable) != kind:
                continue
            for at, block in enumerate(segment.blocks):
                if block.state == UNMAPPED:
                    room = segment.blocks[at - 1 : at + 1] if at else [block]
                    if room[0].state not in (FREE, UNMAPPED):
                        room = [block]
                    if sum(b.size for b in room) >= size:
                        return segment, self._map(segment, block, size, room[0])
        segment = Segment(*kind)
        begin = ADDRESS_SPACE * (len(self.segments) + 2**7 + len(self.events))
        segment.blocks = [Block(begin, ADDRESS_SPACE // 2, UNMAPPED)]
        self.segments.append(segment)
        return segment, self._map(segment, segment.blocks[0], size, segment.blocks[0])

    def _map(self, segment: Segment, block: Block, size: int, first: Block) -> Block:
        if first is not block:
            if first.size >= size:
                return first  # the best-fit search passed over a block that was too large
            size -= first.size
        bytes_ = min(rounded_up(size, 2 * MIB if segment.small else 20 * MIB), block.size)
        at = segment.blocks.index(block)
        address = block.address
        segment.blocks.insert(at, Block(address, bytes_))
        block.address, block.size = address + bytes_, block.size - bytes_
        if block.size == 0:
            segment.blocks.remove(block)
        self._merge(segment)
        self._totals["reserved_bytes"] += bytes_
        self._note("segment_map", address, bytes_, segment)
        return next(b for b in segment.blocks if b.address <= address < b.end)

    def _unmap(self, segment: Segment, block: Block) -> None:
        unit = 2 * MIB if segment.small else 20 * MIB
        base = segment.blocks[0].address  # the beginning of the segment's address space
        begin, end = (
            base + rounded_up(block.address - base, unit),
            base + (block.end - base) // unit * unit,
        )
        if begin >= end:
            return
        at = segment.blocks.index(block)
        pieces = [Block(block.address, begin - block.address), Block(begin, end - begin, UNMAPPED)]
        pieces.append(Block(end, block.end - end))
        segment.blocks[at : at + 1] = [piece for piece in pieces if piece.size > 0]
        self._merge(segment)
        self._totals["reserved_bytes"] -= end - begin
        self._note("segment_unmap", begin, end - begin, segment)

    def _malloc_on_cpu(self, requested: int) -> int:
        """Allocate a block with a segment of its own, as on the CPU."""
        segment = Segment(False, 0, (0, 0), False, [Block(self._next_address, requested)])
        self._next_address += requested
        self.segments.append(segment)
        self._totals["segments"] += 1
        self._totals["reserved_bytes"] += requested
        self._note("segment_alloc", segment.blocks[0].address, requested, segment)
        self._hand_out(segment, segment.blocks[0], requested)
        return segment.blocks[0].address

    def _hand_out(self, segment: Segment, block: Block, requested: int) -> None:
        block.state, block.requested = ALLOCATED, requested
        self._totals["allocated_bytes"] += block.size
        self._totals["active_bytes"] += block.size
        self._totals["requested_bytes"] += requested
        self.sizes[block.address, None] = block.size
        self._note("alloc", block.address, requested, segment)

    def _release(self, segment: Segment) -> None:
        (block,) = segment.blocks
        self.segments.remove(segment)
        self._totals["segments"] -= 1
        self._totals["reserved_bytes"] -= block.size
        self._note("segment_free", block.address, block.size, segment)

    def _merge(self, segment: Segment) -> None:
        merged: list[Block] = []
        for block in segment.blocks:
            if merged and block.state == merged[-1].state and block.state in (FREE, UNMAPPED):
                merged[-1].size += block.size
            else:
                merged.append(block)
        segment.blocks = merged

    def _at(self, address: int) -> tuple[Segment, Block]:
        return next(
            (s, b)
            for s in self.segments
            for b in s.blocks
            if b.address == address and b.state in (ALLOCATED, PENDING)
        )

    def _note(self, action: str, address: int, size: int, segment: Segment) -> None:
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": segment.stream,
                "pool_id": segment.pool,
                "time_us": len(self.events),
                "frames": [{"filename": "a.py", "name": action, "line": len(self.events)}],
            }
        )
        if self._keeps_usage:
            self.usage.append(self._counted())

    def _counted(self) -> dict[str, float]:
        free = [b.size for s in self.segments for b in s.blocks if b.state == FREE]
        names = ("requested", "allocated", "active", "reserved")
        return {
            **{f"{name}_bytes": self._totals[f"{name}_bytes"] for name in names},
            "segments": self._totals["segments"],
            "inactive_split_bytes": sum(
                b.size
                for s in self.segments
                if not s.expandable and len(s.blocks) > 1
                for b in s.blocks
                if b.state == FREE
            ),
            "largest_free_bytes": max(free, default=0),
            "free_squares": float(sum(size * size for size in free)),
        }


def segment_entry(segment: Segment, blocks: list[Block]) -> dict[str, Any]:
    frame = {"filename": "a.py", "name": "kept", "line": 1}
    return {
        "device": 0,
        "address": blocks[0].address,
        "total_size": sum(b.size for b in blocks),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [
            {
                "address": b.address,
                "size": b.size,
                "requested_size": b.requested,
                "state": b.state,
                "frames": [frame] if b.state != FREE else [],
            }
            for b in blocks
        ],
    }


def rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
