"""What is searched for leaks: the blocks of one device over consecutive slots.

A step of a large model has ten thousand allocations, so the ring has the events of a few steps. Of
earlier steps, the blocks that are still there are searched: live blocks carry the step in which
they were allocated, and those of a leak are of all steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pytracer.analysis.call_sites import ProgramFiles, is_programs_frame
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.holder_names import holder_names, main_holder
from pytracer.analysis.leaks.growth import LEAST_SLOTS, Lives
from pytracer.reading.metadata import KeptMemory
from pytracer.reading.snapshot import Column, Frame
from pytracer.reading.steps import steps_at


@dataclass(frozen=True, eq=False)
class Observation:
    """What was observed on one device."""

    lives: Lives  # the blocks that outlived a slot
    site: Column  # int64, for each stack a number that identifies its call site
    # Returns the frames of a stack, from the call site outwards; () for an empty stack.
    frames: Callable[[int], tuple[Frame, ...]]
    files: ProgramFiles
    # bool, whether a model or an optimizer has the block at the end. Gradients and states of an
    # optimizer that are made late are no leak: the parameters bound them.
    is_owned: Column
    is_of_model: Column  # bool, whether the block is a parameter or a buffer at the end
    # bool, whether cuBLAS has the block, which the end of a program does not free.
    is_workspace: Column
    slots: int
    position: Column  # float64, the position of each slot: its step, or its time in seconds
    has_steps: bool  # whether the slots are steps
    begins_late: bool  # whether the steps before the first slot are missing
    doubt: str  # why no growth can certainly be a leak; "" if one can
    # The first step of which all releases are known; 0: they are of all slots. Of blocks that were
    # released in an earlier step, nothing is.
    events_from: int = 0
    # int64, the requested bytes of all allocations in each slot; None if unknown.
    volume_bytes: Column | None = None
    # The blocks that were born after the last slot and are alive at the end of the file; None if
    # there are none.
    later: Lives | None = None
    # bool, whether each of them is a parameter or a buffer.
    later_is_of_model: Column = field(default_factory=lambda: np.zeros(0, bool))
    # int64, the slot of the release and the size of each block that is older than the first slot,
    # whose stack is unknown.
    older_death: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    older_bytes: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    kept_before: Sequence[KeptMemory] = ()  # what objects kept at an earlier step
    strings: Sequence[str] = ("",)  # the texts by the numbers of `Lives.phase` and `Lives.holder`

    def keeper_before(self, frames: Sequence[Frame]) -> tuple[str | None, int | None]:
        """Return what kept most memory of a call site at an earlier step, and the bytes of it.

        Args:
            frames: The call site and its callers in the program, as of `Growth`.
        """
        rows = []
        for row in self.kept_before:
            site, *callers = (Frame(*frame) for frame in row.frames)
            path = [site, *(each for each in callers if is_programs_frame(each, self.files))]
            shared = min(len(path), len(frames))
            if frames and path[:shared] == [*frames[:shared]]:
                rows.append(row)
        texts = [row.holder for row in rows]
        sizes = np.array([row.size_bytes for row in rows], np.int64)
        name = main_holder(texts, np.arange(len(rows)), sizes)
        names, group = holder_names(texts, np.arange(len(rows)))
        if name is None:
            return None, None
        return name, int(sizes[group == names.index(name)].sum())


_MOST_SLOTS = 256  # far fewer than steps whose blocks are told apart (`Blocks.birth_step`)


def edges_of_survivors(data: DeviceData, first: int, last: int) -> Column | None:
    """Return slots of equally many steps: the first one of each, and that after the last: int64.

    Args:
        first, last: The complete steps of which the file has all events.

    Returns:
        None if there are no earlier ones, or too few.
    """
    # Steps of a job that goes on do not begin at 1.
    begun = data.snapshot.metadata.host_memory[0][0] if data.snapshot.metadata.host_memory else 1
    births = data.history.blocks.birth_step
    earliest = min(begun, int(births[births > 0].min(initial=first)))
    steps = last + 1 - earliest
    if earliest >= first or steps < LEAST_SLOTS:
        return None
    return np.linspace(earliest, last + 1, min(steps, _MOST_SLOTS) + 1).astype(np.int64)


def slots_of_survivors(data: DeviceData, edges: Column) -> tuple[Column, Column]:
    """Return the slots in which each block was allocated and released, as `Lives` has them."""
    blocks, boundaries = data.history.blocks, data.boundaries
    step_of = partial(steps_at, boundaries, before=boundaries[0][0] - 1)

    def slot_of(step: Column) -> Column:
        slot: Column = np.searchsorted(edges, step, "right") - 1
        return slot

    birth = np.where(blocks.alloc_event >= 0, step_of(blocks.alloc_event), blocks.birth_step)
    is_left = blocks.free_requested_event >= len(data.trace)
    death = np.where(is_left, edges[-1], step_of(blocks.free_requested_event))
    return slot_of(birth), slot_of(death)
