"""Which lines of the program held the memory, at any moment of a trace.

A block counts from its allocation to when its memory can serve another one (`free_completed`), as
in memory_viz's timeline: the bytes of all sites add up to the level's `active_bytes`.
"""

import re
from dataclasses import dataclass

import numpy as np

from pytracer.reading.history import History
from pytracer.reading.snapshot import INACTIVE, PENDING_FREE, Column, Frame, Snapshot, Stacks

_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|functorch)[/\\]")

UNKNOWN = -1
"""The call site of an empty stack."""


@dataclass(frozen=True)
class Site:
    """The blocks of one line of the program, among those of one moment.

    Attributes:
        call_site: The innermost frame outside torch's own packages, else the innermost frame; None
            for blocks whose stack is not in the snapshot (older than the trace, or recorded
            without stacks).
        size_bytes: What the allocator gave them.
        requested_bytes: What the program asked for.
        pending_bytes: Of `size_bytes`, those of blocks that the program has freed and a stream
            still uses: in `active_bytes`, not in `allocated_bytes`.
        count: How many they are.
        frames: The whole stack, innermost first; where several lead to the call site, the one that
            holds most bytes.
    """

    call_site: Frame | None
    size_bytes: int
    requested_bytes: int
    pending_bytes: int
    count: int
    frames: tuple[Frame, ...]


def call_sites(stacks: Stacks) -> Column:
    """Finds the call site of each distinct stack.

    Returns:
        int64, for each stack the index of a frame, in the columns of `stacks`; or `UNKNOWN`.
    """
    is_torch = np.zeros(len(stacks.strings), bool)
    for name in np.unique(stacks.filename).tolist():
        is_torch[name] = _TORCH.search(stacks.strings[name]) is not None
    outside = np.flatnonzero(~is_torch[stacks.filename][stacks.frame])
    begin, end = stacks.offsets[:-1], stacks.offsets[1:]
    # The next frame that is outside, from where each stack begins: it may be in a later stack.
    following = np.append(outside, len(stacks.frame))[np.searchsorted(outside, begin)]
    innermost = np.where(following < end, following, begin)
    frames = np.append(stacks.frame.astype(np.int64), UNKNOWN)
    return np.where(begin < end, frames[innermost], UNKNOWN)


def frame(stacks: Stacks, index: int) -> Frame | None:
    """One of the distinct frames, as `call_sites` names them; None: `UNKNOWN`."""
    if index == UNKNOWN:
        return None
    filename, name = (
        stacks.strings[int(column[index])] for column in (stacks.filename, stacks.name)
    )
    return Frame(filename, name, int(stacks.line[index]))


def sums(group: Column, values: Column | int, groups: int) -> Column:
    """The sum of the values of each group: int64, exact."""
    result = np.zeros(groups, np.int64)
    np.add.at(result, group, values)
    return result


def alive_at(history: History, level: int) -> Column:
    """Which blocks are active at an entry of `history.levels`: bool, one for each block."""
    blocks = history.blocks
    alive: Column = (blocks.alloc_event < level) & (blocks.free_event >= level)
    return alive


def sites_at(
    history: History, snapshot: Snapshot, level: int, top: int | None = None
) -> list[Site]:
    """Finds the lines of the program that hold memory at a moment.

    Args:
        history: As `replay` returns it.
        snapshot: That it is of.
        level: An entry of `history.levels`: `i + 1` is after event i, 0 before the first.
        top: How many to return at most; None: all. All add up to the level.

    Returns:
        The sites, the largest first.
    """
    blocks, alive = history.blocks, np.flatnonzero(alive_at(history, level))
    return _sites(
        snapshot,
        blocks.stack[alive],
        blocks.size_bytes[alive],
        blocks.requested_bytes[alive],
        blocks.free_requested_event[alive] < level,
        top,
    )


def sites_in_the_end(snapshot: Snapshot, device: int, top: int | None = None) -> list[Site]:
    """As `sites_at`, when the snapshot was taken: from its blocks, without the trace."""
    blocks = snapshot.blocks
    active = np.flatnonzero(
        (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
    )
    return _sites(
        snapshot,
        blocks.stack[active],
        blocks.size_bytes[active],
        blocks.requested_bytes[active],
        blocks.state[active] == PENDING_FREE,
        top,
    )


def _sites(
    snapshot: Snapshot,
    stack: Column,
    size_bytes: Column,
    requested_bytes: Column,
    is_pending: Column,
    top: int | None,
) -> list[Site]:
    # First by stack, of which there are few.
    present, of_block = np.unique(stack, return_inverse=True)
    by_stack = [
        sums(of_block, values, len(present))
        for values in (size_bytes, requested_bytes, size_bytes * is_pending, 1)
    ]
    site, of_stack = np.unique(call_sites(snapshot.stacks)[present], return_inverse=True)
    total, requested, pending, count = (sums(of_stack, each, len(site)) for each in by_stack)
    # The heaviest stack of each site comes first among the site's.
    order = np.lexsort((-by_stack[0], of_stack))
    heaviest = present[order[np.searchsorted(of_stack[order], np.arange(len(site)))]]
    largest = np.argsort(-total, kind="stable")[:top]
    return [
        Site(
            call_site=frame(snapshot.stacks, int(site[i])),
            size_bytes=int(total[i]),
            requested_bytes=int(requested[i]),
            pending_bytes=int(pending[i]),
            count=int(count[i]),
            frames=snapshot.stacks.frames(int(heaviest[i])),
        )
        for i in largest
    ]
