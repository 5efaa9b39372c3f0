"""Compare a snapshot by pytracer with one by PyTorch's own recorder, and count what both recorded.

The frames of segments and of `snapshot` events are not compared.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

Snapshot = dict[str, Any]
Event = dict[str, Any]
Frames = list[dict[str, Any]]

# Events have their pool from torch 2.12 on. pytracer always writes it.
HAS_POOLS = torch.torch_version.TorchVersion(torch.__version__) >= (2, 12)
COMMON = ("action", "size", "stream", *(["pool_id"] if HAS_POOLS else []))
LABELS = ("compile_context", "user_metadata", "internal_metadata")
NO_LABELS = {"compile_context": "N/A", "user_metadata": ""}
SEGMENT = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
)
BLOCK = ("address", "size", "requested_size", "state")
CLOSE_US = 2000


class DifferenceError(AssertionError):
    """The records of pytracer and PyTorch differ."""


def require_same(what: str, native: object, traced: object) -> None:
    if native != traced:
        raise DifferenceError(f"{what}: PyTorch has {native!r}, pytracer {traced!r}")


@dataclass(frozen=True)
class Rules:
    """The expected differences between the records of pytracer and PyTorch."""

    context: str | None = "all"  # the `context` of both recorders
    depth: int = 32  # the tracer's `stack_depth`
    # By device, the number of PyTorch's events before pytracer's recording began.
    since: Sequence[int] = (0, 0)
    # By device, the addresses of the blocks that were live when it began.
    strangers: Sequence[frozenset[int]] = (frozenset(), frozenset())


@contextmanager
def recorded_by_torch(
    device: ModuleType, context: str | None, entries: int = 1 << 20
) -> Iterator[None]:
    """Switch on PyTorch's own recorder, without earlier events."""
    record = device.memory._record_memory_history
    more = {"compile_context": True, "clear_history": True} if device is torch.cuda else {}
    record("all", context=context, stacks="python", max_entries=entries, **more)
    try:
        yield
    finally:
        record(None)


def drop_last_markers(native: Snapshot) -> Snapshot:
    """Remove the markers of another recorder's snapshot from the ends of the traces."""
    for trace in native["device_traces"]:
        assert trace.pop()["action"] == "snapshot"
    return native


def check_parity(native: Snapshot, traced: Snapshot, rules: Rules = Rules()) -> int:
    """Return how many events are equal, or raise `DifferenceError`."""
    require_same("devices", len(native["device_traces"]), len(traced["device_traces"]))
    if "allocator_settings" in native:  # only CUDA has them
        require_same("settings", native["allocator_settings"], traced["allocator_settings"])
    strangers = []
    for device, trace in enumerate(native["device_traces"]):
        expected = trace[rules.since[device] :]
        place = f"device {device}"
        strangers.append(set(rules.strangers[device]))
        _check_trace(place, expected, traced["device_traces"][device], rules, strangers[-1])
    _check_segments(native["segments"], traced["segments"], rules, strangers)
    return sum(len(trace) for trace in traced["device_traces"])


def _check_trace(
    place: str, native: list[Event], traced: list[Event], rules: Rules, strangers: set[int]
) -> None:
    allocated: dict[int, Frames] = {}  # PyTorch's frames of the block at each address
    before = native_before = 0
    for number, (native_event, event) in enumerate(zip(native, traced, strict=False)):
        action = native_event["action"]
        where = f"{place}, event {number} ({action})"
        for key in COMMON:
            require_same(f"{where}, {key}", native_event[key], event[key])
        for key in LABELS:
            absent = NO_LABELS.get(key)
            require_same(f"{where}, {key}", native_event.get(key, absent), event.get(key, absent))
        key = "device_free" if action == "oom" else "addr"
        require_same(f"{where}, {key}", native_event[key], event[key])
        time_us = event["time_us"]
        if time_us < before:
            raise DifferenceError(f"{where}: time_us {time_us} after {before}")
        native_us = native_event.get("time_us", time_us)
        # A free that completes at once has its request's time. PyTorch reads the clock twice.
        is_at_once = action == "free_completed" and time_us == before
        expected_us = native_before if is_at_once else native_us
        before, native_before = time_us, native_us
        if abs(expected_us - time_us) > CLOSE_US:
            require_same(f"{where}, time_us", expected_us, time_us)
        if action == "alloc":
            allocated[native_event["addr"]] = native_event.get("frames", [])
            strangers.discard(native_event["addr"])
        if action != "snapshot":
            _mend_lines(native_event)
            _check_frames(where, native_event, event, rules, allocated)
        if action == "free_completed":
            allocated.pop(native_event["addr"], None)
    require_same(f"{place}, events", len(native), len(traced))


def _mend_lines(native_event: Event) -> None:
    """Give frames without a line the number -1, which torch before 2.12 writes without its sign."""
    for frame in native_event.get("frames", []):
        if frame["line"] == 2**64 - 1:
            frame["line"] = -1


def _check_frames(
    where: str, native_event: Event, event: Event, rules: Rules, allocated: dict[int, Frames]
) -> None:
    native, action = native_event.get("frames", []), native_event["action"]
    if rules.context == "alloc":
        if action in {"segment_free", "segment_unmap"}:
            # PyTorch shows the frames of the segment's allocation, no frames, or those of the
            # allocation that needed the room; pytracer always those of the segment's allocation.
            return
        if action in {"free_requested", "free_completed"}:
            # pytracer always shows the frames of the block's allocation. So does PyTorch, except if
            # another allocation completed a delayed free, which then has that allocation's frames.
            known = allocated.get(native_event["addr"], [])
            if action == "free_requested" and known:
                require_same(f"{where}, PyTorch's own frames", native, known)
            native = known
    require_same(f"{where}, frames", native[: rules.depth], event["frames"])


def _check_segments(
    native: list[dict[str, Any]],
    traced: list[dict[str, Any]],
    rules: Rules,
    strangers: list[set[int]],
) -> None:
    require_same("segments", len(native), len(traced))
    for native_segment, segment in zip(native, traced, strict=True):
        where = f"segment {native_segment['address']:#x}"
        for key in SEGMENT:
            require_same(f"{where}, {key}", native_segment[key], segment[key])
        require_same(f"{where}, blocks", len(native_segment["blocks"]), len(segment["blocks"]))
        for block, traced_block in zip(native_segment["blocks"], segment["blocks"], strict=True):
            inside = f"block {block['address']:#x}"
            for key in BLOCK:
                require_same(f"{inside}, {key}", block[key], traced_block[key])
            stranger = block["address"] in strangers[native_segment["device"]]
            frames = [] if stranger else block["frames"][: rules.depth]
            require_same(f"{inside}, frames", frames, traced_block["frames"])


def live(snapshot: Snapshot) -> list[frozenset[int]]:
    """Return, by device, the addresses of the blocks that are not free."""
    return [
        frozenset(
            block["address"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if segment["device"] == device and block["state"] != "inactive"
        )
        for device in range(len(snapshot["device_traces"]))
    ]


# --- counts of a recorded activity ----------------------------------------------------------------


@dataclass
class Seen:
    """Counts that show which kinds of events a recorded activity had."""

    actions: Counter[str] = field(default_factory=Counter)
    delayed_frees: int = 0
    retries: int = 0
    devices: int = 0
    pending_blocks: int = 0
    streams: set[int] = field(default_factory=set)
    pools: set[tuple[int, int]] = field(default_factory=set)
    labels: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    stacks: set[int] = field(default_factory=set)
    deepest: int = 0

    def add(self, snapshot: Snapshot) -> Seen:
        for trace in snapshot["device_traces"]:
            self.devices += any(event["action"] == "alloc" for event in trace)
            for event, following in itertools.zip_longest(trace, trace[1:]):
                self._add(event, following)
        self.pending_blocks += sum(
            block["state"] == "active_pending_free"
            for segment in snapshot["segments"]
            for block in segment["blocks"]
        )
        return self

    def _add(self, event: Event, following: Event | None) -> None:
        action, frames = event["action"], event.get("frames", [])
        self.actions[action] += 1
        self.streams.add(event["stream"])
        self.pools.update([event["pool_id"]] if HAS_POOLS else [])
        for key in LABELS:
            self.labels[key].add(event.get(key, NO_LABELS.get(key)))
        places = tuple((frame["name"], frame["line"]) for frame in frames)
        self.stacks.add(hash(places))
        self.deepest = max(self.deepest, len(frames))
        if action == "free_requested" and following is not None:
            self.delayed_frees += following.get("addr") != event["addr"]
        if action in {"segment_free", "segment_unmap"} and frames:
            self.retries += (
                frames[0]["name"] == "_retry"
            )  # frees by `empty_cache` have its own frame first


# --- across processes ----------------------------------------------------------------------------


class _Numbers(dict[Any, int]):
    """Values numbered in the order of their first use."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


def normalised(snapshot: Snapshot, *, same_device: bool) -> Snapshot:
    """Copy a snapshot without values that differ between processes: addresses, handles, times.

    Segments consist of pages of 2 MiB, and addresses are kept relative to their page. Pages,
    streams and pools are numbered in the order of their first use. Snapshot markers are left out.

    Args:
        snapshot: A snapshot by PyTorch or pytracer.
        same_device: Whether no other process takes memory of the device.
    """
    pages, streams, pools = _Numbers(), _Numbers(), _Numbers()

    def address(value: int) -> int:
        return pages[value >> 21] << 21 | (value & (2**21 - 1))

    def event(from_: Event) -> Event:
        new = {**from_, "stream": streams[from_["stream"]]}
        new["pool_id"] = pools[from_["pool_id"]] if HAS_POOLS else 0
        if "addr" in new:
            new["addr"] = address(new["addr"])
        elif not same_device:
            new["device_free"] = 0
        new["time_us"] = 0
        return new

    def segment(from_: dict[str, Any]) -> dict[str, Any]:
        new = {**from_, "stream": streams[from_["stream"]], "address": address(from_["address"])}
        new["segment_pool_id"] = pools[from_["segment_pool_id"]]
        new["blocks"] = [
            {**block, "address": address(block["address"])} for block in from_["blocks"]
        ]
        return new

    # Events come first: their order is the same in all processes, that of segments is not.
    traces = [
        [event(entry) for entry in trace if entry["action"] != "snapshot"]
        for trace in snapshot["device_traces"]
    ]
    segments = sorted(
        map(segment, snapshot["segments"]), key=lambda new: (new["device"], new["address"])
    )
    return {**snapshot, "device_traces": traces, "segments": segments}
