"""Recordings of random programs on a simulated allocator, cut as a ring cuts them.

The allocator is the simulator itself, which other tests compare with torch's own.
"""

import random
from dataclasses import asdict
from typing import Any

import numpy as np

from pytracer.analysis.allocator_rules import SMALL_BYTES, UNLIMITED
from pytracer.analysis.requests import ALLOCATE, EMPTY_CACHE, FREE, LEAVE
from pytracer.reading import _reader
from pytracer.simulator.rules import rules_of

MIB = 2**20
TORCH = "2.12.1"
CALLS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")

Row = tuple[int, int, int, int, int]


def random_requests(seed: int, count: int = 300, *, waits: bool) -> list[Row]:
    """Return the kind, block, bytes, stream and pool of random requests."""
    rng = random.Random(seed)
    most_live = rng.choice((5, 15, 40))
    streams, pools = rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
    rows: list[Row] = []
    live: list[int] = []
    left: list[int] = []
    blocks = 0
    while len(rows) < count:
        kind = rng.random()
        if kind < 0.01:
            rows.append((EMPTY_CACHE, -1, 0, 0, 0))
        elif kind < 0.1 and left:
            rows.append((FREE, left.pop(rng.randrange(len(left))), 0, 0, 0))
        elif live and (len(live) > most_live or rng.random() < 0.45):
            block = live.pop(rng.randrange(len(live)))
            is_left = waits and rng.random() < 0.1
            rows.append((LEAVE if is_left else FREE, block, 0, 0, 0))
            left += [block] * is_left
        else:
            size = int(2 ** rng.uniform(9, 25.5))
            rows.append((ALLOCATE, blocks, size, rng.randrange(streams), rng.randrange(pools)))
            live.append(blocks)
            blocks += 1
    return rows


class Recorded:
    """A recording of requests under settings, on a device of limited size.

    Attributes:
        events: The trace: one that ends with the first out-of-memory, if memory runs out.
        ran_out: Whether memory ran out.
        peak_allocated_bytes: The most bytes that were allocated at one moment.
    """

    def __init__(self, rows: list[Row], settings: str, device_bytes: int | None = None) -> None:
        columns = np.array(rows, np.int64).T.copy()
        self._rules = rules_of(settings, "cuda", TORCH)
        rules = asdict(self._rules) | {
            "limit_bytes": UNLIMITED,
            "device_bytes": UNLIMITED if device_bytes is None else device_bytes,
            "total_bytes": 0,
        }
        done = _reader.simulate(
            columns[0].astype(np.uint8), *columns[1:], rules, with_curve=True, with_calls=True
        )
        self._settings, self._device_bytes = settings, device_bytes
        self.events: list[dict[str, Any]] = []
        self.peak_allocated_bytes = int(done["allocated_bytes"].max(initial=0))
        self.ran_out = done["failed_request"] is not None
        # By address: the bytes, stream, pool, and whether small and expandable.
        self._parts: dict[int, tuple[int, int, int, bool, bool]] = {}
        # By number: the address, requested bytes, bytes, and whether the program has left it.
        self._blocks: dict[int, list[Any]] = {}
        self._run(rows, done)

    def _run(self, rows: list[Row], done: dict[str, Any]) -> None:
        calls = list(zip(*(column.tolist() for column in done["calls"]), strict=True))
        allocated = [0, *done["allocated_bytes"].tolist()]
        places: dict[int, tuple[int, int]] = {}
        for i, (kind, number, size, stream, pool) in enumerate(rows):
            while calls and calls[0][0] == i:
                _, call, address, size_bytes = calls.pop(0)
                self._call(call, address, size_bytes, (stream, pool, size <= SMALL_BYTES))
            if i == done["failed_request"]:
                free = self._device_bytes - sum(part[0] for part in self._parts.values())
                self._note("oom", free, size, stream, pool)
                return
            if kind == ALLOCATE:
                address = int(done["address"][i])
                self._note("alloc", address, size, stream, pool)
                self._blocks[number] = [address, size, allocated[i + 1] - allocated[i], False]
                places[number] = stream, pool
            elif kind in (FREE, LEAVE):
                address, requested, _, was_left = self._blocks[number]
                if not was_left:
                    self._note("free_requested", address, requested, *places[number])
                self._blocks[number][3] = True
                if kind == FREE:
                    self._note("free_completed", address, requested, *places[number])
                    del self._blocks[number]

    def _call(self, call: int, address: int, size: int, place: tuple[int, int, bool]) -> None:
        """Take a segment or pages for an allocation, or give them back."""
        end = address + size
        if CALLS[call] in ("segment_alloc", "segment_map"):
            self._note(CALLS[call], address, size, *place[:2])
            self._parts[address] = size, *place, CALLS[call] == "segment_map"
            return
        begin = max(at for at in self._parts if at <= address)
        # What is unmapped may be of several parts.
        while begin is not None and begin < end:
            size_bytes, *kept = self._parts.pop(begin)
            if begin < address:
                self._parts[begin] = (address - begin, *kept)
            if begin + size_bytes > end:
                self._parts[end] = (begin + size_bytes - end, *kept)
            begin = min((at for at in self._parts if at > begin and at < end), default=None)
        self._note(CALLS[call], address, size, *kept[:2])

    def _note(self, action: str, address: int, size: int, stream: int, pool: int) -> None:
        self.events.append(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "pool_id": (0, pool),
                "time_us": len(self.events),
                "frames": [{"filename": "a.py", "name": action, "line": len(self.events)}],
            }
        )

    def content(self, first: int = 0) -> dict[str, Any]:
        """Return the snapshot of a ring that begins with the event number `first`."""
        segments, max_split = self._segments(), self._rules.max_split_bytes
        reserved = sum(segment["total_size"] for segment in segments)
        device: dict[str, Any] = {"index": 0, "is_cpu": False, "reserved_bytes": reserved}
        if self._device_bytes is not None:
            device["free_bytes"] = self._device_bytes - reserved
        return {
            "segments": segments,
            "device_traces": [self.events[first:]],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": self._settings,
                "expandable_segments": self._rules.expandable,
                "max_split_size": -1 if max_split == UNLIMITED else max_split,
                "roundup_power2_divisions": {
                    str(2**i): parts for i, parts in enumerate(self._rules.divisions)
                },
            },
            "pytracer": {"backends": ["cuda"], "torch": TORCH, "devices": [device]},
        }

    def _segments(self) -> list[dict[str, Any]]:
        runs: list[list[Any]] = []
        for address in sorted(self._parts):
            size, *kept = self._parts[address]
            joins = runs and kept[3] and runs[-1][0] + runs[-1][1] == address
            if joins and runs[-1][2] == kept:
                runs[-1][1] += size
            else:
                runs.append([address, size, kept])
        return [self._segment(*run) for run in runs]

    def _segment(self, address: int, size: int, kept: list[Any]) -> dict[str, Any]:
        stream, pool, is_small, is_expandable = kept
        blocks: list[dict[str, Any]] = []
        at = address
        inside = [block for block in self._blocks.values() if address <= block[0] < address + size]
        for begin, requested, size_bytes, was_left in [*sorted(inside), [address + size, 0, 0, 0]]:
            if begin > at:
                blocks.append(_block(at, begin - at, 0, "inactive"))
            state = "active_pending_free" if was_left else "active_allocated"
            if size_bytes:
                blocks.append(_block(begin, size_bytes, requested, state))
            at = begin + size_bytes
        return {
            "device": 0,
            "address": address,
            "total_size": size,
            "stream": stream,
            "segment_type": "small" if is_small else "large",
            "segment_pool_id": (0, pool),
            "is_expandable": is_expandable,
            "frames": [],
            "blocks": blocks,
        }


def _block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    }
