"""When the memory was fullest, and which lines of the program held it.

A trace is a ring that forgets its beginning; the segments, taken at the moment of the snapshot, are
always complete. So everything here starts from the blocks that are alive at the end and undoes the
trace event by event: what is left was alive before it began, and is counted, not guessed.

Bytes are those the program asked for. An allocation counts from `alloc` to `free_completed`, when
its memory can serve another one, as in memory_viz's timeline.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pytracer.errors import PytracerError

Event = Mapping[str, Any]

_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|functorch)[/\\]")


class Frame(NamedTuple):
    """One Python frame of a call stack."""

    filename: str
    name: str
    line: int


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a trace.

    Attributes:
        peak_bytes: Bytes allocated at that moment.
        event: Index in the device's trace of the event that reached it (the first, if several did);
            None if it was never higher than before the first event.
        time_us: That event's time, in microseconds since the Unix epoch; None with `event`.
        initial_bytes: Bytes allocated before the first event of the trace.
        final_bytes: Bytes allocated at the end, when the snapshot was taken.
    """

    peak_bytes: int
    event: int | None
    time_us: int | None
    initial_bytes: int
    final_bytes: int


@dataclass(frozen=True)
class Site:
    """The allocations of one line of the program, among those alive at one moment.

    Attributes:
        size_bytes: Their bytes.
        count: How many they are.
        call_site: The innermost frame outside torch's own package, else the innermost frame; None
            for allocations whose stack is not in the snapshot (older than the trace, or recorded
            without stacks).
        frames: The whole stack, innermost first; where several lead to the call site, the one that
            holds most bytes.
    """

    size_bytes: int
    count: int
    call_site: Frame | None
    frames: tuple[Frame, ...]


class _Allocation(NamedTuple):
    size: int
    frames: Sequence[Mapping[str, Any]]  # empty: not known


def peak(snapshot: Mapping[str, Any], device: int = 0) -> Peak:
    """Finds the moment of a trace when most bytes were allocated.

    Args:
        snapshot: A snapshot, as `load` returns it.
        device: The device's index; CPU memory is device 0 of its snapshot.

    Raises:
        PytracerError: The snapshot has no such device, or its trace contradicts its segments.
    """
    trace = _trace(snapshot, device)
    final_bytes = sum(block["requested_size"] for block in _live_blocks(snapshot, device))
    signs = {"alloc": 1, "free_completed": -1}
    changes = np.fromiter((signs.get(e["action"], 0) * e["size"] for e in trace), np.int64)
    # Bytes allocated before the first event, and after each one.
    levels = np.concatenate(([0], np.cumsum(changes)))
    levels += final_bytes - levels[-1]
    if levels.min() < 0:
        raise _contradiction(
            device, f"less than nothing is allocated before event {levels.argmin()}"
        )
    highest = int(levels.argmax())
    event = highest - 1 if highest > 0 else None
    return Peak(
        peak_bytes=int(levels[highest]),
        event=event,
        time_us=trace[event]["time_us"] if event is not None else None,
        initial_bytes=int(levels[0]),
        final_bytes=final_bytes,
    )


def sites_at_peak(snapshot: Mapping[str, Any], device: int = 0, top: int = 10) -> list[Site]:
    """Finds the lines of the program that held most memory at the peak.

    Args:
        snapshot: A snapshot, as `load` returns it.
        device: The device's index; CPU memory is device 0 of its snapshot.
        top: How many to return at most.

    Returns:
        Sites, the largest first. Those of all allocations (a large `top`) add up to the peak.

    Raises:
        PytracerError: As for `peak`.
    """
    fullest = peak(snapshot, device).event
    stacks: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
    converted: dict[int, tuple[Frame, ...]] = {}  # the snapshot shares its lists of frames
    for size, frames in _alive_after(snapshot, device, fullest):
        stack = converted.get(id(frames))
        if stack is None:
            stack = tuple(Frame(f["filename"], f["name"], f["line"]) for f in frames)
            converted[id(frames)] = stack
        stacks[stack].append(size)

    by_call_site: dict[Frame | None, list[tuple[Frame, ...]]] = defaultdict(list)
    for stack in stacks:
        by_call_site[_call_site(stack)].append(stack)
    sites = [
        Site(
            size_bytes=sum(sum(stacks[stack]) for stack in group),
            count=sum(len(stacks[stack]) for stack in group),
            call_site=call_site,
            frames=max(group, key=lambda stack: sum(stacks[stack])),
        )
        for call_site, group in by_call_site.items()
    ]
    sites.sort(key=lambda site: site.size_bytes, reverse=True)
    return sites[:top]


def _call_site(stack: tuple[Frame, ...]) -> Frame | None:
    if not stack:
        return None
    return next((frame for frame in stack if not _TORCH.search(frame.filename)), stack[0])


def _alive_after(
    snapshot: Mapping[str, Any], device: int, event: int | None
) -> Iterator[_Allocation]:
    """The allocations alive after an event of the trace (None: before its first)."""
    trace = _trace(snapshot, device)
    alive = {
        block["address"]: _Allocation(block["requested_size"], block["frames"])
        for block in _live_blocks(snapshot, device)
    }
    # Back to the beginning: a block that goes during the trace is found by its free, which tells
    # its size but not who allocated it.
    for index in reversed(range(len(trace))):
        action, address = trace[index]["action"], trace[index].get("addr")
        if action == "free_completed":
            if address in alive:
                raise _contradiction(device, f"what event {index} frees is still there after it")
            alive[address] = _Allocation(trace[index]["size"], ())
        elif action == "alloc" and alive.pop(address, None) is None:
            raise _contradiction(device, f"what event {index} allocates is not there after it")
    # And forward again: what is allocated during the trace comes with its stack.
    for entry in trace[: 0 if event is None else event + 1]:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = _Allocation(entry["size"], entry["frames"])
        elif entry["action"] == "free_completed":
            del alive[entry["addr"]]
    yield from alive.values()


def _trace(snapshot: Mapping[str, Any], device: int) -> Sequence[Event]:
    traces: Sequence[Sequence[Event]] = snapshot["device_traces"]
    if not 0 <= device < len(traces):
        raise PytracerError(f"device {device}: this snapshot has {len(traces)}, counted from 0")
    return traces[device]


def _live_blocks(snapshot: Mapping[str, Any], device: int) -> Iterator[Mapping[str, Any]]:
    for segment in snapshot["segments"]:
        if segment["device"] == device:
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    yield block


def _contradiction(device: int, what: str) -> PytracerError:
    return PytracerError(
        f"the trace of device {device} and the segments of this snapshot contradict each other: "
        f"{what}; take the snapshot again, and report it if pytracer wrote it"
    )
