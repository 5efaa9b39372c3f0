"""Synthetic snapshots: a test writes a program's allocations and frees, on one device."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import reference_reader

from pytracer.analysis.history import History
from pytracer.reading.snapshot import Snapshot

SEGMENT = 1 << 21
Place = tuple[str, str, int]  # a frame: its file, function and line
BEGIN = 1 << 40


def _stack(frames: Iterable[Place]) -> list[dict[str, Any]]:
    return [{"filename": f, "name": n, "line": line} for f, n, line in frames]


class Program:
    """A program whose allocations and frees the test calls; it never reuses an address.

    Attributes:
        metadata: The key `pytracer` of the file; {} for a file of another recorder.
        settings: The allocator's settings.
    """

    def __init__(self, device: int = 0, begin_us: int = 1_700_000_000_000_000) -> None:
        self.metadata: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.annotations: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._device = device
        self._now_us = begin_us
        self._end = BEGIN
        self._segments: list[int] = []
        self._alive: dict[int, dict[str, Any]] = {}  # by address

    def advance(self, elapsed_us: int) -> None:
        """Let `elapsed_us` microseconds pass before the next event."""
        self._now_us += elapsed_us

    def alloc(self, requested: int, *frames: Place, phase: str = "", events: bool = True) -> int:
        """Allocate a block and return its address.

        Args:
            requested: The requested bytes.
            frames: The stack as (file, function, line), innermost first.
            phase: The phase of the events.
            events: Whether the trace has events of this allocation.
        """
        size = -(-requested // 512) * 512
        if self._end == BEGIN + SEGMENT * len(self._segments) or (
            self._end + size > BEGIN + SEGMENT * len(self._segments)
        ):
            self._end = BEGIN + SEGMENT * len(self._segments)
            self._segments.append(self._end)
            if events:
                self._event("segment_alloc", self._end, SEGMENT, [], phase)
        stack = _stack(frames)
        address, self._end = self._end, self._end + size
        if events:
            self._event("alloc", address, requested, stack, phase)
        self._alive[address] = {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": "active_allocated",
            "frames": stack,
        }
        return address

    def free(self, address: int, phase: str = "") -> None:
        block = self._alive.pop(address)
        for action in ("free_requested", "free_completed"):
            self._event(action, address, block["requested_size"], [], phase)

    def own(self, address: int, category: str, rule: str, owner: str) -> None:
        """Name the owner of a live block."""
        about = {"category": category, "category_rule": rule, "owner": owner, "owners": 1}
        self._alive[address] |= about

    def hold(self, address: int, holder: str) -> None:
        """Name the Python object that keeps a live block."""
        self._alive[address]["holder"] = holder

    def release_free_segments(self) -> None:
        """Release the segments without live blocks. The program must not allocate afterwards."""
        used = {address // SEGMENT for address in self._alive}
        for begin in [begin for begin in self._segments if begin // SEGMENT not in used]:
            self._segments.remove(begin)
            self._event("segment_free", begin, SEGMENT, [], "")

    def out_of_memory(self, requested: int, free: int, *frames: Place) -> None:
        self._event("oom", free, requested, _stack(frames), "")
        self.events[-1]["device_free"] = self.events[-1].pop("addr")

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append(
            {"name": name, "stage": stage, "device": self._device, "time_us": self._now_us}
        )

    def content(self) -> dict[str, Any]:
        """Return the content as `torch.cuda.memory._snapshot()` would."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self._device + 1)]
        traces[self._device] = self.events
        found = {
            "segments": [self._segment(begin) for begin in self._segments],
            "device_traces": traces,
            "allocator_settings": self.settings,
            "external_annotations": self.annotations,
        }
        return {**found, "pytracer": self.metadata} if self.metadata else found

    def snapshot(self, path: str = "made.pickle") -> Snapshot:
        return reference_reader.convert(self.content(), path)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(self.content(), protocol=4))
        return path

    def _event(self, action: str, address: int, size: int, frames: Any, phase: str) -> None:
        self._now_us += 1
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self._now_us,
                "pool_id": (0, 0),
                "frames": frames,
                "user_metadata": phase,
                "compile_context": "",
            }
        )

    def _segment(self, begin: int) -> dict[str, Any]:
        blocks, at = [], begin
        inside = [
            block
            for address, block in self._alive.items()
            if address // SEGMENT == begin // SEGMENT
        ]
        end = {"address": begin + SEGMENT}
        for block in [*sorted(inside, key=lambda block: block["address"]), end]:
            if block["address"] > at:
                free = {"address": at, "size": block["address"] - at, "requested_size": 0}
                blocks.append({**free, "state": "inactive", "frames": []})
            if block is not end:
                blocks.append(block)
                at = block["address"] + block["size"]
        return {
            "device": self._device,
            "address": begin,
            "total_size": SEGMENT,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def inexact(history: History, exact_from: int) -> History:
    """Return the history as if the free memory of its first entries could be in use."""
    free = history.usage.reserved_bytes - history.usage.active_bytes
    return replace(history, exact_from=exact_from, uncertain_bytes=free[:exact_from])


def file_metadata(backend: str = "cuda", **changes: Any) -> dict[str, Any]:
    """Return the key `pytracer` of a file with one device, with `changes`."""
    return {
        "format_version": [1, 3],
        "version": "0.1.0",
        "torch": "2.13.0",
        "backends": [backend],
        "host": "n1",
        "pid": 7,
        "written_ns": 1,
        "devices": [{"index": 0, "is_cpu": backend == "cpu", "overwritten": 0}],
        "stacks": {"count": 3},
        **changes,
    }
