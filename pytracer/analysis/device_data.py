"""The data of one device of a snapshot, from which its report and its explanation are made."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytracer.analysis.block_categories import BlockCategories, block_categories, rows_at_end
from pytracer.analysis.call_sites import CallChains
from pytracer.analysis.history import ContradictionError, History, replay, unknown_history
from pytracer.analysis.stack_places import StackPlaces, stack_places
from pytracer.errors import PytracerError
from pytracer.reading.metadata import Boundaries, DeviceMetadata, FileMetadata
from pytracer.reading.snapshot import Column, Snapshot, Trace, has_events, used_devices
from pytracer.reading.steps import step_boundaries

_NO_EVENTS = Trace(*(np.zeros(0, kind) for kind in ("u1", *["i8"] * 4, *["u4"] * 4)))


@dataclass(frozen=True, eq=False)
class DeviceData:
    """One device of a snapshot."""

    snapshot: Snapshot
    device: int
    trace: Trace  # the device's events; none in the oldest files
    # The usage over the trace. Unknown without events, and with a contradiction. In a file of one
    # phase, no entry is exact.
    history: History
    # Why the trace does not lead to the final state; None if it does.
    contradiction: str | None
    boundaries: Boundaries
    metadata: DeviceMetadata

    @property
    def is_cpu(self) -> bool | None:
        """Whether the device is the CPU; None if unknown."""
        return self.metadata.is_cpu

    @property
    def has_marked_steps(self) -> bool:
        """Whether the program marked steps: a tracer is in step 1 until a step ends."""
        file = self.snapshot.metadata
        if not self.boundaries or not file.is_pytracers:
            return bool(self.boundaries)
        return (file.current_step or 1) > 1 or any(step > 1 for step, _ in self.boundaries)

    @property
    def stack_places(self) -> StackPlaces:
        """Where in a training each stack is."""
        return stack_places(self.snapshot)

    @cached_property
    def chains(self) -> CallChains:
        """The call site of each stack, and its callers."""
        return CallChains(self.snapshot.stacks)

    @cached_property
    def block_categories(self) -> BlockCategories | None:
        """What each block of the history was for; None if the trace was not replayed."""
        if not self.history.is_known:
            return None
        return block_categories(self.snapshot, self.device, self.history)

    @cached_property
    def rows_at_end(self) -> Column:
        """The row of each block of the history in the snapshot's blocks, as of `rows_at_end`."""
        return rows_at_end(self.snapshot, self.device, self.history.blocks)


def device_data(snapshot: Snapshot, device: int) -> DeviceData:
    """Replay a device's trace and collect what the file says about the device."""
    history, contradiction = unknown_history(), None
    has_trace = 0 <= device < len(snapshot.traces)
    trace = snapshot.traces[device] if has_trace else _NO_EVENTS
    if has_events(trace):
        try:
            history = replay(snapshot, device)
            if snapshot.metadata.only_phase is not None:
                history = history.without_exact_entries()
        except ContradictionError as error:
            contradiction = str(error)
    return DeviceData(
        snapshot=snapshot,
        device=device,
        trace=trace,
        history=history,
        contradiction=contradiction,
        boundaries=step_boundaries(snapshot, device) if has_trace else [],
        metadata=snapshot.metadata.device(device),
    )


def expands(data: DeviceData) -> bool:
    """Return whether expandable segments were on at the end."""
    segments = data.snapshot.segments
    return data.snapshot.allocator_settings.get("expandable_segments") is True or bool(
        (segments.is_expandable & (segments.device == data.device)).any()
    )


def why_empty(metadata: FileMetadata) -> str:
    """Return why a file has no device that was in use, and what to do, as a part of a sentence."""
    reason = 'no recorded device was used; "pytracer doctor" shows which can be recorded here'
    if metadata.untraced is not None:
        reason = metadata.untraced.rstrip(".")
    elif metadata.waiting:
        reason = "it was written while no step was being recorded"
    return f"the file has no events and no segments: {reason}"


def chosen_devices(snapshot: Snapshot, device: int | None) -> list[int]:
    """Return the devices to report: the given one, or all devices that were used.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    used = used_devices(snapshot)
    known = {*used, *range(len(snapshot.traces))}
    if device is not None and device not in known:
        others = f"it has {', '.join(map(str, sorted(known)))}" if known else "it has no devices"
        raise PytracerError(f"{snapshot.path} has no device {device}: {others}")
    return used if device is None else [device]
