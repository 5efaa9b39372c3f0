"""The memory held at a moment, by call site, category and phase of the allocation together."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.block_categories import UNKNOWN
from pytracer.analysis.call_sites import (
    active_at,
    call_sites,
    callers,
    frame_at,
    sum_by_key,
)
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.program_files import program_files
from pytracer.reading.snapshot import INACTIVE, Column, Frame

MOST_CALLERS = 3

_NO_PHASE = -1
"""The phase of blocks whose phase is unknown."""


@dataclass(frozen=True)
class SiteGroup:
    """The active blocks that have the same call site, category and phase.

    Attributes:
        call_site: The program's line; None if it is unknown.
        callers: The program's frames that called it, innermost first, at most `MOST_CALLERS`; in
            the stack that holds most bytes.
        category: What the blocks were for; None if the file does not have the owners of blocks.
        phase: The phase of the allocations; "" for no phase, None if unknown.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    call_site: Frame | None
    callers: list[Frame]
    category: str | None
    phase: str | None
    size_bytes: int
    requested_bytes: int
    count: int


@dataclass(frozen=True)
class OtherGroups:
    """The groups that are too small for a row of their own.

    Attributes:
        groups: The number of these groups.
        largest_bytes: The bytes of the largest of them.
        size_bytes, requested_bytes, count: Their sums.
    """

    groups: int
    largest_bytes: int
    size_bytes: int
    requested_bytes: int
    count: int


def site_groups(
    data: DeviceData, entry: int | None, top: int
) -> tuple[list[SiteGroup], OtherGroups | None]:
    """Return the blocks that are active at a moment, grouped; the largest group first.

    Args:
        data: The device.
        entry: An entry of `history.usage`; None: the end.
        top: The most groups to return.

    Returns:
        The groups, and the sum of all others; None if there are no others. Together they add up to
        the active bytes of the moment.
    """
    snapshot = data.snapshot
    stack, size, requested, names, category, phase = _blocks(data, entry)
    sites, site = np.unique(call_sites(snapshot.stacks)[stack], return_inverse=True)
    phases, which_phase = np.unique(phase, return_inverse=True)
    key = (site * len(names) + category) * max(len(phases), 1) + which_phase
    # By stack too, to find the stack of each group that holds most bytes.
    pairs, by_pair = sum_by_key(
        np.stack((key, stack.astype(np.int64)), axis=-1).view("i8,i8").ravel(), size, requested, 1
    )
    keys, sums = sum_by_key(pairs["f0"], *by_pair)
    order = np.lexsort((-by_pair[0], pairs["f0"]))
    heaviest = pairs["f1"][order[np.searchsorted(pairs["f0"][order], keys)]]
    largest = np.argsort(-sums[0], kind="stable")
    has_categories = bool(snapshot.blocks.category.any())
    stacks, found = snapshot.stacks, []
    files = program_files(stacks)
    for i in largest[:top].tolist():
        rest, of_phase = divmod(int(keys[i]), max(len(phases), 1))
        of_site, of_category = divmod(rest, len(names))
        frame = frame_at(snapshot.stacks, int(sites[of_site]))
        text = int(phases[of_phase])
        found.append(
            SiteGroup(
                call_site=frame,
                callers=callers(files, stacks.frames(int(heaviest[i])), frame)[:MOST_CALLERS],
                category=names[of_category] if has_categories else None,
                phase=None if text == _NO_PHASE else snapshot.strings[text],
                size_bytes=int(sums[0][i]),
                requested_bytes=int(sums[1][i]),
                count=int(sums[2][i]),
            )
        )
    return found, _others(sums, largest[top:])


def _others(sums: list[Column], rows: Column) -> OtherGroups | None:
    if not len(rows):
        return None
    return OtherGroups(
        groups=len(rows),
        largest_bytes=int(sums[0][rows].max()),
        size_bytes=int(sums[0][rows].sum()),
        requested_bytes=int(sums[1][rows].sum()),
        count=int(sums[2][rows].sum()),
    )


def _blocks(
    data: DeviceData, entry: int | None
) -> tuple[Column, Column, Column, tuple[str, ...], Column, Column]:
    """Return stack, sizes, the names of categories, category and phase of the active blocks."""
    snapshot, found = data.snapshot, data.block_categories
    history = data.history if entry is None else data.known_usage
    if history is not None:
        entry = len(data.trace) if entry is None else entry
        lives, alive = history.blocks, np.flatnonzero(active_at(history, entry))
        names, category = (
            ((UNKNOWN,), np.zeros(len(lives), np.int64)) if found is None else found.categories()
        )
        phase = np.where(
            lives.alloc_event[alive] < 0, _NO_PHASE, lives.user_metadata[alive].astype(np.int64)
        )
        return (
            lives.stack[alive],
            lives.size_bytes[alive],
            lives.requested_bytes[alive],
            *_distinct(names, category[alive]),
            phase,
        )
    blocks = snapshot.blocks
    is_own = snapshot.segments.device[blocks.segment] == data.device
    active = np.flatnonzero(is_own & (blocks.state != INACTIVE))
    texts, category = np.unique(blocks.category[active], return_inverse=True)
    names = tuple(snapshot.strings[text] or UNKNOWN for text in texts.tolist())
    return (
        blocks.stack[active],
        blocks.size_bytes[active],
        blocks.requested_bytes[active],
        *_distinct(names, category),
        np.full(len(active), _NO_PHASE),
    )


def _distinct(names: tuple[str, ...], category: Column) -> tuple[tuple[str, ...], Column]:
    """Return the names, at least one, and the categories so that equal names are one category."""
    first = np.array([names.index(name) for name in names], np.int64)
    return names or (UNKNOWN,), first[category] if len(names) else category.astype(np.int64)
