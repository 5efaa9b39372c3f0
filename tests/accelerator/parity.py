"""Whether a snapshot of pytracer's says what PyTorch's own recorder says, and what both saw.

Not compared: frames of segments, and those of `snapshot` events.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Snapshot = dict[str, Any]
Event = dict[str, Any]
Frames = list[dict[str, Any]]

COMMON = ("action", "size", "stream", "pool_id")
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
    """pytracer's record and PyTorch's are not the same."""


def require_same(what: str, native: object, ours: object) -> None:
    if native != ours:
        raise DifferenceError(f"{what}: PyTorch has {native!r}, pytracer {ours!r}")


@dataclass(frozen=True)
class Rules:
    """What pytracer is to show of what PyTorch recorded.

    Attributes:
        context: the option of both recorders.
        depth: `stack_depth`.
        since: by device, events of PyTorch's that came before pytracer's recording.
        strangers: by device, addresses of the blocks that were alive when it began.
    """

    context: str | None = "all"
    depth: int = 32
    since: Sequence[int] = (0, 0)
    strangers: Sequence[frozenset[int]] = (frozenset(), frozenset())


def check_parity(native: Snapshot, ours: Snapshot, rules: Rules = Rules()) -> int:
    """Raises `DifferenceError` unless they are the same, and returns how many events that are."""
    require_same("devices", len(native["device_traces"]), len(ours["device_traces"]))
    if "allocator_settings" in native:  # CUDA's
        require_same("settings", native["allocator_settings"], ours["allocator_settings"])
    strangers = []
    for device, trace in enumerate(native["device_traces"]):
        expected = trace[rules.since[device] :]
        place = f"device {device}"
        strangers.append(set(rules.strangers[device]))
        _check_trace(place, expected, ours["device_traces"][device], rules, strangers[-1])
    _check_segments(native["segments"], ours["segments"], rules, strangers)
    return sum(len(trace) for trace in ours["device_traces"])


def _check_trace(
    place: str, native: list[Event], ours: list[Event], rules: Rules, strangers: set[int]
) -> None:
    allocated: dict[int, Frames] = {}  # the frames of the block at an address, as PyTorch has them
    before = 0
    for number, (theirs, our) in enumerate(zip(native, ours, strict=False)):
        action = theirs["action"]
        where = f"{place}, event {number} ({action})"
        for key in COMMON:
            require_same(f"{where}, {key}", theirs[key], our[key])
        for key in LABELS:
            absent = NO_LABELS.get(key)
            require_same(f"{where}, {key}", theirs.get(key, absent), our.get(key, absent))
        key = "device_free" if action == "oom" else "addr"
        require_same(f"{where}, {key}", theirs[key], our[key])
        time_us = our["time_us"]
        if time_us < before:
            raise DifferenceError(f"{where}: time_us {time_us} after {before}")
        before = time_us
        if abs(theirs.get("time_us", time_us) - time_us) > CLOSE_US:
            require_same(f"{where}, time_us", theirs["time_us"], time_us)
        if action == "alloc":
            allocated[theirs["addr"]] = theirs.get("frames", [])
            strangers.discard(theirs["addr"])
        if action != "snapshot":
            _check_frames(where, theirs, our, rules, allocated)
        if action == "free_completed":
            allocated.pop(theirs["addr"], None)
    require_same(f"{place}, events", len(native), len(ours))


def _check_frames(
    where: str, theirs: Event, our: Event, rules: Rules, allocated: dict[int, Frames]
) -> None:
    native, action = theirs.get("frames", []), theirs["action"]
    if rules.context == "alloc":
        if action in {"segment_free", "segment_unmap"}:
            # PyTorch shows the segment's allocation, nothing, or the allocation that made room,
            # as it happens to have them at hand; pytracer the segment's allocation.
            return
        if action in {"free_requested", "free_completed"}:
            # pytracer: always the block's allocation. PyTorch too, but for blocks whose free had
            # to wait and was completed by another allocation: then that one's.
            known = allocated.get(theirs["addr"], [])
            if action == "free_requested" and known:
                require_same(f"{where}, PyTorch's own frames", native, known)
            native = known
    require_same(f"{where}, frames", native[: rules.depth], our["frames"])


def _check_segments(
    native: list[dict[str, Any]],
    ours: list[dict[str, Any]],
    rules: Rules,
    strangers: list[set[int]],
) -> None:
    require_same("segments", len(native), len(ours))
    for theirs, our in zip(native, ours, strict=True):
        where = f"segment {theirs['address']:#x}"
        for key in SEGMENT:
            require_same(f"{where}, {key}", theirs[key], our[key])
        require_same(f"{where}, blocks", len(theirs["blocks"]), len(our["blocks"]))
        for block, our_block in zip(theirs["blocks"], our["blocks"], strict=True):
            inside = f"block {block['address']:#x}"
            for key in BLOCK:
                require_same(f"{inside}, {key}", block[key], our_block[key])
            stranger = block["address"] in strangers[theirs["device"]]
            frames = [] if stranger else block["frames"][: rules.depth]
            require_same(f"{inside}, frames", frames, our_block["frames"])


def live(snapshot: Snapshot) -> list[frozenset[int]]:
    """By device, addresses of the blocks that are not free."""
    return [
        frozenset(
            block["address"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if segment["device"] == device and block["state"] != "inactive"
        )
        for device in range(len(snapshot["device_traces"]))
    ]


# --- what happened -------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a recorded activity consisted of."""

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
        self.pools.add(event["pool_id"])
        for key in LABELS:
            self.labels[key].add(event.get(key, NO_LABELS.get(key)))
        places = tuple((frame["name"], frame["line"]) for frame in frames)
        self.stacks.add(hash(places))
        self.deepest = max(self.deepest, len(frames))
        if action == "free_requested" and following is not None:
            self.delayed_frees += following.get("addr") != event["addr"]
        if action in {"segment_free", "segment_unmap"} and frames:
            self.retries += frames[0]["name"] == "_retry"  # not `empty_cache`, called by it


# --- across processes ----------------------------------------------------------------------------


class _Numbers(dict[Any, int]):
    """Values, numbered as they appear."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


def normalised(snapshot: Snapshot, *, same_device: bool) -> Snapshot:
    """A copy without what differs from process to process: addresses, handles, times.

    Addresses are kept relative to pages of 2 MiB, of which segments consist; pages, streams and
    pools are numbered as they appear. Markers of snapshots are left out.

    Args:
        snapshot: PyTorch's or pytracer's.
        same_device: whether nobody else takes memory of the device.
    """
    pages, streams, pools = _Numbers(), _Numbers(), _Numbers()

    def address(value: int) -> int:
        return pages[value >> 21] << 21 | (value & (2**21 - 1))

    def event(from_: Event) -> Event:
        new = {**from_, "stream": streams[from_["stream"]], "pool_id": pools[from_["pool_id"]]}
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

    # In this order: segments come as their addresses do, which events have named before.
    traces = [
        [event(each) for each in trace if each["action"] != "snapshot"]
        for trace in snapshot["device_traces"]
    ]
    segments = sorted(
        map(segment, snapshot["segments"]), key=lambda each: (each["device"], each["address"])
    )
    return {**snapshot, "device_traces": traces, "segments": segments}
