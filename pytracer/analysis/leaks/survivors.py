"""Growth in steps of which the ring has no events any more, by the blocks that are still there.

A step of a large model has ten thousand allocations, so the ring has the events of a few steps.
Live blocks carry the step in which they were allocated: those of a leak are of all steps.
"""

from typing import NamedTuple

import numpy as np

from pytracer.analysis.block_categories import rows_at_end
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.leaks.growth import LEAST_SLOTS
from pytracer.reading.snapshot import Column

_MOST_SLOTS = 256
"""Far fewer than steps whose blocks are told apart (`Blocks.birth_step`)."""


class Steps(NamedTuple):
    """The complete steps of a recording, in slots of equally many.

    Attributes:
        edges: int64, the first step of each slot, and the step after the last one.
        events_from: The first slot of which the file has all events.
    """

    edges: Column
    events_from: int

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self.edges) - 1

    @property
    def position(self) -> Column:
        """The last step of each slot: float64."""
        return self.edges[1:] - 1.0


def steps_of_survivors(data: DeviceData, first: int, last: int) -> Steps | None:
    """Return all steps up to the last complete one; None if earlier ones cannot be observed.

    Args:
        data: The device.
        first, last: The complete steps of which the file has all events.
    """
    rows = rows_at_end(data.snapshot, data.device, data.history.blocks)
    births = data.snapshot.blocks.birth_step[rows[rows >= 0]]
    # Steps of a job that goes on do not begin at 1.
    begun = data.snapshot.metadata.host_memory[0][0] if data.snapshot.metadata.host_memory else 1
    earliest = min(begun, int(births[births > 0].min(initial=first)))
    steps = last + 1 - earliest
    if earliest >= first or steps < LEAST_SLOTS:
        return None
    edges = np.linspace(earliest, last + 1, min(steps, _MOST_SLOTS) + 1).astype(np.int64)
    return Steps(edges, int(np.searchsorted(edges, first)))


def slots_of_survivors(data: DeviceData, steps: Steps) -> tuple[Column, Column]:
    """Return the slots in which each block was allocated and released, as `Lives` has them."""
    blocks = data.history.blocks
    numbers, firsts = np.array(data.boundaries, np.int64).T

    def step_of(event: Column) -> Column:
        at: Column = np.searchsorted(firsts, event, "right") - 1
        step: Column = np.where(at < 0, numbers[0] - 1, numbers[at])
        return step

    def slot_of(step: Column) -> Column:
        slot: Column = np.searchsorted(steps.edges, step, "right") - 1
        return slot

    rows = rows_at_end(data.snapshot, data.device, blocks)
    known = np.where(rows >= 0, data.snapshot.blocks.birth_step[rows], 0)
    birth = np.where(blocks.alloc_event >= 0, step_of(blocks.alloc_event), known)
    is_left = blocks.free_requested_event >= len(data.trace)
    death = np.where(is_left, steps.edges[-1], step_of(blocks.free_requested_event))
    return slot_of(birth), slot_of(death)
