"""The report of a snapshot in numbers, which `pytracer show --all` prints.

A report consists of dataclasses, numbers, strings, frames, lists and dicts. `to_json(report)` is
what `pytracer show --json` writes for each file: attributes are keys, and a frame is an object
with `filename`, `name` and `line`. Bytes are integers, times are microseconds since the Unix epoch,
events are indices in the device's trace. None, null in JSON, means unknown.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pytracer.analysis.block_categories import has_categories
from pytracer.analysis.blocks import held_at
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.groups import Held, held_by
from pytracer.analysis.moments import moment_of
from pytracer.analysis.ooms import (
    OutOfMemory,
    count_retries,
    is_oom_snapshot,
    out_of_memories,
    remainder,
)
from pytracer.analysis.steps_and_phases import Phase, Step, phases, steps
from pytracer.analysis.usage import UsageSample, final_sample, is_observable, sample_at
from pytracer.reading.metadata import DeviceMetadata, FileMetadata
from pytracer.reading.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    GIVES_MEMORY,
    NO_TIME,
    OOM,
    TAKES_MEMORY,
    Snapshot,
    Trace,
)
from pytracer.text import BriefRepr


@dataclass(frozen=True)
class Counts:
    """The number of events in a trace, by kind.

    Attributes:
        allocs: Allocations of blocks.
        frees: Completed frees of blocks, after which their memory can serve another block.
        device_allocs: How often the allocator took memory from the device (`segment_alloc`,
            `segment_map`).
        device_frees: How often the allocator gave memory back (`segment_free`, `segment_unmap`).
        ooms: Out-of-memory errors.
        retries: How often the device had no memory for a segment, so that the allocator gave its
            cached memory back and tried again: an estimate (see `count_retries`). None for the
            CPU, which has no cache.
    """

    allocs: int
    frees: int
    device_allocs: int
    device_frees: int
    ooms: int
    retries: int | None


@dataclass(frozen=True)
class Lost:
    """The data that the trace of a device lacks. None means unknown.

    Attributes:
        overwritten: The number of events that the ring overwrote, all of them older than the
            trace. In a file of one phase, the events of other phases are included.
        unknown_frees: The number of frees of unknown blocks.
        live_dropped: The number of blocks that did not fit into the table of live blocks.
        labels_dropped: The number of pools and labels that did not fit into their table.
        before_bytes: The bytes that had been requested and not freed before the first event.
        exact_from: The number of events after which all usage is exact. 0: all usage is exact. In
            a file of one phase (`DeviceReport.only_phase`) no usage over time is exact, and the
            value is larger than the number of events. None without a history.
    """

    overwritten: int | None
    unknown_frees: int | None
    live_dropped: int | None
    labels_dropped: int | None
    before_bytes: int | None
    exact_from: int | None


@dataclass(frozen=True)
class Outside:
    """The device's memory outside this allocator, when the snapshot was taken.

    The figures come from different sources and times. A difference that would be below 0 is None.

    Attributes:
        total_bytes: The device's memory, as its driver reported it.
        free_bytes: The device's free memory, as its driver reported it.
        process_bytes: The bytes that the process held on the device; None if the driver did not
            report them.
        reserved_bytes: The bytes that the process's allocator had reserved.
        elsewhere_bytes: `total_bytes - free_bytes - reserved_bytes`: held by other processes, and
            by this process outside the allocator.
        outside_bytes: `process_bytes - reserved_bytes`: held by this process outside the allocator
            (the device's context, libraries, other allocators).
        others_bytes: `total_bytes - free_bytes - process_bytes`: held by other processes.
    """

    total_bytes: int | None
    free_bytes: int | None
    process_bytes: int | None
    reserved_bytes: int | None
    elsewhere_bytes: int | None
    outside_bytes: int | None
    others_bytes: int | None


@dataclass(frozen=True)
class DeviceReport:
    """The report of one device.

    A peak is the highest value at the events in the file. The history is the usage after each
    event. It is missing if the file has no events, or if the trace does not lead to the final
    state.

    Attributes:
        device: The device's index in the file.
        name: The device's name, as in "cuda:0" and "cpu"; "device 0" if the file does not have it.
        is_cpu: Whether the device is the CPU; None if unknown. Each block of the CPU is written as
            a segment of its own.
        events: The number of events.
        first_us: The time of the first event; None if unknown.
        last_us: The time of the last event; None if unknown.
        only_phase: The phase, if the file has the events of one phase only (`discrete`); else None.
            All usage except `end` then lacks the allocations of other threads in other phases. So
            it may be too low. It may also be too high, if blocks of other phases still exist.
        contradiction: Why the trace does not lead to the final state; None if it does. With a
            contradiction there is no history, but `end` and `counts` are valid.
        is_oom_file: Whether the file was written because this device ran out of memory.
        lost: The data that the trace lacks.
        end: The usage when the snapshot was taken.
        peak_allocated: The first sample with the largest `allocated_bytes`; None without a history.
        is_peak_certain: Whether `peak_allocated` is certainly the peak, because usage before
            `lost.exact_from` cannot have been larger.
        peak_reserved: The first sample with the largest `reserved_bytes`; None without a history.
        counts: The number of events, by kind.
        outside: The device's memory outside the allocator; None if the file does not have it.
        held: Who held memory at the last of `ooms`, at `peak_allocated`, and at the end: by "line",
            by "category" and "owner" if the file has the owners of blocks, and by "module" if
            modules were phases (`pytracer.annotate_modules`). Without a history only at the end.
        steps: The usage of each step.
        phases: The usage of each phase.
        ooms: Each out-of-memory.
    """

    device: int
    name: str
    is_cpu: bool | None
    events: int
    first_us: int | None
    last_us: int | None
    only_phase: str | None
    contradiction: str | None
    is_oom_file: bool
    lost: Lost
    end: UsageSample
    peak_allocated: UsageSample | None
    is_peak_certain: bool
    peak_reserved: UsageSample | None
    counts: Counts
    outside: Outside | None
    held: list[Held]
    steps: list[Step]
    phases: list[Phase]
    ooms: list[OutOfMemory]

    def held_by(self, by: str, *moments: str) -> Held | None:
        """Return who held memory at the first of some moments that is known."""
        found = {(held.moment.name, held.by): held for held in self.held}
        return next((found[name, by] for name in moments if (name, by) in found), None)


@dataclass(frozen=True, repr=False)
class Report(BriefRepr):
    """The report of a file.

    Attributes:
        path: The file's path.
        metadata: The file's metadata without its devices (docs/reference/snapshot-format.md has
            the keys); {} in files of other recorders. `untraced`, `waiting`, `window`, `stacks` and
            `phases` describe what the file lacks.
        allocator_settings: The allocator's settings, as torch writes them.
        unknown_keys: The keys of the file that this version does not know, as "event.key".
        devices: The reports of the devices that were used.
    """

    path: str
    metadata: FileMetadata
    allocator_settings: dict[str, Any]
    unknown_keys: list[str]
    devices: list[DeviceReport]


def stats(snapshot: Snapshot, device: int | None = None) -> Report:
    """Report a snapshot in numbers.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device to report; None for all devices that were used.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    chosen = chosen_devices(snapshot, device)
    devices = [report_device(device_data(snapshot, index)) for index in chosen]
    return report_file(snapshot, devices)


def report_file(snapshot: Snapshot, devices: list[DeviceReport]) -> Report:
    """Return the report of a file whose devices are reported."""
    return Report(
        path=snapshot.path,
        metadata=snapshot.metadata.without_devices(),
        allocator_settings=snapshot.allocator_settings,
        unknown_keys=list(snapshot.unknown_keys),
        devices=devices,
    )


def report_device(data: DeviceData) -> DeviceReport:
    """Report one device in numbers."""
    snapshot, device = data.snapshot, data.device
    trace, history, metadata, is_cpu = data.trace, data.history, data.metadata, data.is_cpu
    times = trace.time_us[trace.time_us != NO_TIME]
    peak, fullest_sample = history.peak, None
    peak_sample = None if peak is None else sample_at(data, peak)
    if history.is_known:
        reserved = np.where(is_observable(trace), history.usage.reserved_bytes, -1)
        fullest_sample = sample_at(data, int(reserved.argmax()))
    ooms = out_of_memories(data)
    return DeviceReport(
        device=device,
        name=snapshot.device_name(device),
        is_cpu=is_cpu,
        events=len(trace),
        first_us=int(times[0]) if len(times) else None,
        last_us=int(times[-1]) if len(times) else None,
        only_phase=snapshot.metadata.only_phase,
        contradiction=data.contradiction,
        is_oom_file=bool(ooms) and is_oom_snapshot(data),
        lost=Lost(
            overwritten=metadata.overwritten,
            unknown_frees=metadata.unknown_frees,
            live_dropped=metadata.live_dropped,
            labels_dropped=metadata.labels_dropped,
            before_bytes=int(history.usage.requested_bytes[0]) if history.is_known else None,
            exact_from=history.exact_from if history.is_known else None,
        ),
        end=final_sample(data),
        peak_allocated=peak_sample,
        is_peak_certain=peak_sample is not None
        and history.has_bounds
        and peak_sample.allocated_bytes >= history.most_before_bytes,
        peak_reserved=fullest_sample,
        counts=count_events(trace, is_cpu or device == snapshot.host_device),
        outside=_outside(metadata),
        held=_held(data, has_oom=bool(ooms)),
        steps=steps(data),
        phases=phases(data, peak),
        ooms=ooms,
    )


def _held(data: DeviceData, *, has_oom: bool) -> list[Held]:
    snapshot, keys, moments = data.snapshot, ["line"], ["end"]
    if has_categories(snapshot) and data.device != snapshot.host_device:
        keys += "category", "owner"  # pinned host memory has none
    if snapshot.metadata.module_phases.names:
        keys.append("module")
    if data.history.is_known:
        moments = [*["oom"] * has_oom, "peak", "end"]
    found = []
    for moment in (moment_of(data, name) for name in moments):
        blocks = held_at(data, moment.entry)
        found += [held_by(blocks, moment, by) for by in keys]
    return found


def count_events(trace: Trace, is_cpu: bool | None) -> Counts:
    """Count the events of a trace; `is_cpu`: of the CPU, or of pinned host memory."""

    def count(*actions: int) -> int:
        return sum(int(np.count_nonzero(trace.action == action)) for action in actions)

    return Counts(
        allocs=count(ALLOC),
        frees=count(FREE_COMPLETED),
        device_allocs=count(*TAKES_MEMORY),
        device_frees=count(*GIVES_MEMORY),
        ooms=count(OOM),
        retries=None if is_cpu else count_retries(trace),
    )


def _outside(metadata: DeviceMetadata) -> Outside | None:
    total, free = metadata.total_bytes, metadata.free_bytes
    process, reserved = metadata.process_bytes, metadata.reserved_bytes
    if (total, free, process) == (None, None, None):
        return None
    return Outside(
        total_bytes=total,
        free_bytes=free,
        process_bytes=process,
        reserved_bytes=reserved,
        elsewhere_bytes=remainder(total, free, reserved),
        outside_bytes=remainder(process, reserved),
        others_bytes=remainder(total, free, process),
    )
