"""Who kept blocks that no Python object keeps: functions until they returned, and pools.

A function's variables are freed when it returns, with the stack of its caller. Without this, a
file that is written when main() has returned could not tell what kept the memory of the peak.
"""

from pathlib import PurePosixPath

import numpy as np

from pytracer.analysis.call_sites import is_programs
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.history import Lifetimes
from pytracer.analysis.holder_names import UNTIL
from pytracer.analysis.life_rules import shows_lives
from pytracer.reading.snapshot import ALLOC, FREE_REQUESTED, Column, Stacks

_MOST = 64  # of how many stacks of frees the text is found
_COMPARED = 8  # frames of two stacks


def releases(data: DeviceData, blocks: Lifetimes, rows: Column) -> tuple[list[str], Column]:
    """Return until when the program kept blocks.

    Args:
        rows: int64, the blocks that are wanted.

    Returns:
        Texts, the first of which is "": "until main() returned", or "until update() released it
        (cache_utils.py:143)". And for each wanted block an index in them; 0: not known, as for
        blocks that were not freed.
    """
    texts, found = {"": 0}, np.zeros(len(rows), np.int64)
    trace, stacks = data.trace, data.snapshot.stacks
    freed = blocks.free_requested_event[rows].astype(np.int64)
    is_freed = (freed >= 0) & (freed < len(trace))
    if not is_freed.any() or not shows_lives(data.snapshot):
        return [*texts], found
    is_of_program = is_programs(stacks)
    is_of_engine = data.stack_places.is_of_engine
    stack = np.where(is_freed, trace.stack[np.where(is_freed, freed, 0)], 0).astype(np.int64)
    stack[is_of_engine[stack]] = 0
    begin = np.maximum(blocks.alloc_event[rows].astype(np.int64), 0)  # as far as the trace goes
    # What was kept for long comes first: short-lived blocks of a recording may have more bytes.
    held = np.bincount(stack, blocks.size_bytes[rows] * (freed - begin), len(stacks))
    # Frees and allocations of autograd's engine are on threads of their own.
    counts = ((trace.action == ALLOC) | (trace.action == FREE_REQUESTED)) & (
        ~is_of_engine[trace.stack] & (np.diff(stacks.offsets) > 0)[trace.stack]
    )
    for number in np.argsort(-held, kind="stable")[:_MOST].tolist():
        if number == 0 or held[number] == 0:
            continue
        called_at = _called_at(stacks, number)
        is_below = called_at < stacks.offsets[1:]
        elsewhere = np.append(0, np.cumsum(counts & ~is_below[trace.stack]))
        is_end = trace.stack == number
        inside = np.cumsum(counts & is_below[trace.stack] & ~is_end)
        ends = np.flatnonzero(is_end & (trace.action == FREE_REQUESTED))
        places = np.flatnonzero(stack == number)
        # All that the thread did between the two was in one call of this line: the end of no other,
        # as in a loop, released anything meanwhile.
        earlier = np.searchsorted(inside[ends], inside[freed[places]])
        is_one_call = np.append(-1, ends)[earlier] < begin[places]
        is_over = elsewhere[freed[places]] == elsewhere[begin[places]]
        made_by = np.where(is_over & is_one_call, blocks.stack[rows[places]], 0)
        used, which = np.unique(made_by, return_inverse=True)
        numbers = np.zeros(len(used), np.int64)
        for i, each in enumerate(used.tolist()):
            inner = _called(stacks, each, int(called_at[each]), is_of_program)
            if inner is not None:
                text = f"{UNTIL}{stacks.strings[stacks.name[inner]]}() returned"
            else:
                text = UNTIL + _at(stacks, number, is_of_program, " released it")
            numbers[i] = texts.setdefault(text, len(texts))
        found[places] = numbers[which]
    return [*texts], found


def pool_fillers(data: DeviceData, blocks: Lifetimes, rows: Column) -> tuple[list[str], Column]:
    """Return which private pools, as of CUDA graphs, have blocks, and who filled them first.

    The arguments and what is returned are as of `releases`.
    """
    texts, found = [""], np.zeros(len(rows), np.int64)
    trace, snapshot = data.trace, data.snapshot
    is_of_program = is_programs(snapshot.stacks)
    pool = blocks.pool[rows]
    for number in np.unique(pool[(pool > 0) & (blocks.alloc_event[rows] >= 0)]).tolist():
        first = np.flatnonzero((trace.action == ALLOC) & (trace.pool == number))[:1]
        if len(first) and (stack := int(trace.stack[first[0]])):
            high, low = snapshot.pools[number].tolist()
            where = _at(snapshot.stacks, stack, is_of_program)
            found[pool == number] = len(texts)
            texts.append(f"the pool ({high}, {low}), first filled by {where}")
    return texts, found


def _called_at(stacks: Stacks, number: int) -> Column:
    """Return the place in each stack of the innermost frames of one stack: the call that runs.

    A few frames are compared, because outer ones are missing where a stack was cut off. Of a stack
    that does not have them, its end: int64.
    """
    end = stacks.offsets[1:]
    begin, length = int(stacks.offsets[number]), int(np.diff(stacks.offsets)[number])
    wanted = stacks.frame[begin : begin + min(length, _COMPARED)]
    of_stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    places = np.flatnonzero(stacks.frame == wanted[0])
    for offset in range(1, len(wanted)):
        places = places[places + offset < len(stacks.frame)]
        places = places[stacks.frame[places + offset] == wanted[offset]]
        places = places[of_stack[places + offset] == of_stack[places]]
    found: Column = end.copy()
    found[of_stack[places]] = places
    return found


def _called(stacks: Stacks, stack: int, place: int, is_of_program: Column) -> int | None:
    """Return the program's outermost frame of a stack that is inside of the frame at a place."""
    if place >= stacks.offsets[stack + 1]:
        return None
    inner = stacks.frame[stacks.offsets[stack] : place]
    return next((int(each) for each in inner[::-1] if is_of_program[each]), None)


def _at(stacks: Stacks, stack: int, is_of_program: Column, verb: str = "") -> str:
    """Return the program's innermost frame, as in "main() (train.py:3)"."""
    frames = stacks.frame[stacks.offsets[stack] : stacks.offsets[stack + 1]]
    frame = next((int(each) for each in frames if is_of_program[each]), int(frames[0]))
    file = PurePosixPath(stacks.strings[stacks.filename[frame]].replace("\\", "/")).name
    return f"{stacks.strings[stacks.name[frame]]}(){verb} ({file}:{stacks.line[frame]})"
