"""The memory held at a moment, grouped by one of `KEYS`, such as the call site.

from pytracer.analysis import who_holds
from pytracer.reading import load

for held in who_holds(load("snapshot.pickle"), at="peak", by="caller"):
    print(held.name, held.groups[:3])
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytracer.analysis.block_categories import rows_at_end
from pytracer.analysis.call_sites import (
    UNKNOWN,
    active_at,
    call_sites,
    callers_of,
    frame_at,
    is_programs,
    sum_by_key,
)
from pytracer.analysis.categories import categories_at
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.modules import modules_at
from pytracer.analysis.moments import Moment, moment_of
from pytracer.errors import PytracerError
from pytracer.reading.metadata import device_name, step_at
from pytracer.reading.snapshot import INACTIVE, Column, Frame, Snapshot, Stacks

KEYS = (
    *("line", "caller", "stack", "category", "owner", "module"),
    *("phase", "step", "age", "stream", "pool"),
)
"""What memory can be grouped by."""


@dataclass(frozen=True)
class Group:
    """The active blocks that have the same key.

    Attributes:
        frames: By "line": the call site, then its callers as far as `depth`. By "caller": the
            program's frame that called the call site, then its callers. By "stack": all frames,
            innermost first. [] for blocks without such a frame, and for other keys.
        phase: By "phase": the phase; "" for no phase, None if unknown.
        step: By "step": the step of the allocation; None if unknown.
        age: By "age": the age in steps; None if unknown.
        category: By "category" and "owner": what the blocks hold (see `CategoryUsage`).
        owner: By "owner": the name of the largest tensor in the blocks; None if none is known.
        stream: By "stream": the stream, as the allocator numbers it; None if unknown.
        pool: By "pool": the memory pool, as torch numbers it; (0, 0) is the default pool. None if
            unknown.
        module: By "module": the path of the module, as in `ModuleUsage`; None if none is known.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    size_bytes: int
    requested_bytes: int
    count: int
    frames: list[Frame] = field(default_factory=list)
    phase: str | None = None
    step: int | None = None
    age: int | None = None
    category: str | None = None
    owner: str | None = None
    module: str | None = None
    stream: int | None = None
    pool: tuple[int, int] | None = None


@dataclass(frozen=True)
class Held:
    """Who holds the memory of one device at one moment.

    Attributes:
        path: The file's path.
        device: The index of the device in the file.
        name: The name of the device, as in "cuda:0".
        moment: The moment.
        is_exact: Whether the sizes of all blocks are known. If not, bytes are lower bounds.
        by: What the groups differ in: one of `KEYS`.
        active_bytes: The bytes of all groups.
        groups: The groups, the largest first.
    """

    path: str
    device: int
    name: str
    moment: Moment
    is_exact: bool
    by: str
    active_bytes: int
    groups: list[Group]


def who_holds(
    snapshot: Snapshot,
    device: int | None = None,
    *,
    at: str | None = None,
    by: str = "line",
    depth: int = 0,
) -> list[Held]:
    """Return who holds memory at a moment, for each device.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device; None for all devices that were used.
        at: "oom", "peak", "end", the index of an event, or "+SECONDS" after the first event. None:
            the last out-of-memory, or else the peak.
        by: What to group by: one of `KEYS`.
        depth: How many callers distinguish groups by "line" and "caller".

    Raises:
        PytracerError: The snapshot has no such device or no such moment, or `by` is unknown.
    """
    if by not in KEYS:
        raise PytracerError(f"by={by!r} is unknown: give one of {', '.join(KEYS)}")
    found = []
    for index in chosen_devices(snapshot, device):
        data = device_data(snapshot, index)
        moment = moment_of(data, at)
        groups = groups_at(data, moment, by, depth)
        known = data.known_usage
        is_exact = known is None or moment.entry is None
        if known is not None and moment.entry is not None:
            is_exact = known.uncertain_at(moment.entry) == 0
        found.append(
            Held(
                path=snapshot.path,
                device=index,
                name=device_name(snapshot, index),
                moment=moment,
                is_exact=is_exact,
                by=by,
                active_bytes=sum(group.size_bytes for group in groups),
                groups=groups,
            )
        )
    return found


def groups_at(data: DeviceData, moment: Moment, by: str, depth: int = 0) -> list[Group]:
    """Return the blocks that are active at a moment, grouped; the largest group first.

    Args:
        data: The device.
        moment: The moment.
        by: One of `KEYS`.
        depth: How many callers distinguish groups by "line" and "caller".

    Raises:
        PytracerError: The file lacks what the key needs: the trace, or the owners of blocks.
    """
    if by in ("category", "owner"):
        return sorted(_by_category(data, moment, by), key=lambda group: -group.size_bytes)
    if by == "module":
        return [
            _group((usage.size_bytes, usage.requested_bytes, usage.count), module=usage.module)
            for usage in modules_at(data, moment.entry)
        ]
    if by in ("stream", "pool"):
        return sorted(_by_place(data, moment, by), key=lambda group: -group.size_bytes)
    stack, size, requested, alloc, phase = _blocks(data, moment, by)
    stacks = data.snapshot.stacks
    if by in ("line", "caller", "stack"):
        present, sums = sum_by_key(stack, size, requested, 1)
        frames_of = _frames_of(stacks, by, depth)
        merged: dict[tuple[int, ...], list[int]] = {}
        for row, which in enumerate(present.tolist()):
            total = merged.setdefault(frames_of(which), [0, 0, 0])
            for i, column in enumerate(sums):
                total[i] += int(column[row])
        found = [_group(total, frames=_frames(stacks, key)) for key, total in merged.items()]
    elif by == "phase":
        known = np.where(alloc < 0, -1, phase.astype(np.int64))
        present, sums = sum_by_key(known, size, requested, 1)
        found = [
            _group(total, phase=None if key < 0 else data.snapshot.strings[key])
            for key, *total in zip(present.tolist(), *(c.tolist() for c in sums), strict=True)
        ]
    else:
        found = _by_step(data, moment, by, alloc, [size, requested])
    return sorted(found, key=lambda group: -group.size_bytes)


def _group(total: Sequence[int], **key: Any) -> Group:
    size_bytes, requested_bytes, count = total
    return Group(size_bytes, requested_bytes, count, **key)


def _by_category(data: DeviceData, moment: Moment, by: str) -> Iterator[Group]:
    snapshot = data.snapshot
    if not snapshot.blocks.category.any():
        raise PytracerError(f"{snapshot.path} has no owners of blocks, so no {by}")
    for usage in categories_at(data, moment.entry):
        total = [usage.size_bytes, usage.requested_bytes, usage.count]
        if by == "owner":
            for owner in usage.owners:
                yield _group(
                    (owner.size_bytes, owner.requested_bytes, owner.count),
                    category=usage.category,
                    owner=owner.name,
                )
                total[0] -= owner.size_bytes
                total[1] -= owner.requested_bytes
                total[2] -= owner.count
        if total[2]:
            yield _group(total, category=usage.category)


def _by_place(data: DeviceData, moment: Moment, by: str) -> Iterator[Group]:
    """Yield the groups of streams, or of memory pools."""
    snapshot, blocks, segments = data.snapshot, data.snapshot.blocks, data.snapshot.segments
    history = data.history if moment.entry is None else data.known_usage
    if history is None:
        is_own = segments.device[blocks.segment] == data.device
        rows = np.flatnonzero(is_own & (blocks.state != INACTIVE))
        key = getattr(segments, by)[blocks.segment[rows]].astype(np.int64)
        sizes = blocks.size_bytes[rows], blocks.requested_bytes[rows]
    else:
        lives = history.blocks
        entry = len(data.trace) if moment.entry is None else moment.entry
        alive = np.flatnonzero(active_at(history, entry))
        # The allocation of an older block is not in the trace, but its segment may be in the file.
        row = rows_at_end(snapshot, data.device, lives)[alive]
        key = getattr(lives, by)[alive].astype(np.int64)
        if by == "pool":
            key[lives.alloc_event[alive] < 0] = -1
        if len(blocks):
            key = np.where(row < 0, key, getattr(segments, by)[blocks.segment[row]])
        sizes = lives.size_bytes[alive], lives.requested_bytes[alive]
    present, sums = sum_by_key(key, *sizes, 1)
    for place, *total in zip(present.tolist(), *(column.tolist() for column in sums), strict=True):
        if by == "stream":
            yield _group(total, stream=place)
        else:
            yield _group(total, pool=None if place < 0 else tuple(snapshot.pools[place].tolist()))


def _by_step(
    data: DeviceData, moment: Moment, by: str, alloc: Column, sizes: list[Column]
) -> list[Group]:
    now = None if moment.event is None else step_at(data.boundaries, moment.event)
    begins = np.array([first for _, first in data.boundaries], np.int64)
    steps = np.array([-1, *(step for step, _ in data.boundaries)], np.int64)
    present, sums = sum_by_key(steps[np.searchsorted(begins, alloc, "right")], *sizes, 1)
    found = []
    for number, *total in zip(present.tolist(), *(c.tolist() for c in sums), strict=True):
        step = None if number < 0 else number
        age = None if step is None or now is None else now - step
        found.append(
            _group(total, step=step if by == "step" else None, age=age if by == "age" else None)
        )
    return found


def _blocks(data: DeviceData, moment: Moment, by: str) -> tuple[Column, ...]:
    """Return stack, size, requested bytes, alloc event and phase of the active blocks."""
    snapshot, entry = data.snapshot, moment.entry
    history = data.history if entry is None else data.known_usage
    if entry is None and history is not None:
        entry = len(data.trace)
    if history is None or entry is None:
        if by in ("phase", "step", "age"):
            raise PytracerError(f"{snapshot.path} has only the state at the end, without {by}s")
        blocks = snapshot.blocks
        is_own = snapshot.segments.device[blocks.segment] == data.device
        active = np.flatnonzero(is_own & (blocks.state != INACTIVE))
        unknown = np.full(len(active), -1)
        return (
            blocks.stack[active],
            blocks.size_bytes[active],
            blocks.requested_bytes[active],
            unknown,
            unknown,
        )
    lives, alive = history.blocks, np.flatnonzero(active_at(history, entry))
    return (
        lives.stack[alive],
        lives.size_bytes[alive],
        lives.requested_bytes[alive],
        lives.alloc_event[alive],
        lives.user_metadata[alive],
    )


def _frames_of(stacks: Stacks, by: str, depth: int) -> Callable[[int], tuple[int, ...]]:
    """Return a function from a stack to the indices of the frames that make its group."""
    if by == "stack":
        return lambda stack: tuple(stacks.frame[stacks.offsets[stack] : stacks.offsets[stack + 1]])
    sites, is_own = call_sites(stacks), is_programs(stacks)

    def frames(stack: int) -> tuple[int, ...]:
        site = int(sites[stack])
        if site == UNKNOWN:
            return ()
        callers = [frame for frame in callers_of(stacks, stack, site) if is_own[frame]]
        if by == "caller":
            return tuple(callers[: depth + 1])
        return (site, *callers[:depth])

    return frames


def _frames(stacks: Stacks, indices: tuple[int, ...]) -> list[Frame]:
    return [frame for index in indices if (frame := frame_at(stacks, int(index))) is not None]
