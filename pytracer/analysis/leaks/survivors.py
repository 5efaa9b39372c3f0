"""Growth in steps of which the ring has no events any more, by the blocks that are still there.

A step of a large model has ten thousand allocations, so the ring has the events of a few steps.
Live blocks carry the step in which they were allocated: those of a leak are of all steps.
"""

import numpy as np

from pytracer.analysis.block_categories import rows_at_end
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.leaks.growth import LEAST_SLOTS
from pytracer.reading.snapshot import Column

_MOST_SLOTS = 256
"""Far fewer than steps whose blocks are told apart (`Blocks.birth_step`)."""


def edges_of_survivors(data: DeviceData, first: int, last: int) -> Column | None:
    """Return slots of equally many steps: the first one of each, and that after the last: int64.

    Args:
        data: The device.
        first, last: The complete steps of which the file has all events.

    Returns:
        None if there are no earlier ones, or too few.
    """
    rows = rows_at_end(data.snapshot, data.device, data.history.blocks)
    births = data.snapshot.blocks.birth_step[rows[rows >= 0]]
    # Steps of a job that goes on do not begin at 1.
    begun = data.snapshot.metadata.host_memory[0][0] if data.snapshot.metadata.host_memory else 1
    earliest = min(begun, int(births[births > 0].min(initial=first)))
    steps = last + 1 - earliest
    if earliest >= first or steps < LEAST_SLOTS:
        return None
    return np.linspace(earliest, last + 1, min(steps, _MOST_SLOTS) + 1).astype(np.int64)


def slots_of_survivors(data: DeviceData, edges: Column) -> tuple[Column, Column]:
    """Return the slots in which each block was allocated and released, as `Lives` has them."""
    blocks = data.history.blocks
    numbers, firsts = np.array(data.boundaries, np.int64).T

    def step_of(event: Column) -> Column:
        at: Column = np.searchsorted(firsts, event, "right") - 1
        step: Column = np.where(at < 0, numbers[0] - 1, numbers[at])
        return step

    def slot_of(step: Column) -> Column:
        slot: Column = np.searchsorted(edges, step, "right") - 1
        return slot

    rows = rows_at_end(data.snapshot, data.device, blocks)
    known = np.zeros(len(rows), np.int64)
    known[rows >= 0] = data.snapshot.blocks.birth_step[rows[rows >= 0]]
    birth = np.where(blocks.alloc_event >= 0, step_of(blocks.alloc_event), known)
    is_left = blocks.free_requested_event >= len(data.trace)
    death = np.where(is_left, edges[-1], step_of(blocks.free_requested_event))
    return slot_of(birth), slot_of(death)
