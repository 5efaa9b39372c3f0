"""The memory of a device, as the memory_viz page undoes the events of a trace from the last."""

import bisect
from dataclasses import dataclass
from typing import Any

from viewed_values import INACTIVE, PENDING, ViewerError, check_range, require


@dataclass
class _Range:
    size: int
    stream: int = 0
    pending: bool = False


class _Ranges:
    """Disjoint address ranges, looked up by any address in them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, _Range] = {}

    def add(self, address: int, item: _Range, where: str) -> None:
        clash = self.overlapping(address, item.size)
        require(clash is None, f"{where}: {address}+{item.size} overlaps the range at {clash}")
        bisect.insort(self._starts, address)
        self._ranges[address] = item

    def get(self, address: int) -> _Range | None:
        return self._ranges.get(address)

    def remove(self, address: int) -> None:
        del self._ranges[address]
        del self._starts[bisect.bisect_left(self._starts, address)]

    def overlapping(self, address: int, size: int) -> int | None:
        """Return the start of a range that overlaps these bytes, or None."""
        following = bisect.bisect_left(self._starts, address + size)
        if following == 0:
            return None
        start = self._starts[following - 1]
        return start if start + self._ranges[start].size > address else None


class Memory:
    """The segments and blocks of one device, as the trace's events are undone from the last."""

    def __init__(self, device: int, segments: list[dict[str, Any]]) -> None:
        self._segments = _Ranges()
        self._blocks = _Ranges()
        for number, segment in enumerate(segments):
            if segment["device"] != device:
                continue
            where = f"segment {number}"
            self._segments.add(
                segment["address"], _Range(segment["total_size"], segment["stream"]), where
            )
            for block in segment["blocks"]:
                if block["state"] != INACTIVE:
                    # Events have the requested size, not the rounded size.
                    size, pending = block["requested_size"], block["state"] == PENDING
                    self._blocks.add(block["address"], _Range(size, pending=pending), where)

    def undo(self, event: dict[str, Any], where: str) -> None:
        action = event["action"]
        if action in {"snapshot", "oom", "annotate", "workspace_snapshot"}:
            return
        address, size = event["addr"], event["size"]
        check_range(address, size, where)
        match action:
            case "alloc":
                block = self._block(address, size, where)
                require(not block.pending, f"{where}: {address} is pending free after it")
                self._blocks.remove(address)
            case "free_requested":
                block = self._block(address, size, where)
                require(block.pending, f"{where}: {address} is not pending free after it")
                block.pending = False
            case "free_completed":
                self._enclosing_segment(address, size, where)
                self._blocks.add(address, _Range(size, pending=True), where)
            case "segment_free" | "segment_unmap":
                self._segments.add(address, _Range(size, event["stream"]), where)
                if action == "segment_unmap":
                    self._merge(address)
            case "segment_alloc" | "segment_map":
                start = self._enclosing_segment(address, size, where)
                used = self._blocks.overlapping(address, size)
                require(used is None, f"{where}: before it the block at {used} has no segment")
                exact = action == "segment_alloc"
                self._cut(start, address, size, must_match=exact, where=where)
            case _:
                raise ViewerError(f"{where}: no viewer knows this action")

    def _block(self, address: int, size: int, where: str) -> _Range:
        block = self._blocks.get(address)
        if block is None:
            raise ViewerError(f"{where}: there is no block at {address}")
        require(block.size == size, f"{where}: {size} bytes, but the block has {block.size}")
        return block

    def _enclosing_segment(self, address: int, size: int, where: str) -> int:
        start = self._segments.overlapping(address, size)
        segment = None if start is None else self._segments.get(start)
        if start is None or segment is None:
            raise ViewerError(f"{where}: {address} is outside any segment")
        inside = start <= address and address + size <= start + segment.size
        require(inside, f"{where}: {address}+{size} exceeds segment {start}+{segment.size}")
        return start

    def _cut(self, start: int, address: int, size: int, *, must_match: bool, where: str) -> None:
        segment = self._segments.get(start)
        assert segment is not None
        end, segment_end = address + size, start + segment.size
        exact = start == address and end == segment_end
        require(exact or not must_match, f"{where}: the segment is {start}+{segment.size}")
        self._segments.remove(start)
        if start < address:
            self._segments.add(start, _Range(address - start, segment.stream), where)
        if end < segment_end:
            self._segments.add(end, _Range(segment_end - end, segment.stream), where)

    def _merge(self, address: int) -> None:
        """Merge the segment at `address` with adjacent segments of its stream."""
        segment = self._segments.get(address)
        assert segment is not None
        before = self._segments.overlapping(address - 1, 1)
        after = address + segment.size
        for left, right in ((address, after), (before, address)):
            lower = None if left is None else self._segments.get(left)
            upper = self._segments.get(right)
            if left is not None and lower and upper and lower.stream == upper.stream:
                self._segments.remove(right)
                lower.size += upper.size
