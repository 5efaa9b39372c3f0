"""Growth in steps of which the ring has no events any more, by the blocks that are still there.

A step of a large model has ten thousand allocations, so the ring has the events of a few steps.
Live blocks carry the step in which they were allocated: those of a leak are of all steps.
"""

from functools import partial

import numpy as np

from pytracer.analysis.block_categories import rows_at_end
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.leaks.growth import LEAST_SLOTS
from pytracer.reading.snapshot import Column
from pytracer.reading.steps import steps_at

_MOST_SLOTS = 256
"""Far fewer than steps whose blocks are told apart (`Blocks.birth_step`)."""


def birth_steps(data: DeviceData) -> Column:
    """Return the step in which each block was allocated that lives at the end; 0: not known."""
    rows = rows_at_end(data.snapshot, data.device, data.history.blocks)
    found = np.zeros(len(rows), np.int64)
    found[rows >= 0] = data.snapshot.blocks.birth_step[rows[rows >= 0]]
    return found


def edges_of_survivors(data: DeviceData, births: Column, first: int, last: int) -> Column | None:
    """Return slots of equally many steps: the first one of each, and that after the last: int64.

    Args:
        data: The device.
        births: `birth_steps`.
        first, last: The complete steps of which the file has all events.

    Returns:
        None if there are no earlier ones, or too few.
    """
    # Steps of a job that goes on do not begin at 1.
    begun = data.snapshot.metadata.host_memory[0][0] if data.snapshot.metadata.host_memory else 1
    earliest = min(begun, int(births[births > 0].min(initial=first)))
    steps = last + 1 - earliest
    if earliest >= first or steps < LEAST_SLOTS:
        return None
    return np.linspace(earliest, last + 1, min(steps, _MOST_SLOTS) + 1).astype(np.int64)


def slots_of_survivors(data: DeviceData, births: Column, edges: Column) -> tuple[Column, Column]:
    """Return the slots in which each block was allocated and released, as `Lives` has them."""
    blocks, boundaries = data.history.blocks, data.boundaries
    step_of = partial(steps_at, boundaries, before=boundaries[0][0] - 1)

    def slot_of(step: Column) -> Column:
        slot: Column = np.searchsorted(edges, step, "right") - 1
        return slot

    birth = np.where(blocks.alloc_event >= 0, step_of(blocks.alloc_event), births)
    is_left = blocks.free_requested_event >= len(data.trace)
    death = np.where(is_left, edges[-1], step_of(blocks.free_requested_event))
    return slot_of(birth), slot_of(death)
