"""What a snapshot tells in numbers; `pytracer stats` prints it.

Everything is a plain dataclass of numbers, strings, frames, lists and dicts of these.
`plain.plain(report)` is what `pytracer stats --json` writes of each file: attributes are keys, a
frame is an object of `filename`, `name` and `line`. That JSON is `{"schema_version", "files",
"errors"}`: reports, and a line for each file that has none. Bytes are ints, times microseconds
since the Unix epoch, events indices in the device's trace. None, in JSON null, is what the file
does not tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.about import about_device, only_phase, told_number
from pytracer.reading.counts import Counts, counts_of
from pytracer.reading.devices import device_name, devices_of, has_events
from pytracer.reading.history import ContradictionError, History, replay
from pytracer.reading.moments import Moment, Series, final_moment, moment_at, series, time_of
from pytracer.reading.periods import (
    Marks,
    Phase,
    Step,
    has_bounds,
    is_certain,
    nothing_exact,
    phases,
    step_at,
    step_marks,
    steps,
)
from pytracer.reading.sites import Site, call_sites, frame, sites_at, sites_in_the_end
from pytracer.reading.snapshot import (
    NO_TIME,
    OOM,
    Frame,
    Snapshot,
    Trace,
)

SCHEMA_VERSION = 1
"""Of the JSON: greater, if keys go or change their meaning. Keys may be added without."""


@dataclass(frozen=True)
class Lost:
    """What is not in the trace of a device, and why.

    Attributes:
        overwritten: Events that the ring forgot, from its beginning, those of other phases too;
            None: the file does not tell.
        unknown_frees: Frees of blocks that were not known; None: the file does not tell.
        live_dropped: Blocks that had no room in the live table; None: the file does not tell.
        labels_dropped: Pools and labels that had no room; None: the file does not tell.
        before_bytes: What was requested and not freed yet before the first event; None: not known.
        exact_from: How many events had passed when all levels became exact; 0: they are from the
            beginning; more than there are events: they are not (`DeviceReport.only_phase`). What
            they are before that `Moment.is_exact` says. None: there is no history.
    """

    overwritten: int | None
    unknown_frees: int | None
    live_dropped: int | None
    labels_dropped: int | None
    before_bytes: int | None
    exact_from: int | None


@dataclass(frozen=True)
class OutOfMemory:
    """One time that memory ran out.

    Attributes:
        event, time_us, step, phase: When.
        requested_bytes: What was asked for.
        device_free_bytes: What the device said was free.
        fits_in_free_blocks: Whether the free blocks together were as large; None without a history,
            or where these are not known well enough.
        call_site: Of the allocation.
        moment: The device at that time; None without a history.
    """

    event: int
    time_us: int | None
    step: int | None
    phase: str
    requested_bytes: int
    device_free_bytes: int
    fits_in_free_blocks: bool | None
    call_site: Frame | None
    moment: Moment | None


@dataclass(frozen=True)
class Outside:
    """The device's memory outside this allocator, when the snapshot was taken.

    Attributes:
        total_bytes, free_bytes: The device's, as its driver told.
        process_bytes: What the process held on it; None: the driver does not tell.
        reserved_bytes: Of it, what the allocator held.
        outside_bytes: `process_bytes - reserved_bytes`: contexts, libraries, other allocators.
        others_bytes: `total_bytes - free_bytes - process_bytes`: other processes'. Both are None
            also where they are less than nothing, since the numbers are of different sources.
    """

    total_bytes: int | None
    free_bytes: int | None
    process_bytes: int | None
    reserved_bytes: int | None
    outside_bytes: int | None
    others_bytes: int | None


@dataclass(frozen=True)
class DeviceReport:
    """What is told of a device.

    Peaks are those of the events that are there. There is no history without events, nor if there
    is a contradiction.

    Attributes:
        device: Its index in the file.
        name: As in "cuda:0" and "cpu"; "device 0" where the file does not tell.
        is_cpu: Whether it is the CPU, whose blocks are written as segments of their own; None: the
            file does not tell.
        events: How many there are.
        first_us, last_us: The times of the first and the last; None: the file does not tell.
        only_phase: The phase whose events alone are in the file (`discrete`); None: those of all
            are. What other threads did meanwhile in other phases is missing in all levels but
            `end`, which so may be too low or, where others allocated what is still there, too high.
        contradiction: Why there is no history: the trace does not lead to the state. Then the state
            in the end and counts are all there is.
        lost: What the trace has not.
        end: When the snapshot was taken.
        peak_allocated: The first moment when most was allocated; None without a history.
        is_peak_certain: False: before `lost.exact_from` even more may have been allocated.
        peak_reserved: The first moment when most was reserved; None without a history.
        sites: What held memory at `peak_allocated`, or, without a history, in the end.
        counts: How often what happened.
        steps, phases: What happened in each.
        ooms: Each time that memory ran out.
        outside: Memory outside the allocator; None: the file does not tell.
        series: How levels changed; None without a history.
    """

    device: int
    name: str
    is_cpu: bool | None
    events: int
    first_us: int | None
    last_us: int | None
    only_phase: str | None
    contradiction: str | None
    lost: Lost
    end: Moment
    peak_allocated: Moment | None
    is_peak_certain: bool
    peak_reserved: Moment | None
    sites: list[Site]
    counts: Counts
    steps: list[Step]
    phases: list[Phase]
    ooms: list[OutOfMemory]
    outside: Outside | None
    series: Series | None


@dataclass(frozen=True)
class Report:
    """What is told of a file.

    Attributes:
        path: Its name.
        about: What pytracer tells of the whole file (docs/design.md has the keys); {} of others'.
            What is lost is here too: `untraced`, `waiting`, `window`, `stacks`, `phases`.
        allocator_settings: As torch writes them.
        unknown_keys: Keys of the file that nothing is known of, as "event.key".
        devices: Those with anything in them.
    """

    path: str
    about: dict[str, Any]
    allocator_settings: dict[str, Any]
    unknown_keys: list[str]
    devices: list[DeviceReport]


def stats(
    snapshot: Snapshot, device: int | None = None, top: int | None = None, points: int = 1000
) -> Report:
    """Says in numbers what a snapshot tells.

    Args:
        snapshot: As `load` returns it.
        device: The index of the only device that is asked for; None: all with anything in them.
        top: How many call sites at most; None: all.
        points: How many moments a series has at most; at least `moments.LEAST_POINTS`.

    Raises:
        PytracerError: The snapshot has no such device; `points` are too few.
    """
    there = devices_of(snapshot)
    known = {*there, *range(len(snapshot.traces))}
    if device is not None and device not in known:
        among = f"it has {', '.join(map(str, sorted(known)))}" if known else "it has none"
        raise PytracerError(f"{snapshot.path}: there is no device {device} in it; {among}")
    return Report(
        path=snapshot.path,
        about={key: value for key, value in snapshot.about.items() if key != "devices"},
        allocator_settings=snapshot.allocator_settings,
        unknown_keys=list(snapshot.unknown_keys),
        devices=[
            _device(snapshot, each, top, points) for each in (there if device is None else [device])
        ],
    )


def _device(snapshot: Snapshot, device: int, top: int | None, points: int) -> DeviceReport:
    history, contradiction = None, None
    phase = only_phase(snapshot)
    has_trace = 0 <= device < len(snapshot.traces)  # the oldest files have none
    trace = snapshot.traces[device] if has_trace else _NO_EVENTS
    if has_events(trace):
        try:
            history = replay(snapshot, device)
            if phase is not None:
                history = nothing_exact(history)
        except ContradictionError as error:
            contradiction = str(error)
    marks = step_marks(snapshot, device) if has_trace else []
    told = about_device(snapshot, device)
    is_cpu = told["is_cpu"] if type(told.get("is_cpu")) is bool else None
    is_timed = trace.time_us != NO_TIME
    first, last = (int(is_timed[::way].argmax()) for way in (1, -1)) if is_timed.any() else (-1, -1)
    peak = None if history is None else int(history.levels.allocated_bytes.argmax())
    return DeviceReport(
        device=device,
        name=device_name(snapshot, device),
        is_cpu=is_cpu,
        events=len(trace),
        first_us=None if first < 0 else int(trace.time_us[first]),
        last_us=None if first < 0 else int(trace.time_us[::-1][last]),
        only_phase=phase,
        contradiction=contradiction,
        lost=Lost(
            overwritten=told_number(told, "overwritten"),
            unknown_frees=told_number(told, "unknown_frees"),
            live_dropped=told_number(told, "live_dropped"),
            labels_dropped=told_number(told, "labels_dropped"),
            before_bytes=None if history is None else int(history.levels.requested_bytes[0]),
            exact_from=None if history is None else history.exact_from,
        ),
        end=final_moment(snapshot, device, marks),
        peak_allocated=None
        if history is None or peak is None
        else (moment_at(snapshot, device, history, peak, marks)),
        is_peak_certain=history is not None and peak is not None and is_certain(history, peak),
        peak_reserved=None
        if history is None
        else moment_at(
            snapshot, device, history, int(history.levels.reserved_bytes.argmax()), marks
        ),
        sites=sites_in_the_end(snapshot, device, top)
        if history is None or peak is None
        else sites_at(history, snapshot, peak, top),
        counts=counts_of(trace, is_cpu),
        steps=steps(snapshot, device, history, marks) if has_trace else [],
        phases=phases(snapshot, device, history, peak) if has_trace else [],
        ooms=_ooms(snapshot, device, trace, history, marks),
        outside=_outside(told),
        series=None if history is None else series(trace, history, points),
    )


def _ooms(
    snapshot: Snapshot, device: int, trace: Trace, history: History | None, marks: Marks
) -> list[OutOfMemory]:
    events = np.flatnonzero(trace.action == OOM).tolist()
    if not events:
        return []
    sites = call_sites(snapshot.stacks)
    found = []
    for event in events:
        moment = None if history is None else moment_at(snapshot, device, history, event + 1, marks)
        requested = int(trace.size_bytes[event])
        found.append(
            OutOfMemory(
                event=event,
                time_us=time_of(trace, event),
                step=step_at(marks, event),
                phase=snapshot.strings[trace.user_metadata[event]],
                requested_bytes=requested,
                device_free_bytes=int(trace.address[event]),
                fits_in_free_blocks=_fits(history, requested, moment),
                call_site=frame(snapshot.stacks, int(sites[trace.stack[event]])),
                moment=moment,
            )
        )
    return found


def _fits(history: History | None, requested_bytes: int, moment: Moment | None) -> bool | None:
    """Where the free bytes are an upper bound, what is too large for that does not fit."""
    if history is None or moment is None:
        return None
    fits = requested_bytes <= moment.free_bytes
    if moment.is_exact or (not fits and has_bounds(history)):
        return fits
    return None


def _outside(told: Mapping[str, Any]) -> Outside | None:
    total, free, process, reserved = (
        told_number(told, f"{name}_bytes") for name in ("total", "free", "process", "reserved")
    )
    if (total, free, process) == (None, None, None):
        return None
    return Outside(
        total_bytes=total,
        free_bytes=free,
        process_bytes=process,
        reserved_bytes=reserved,
        outside_bytes=_rest(process, reserved),
        others_bytes=_rest(total, free, process),
    )


def _rest(whole: int | None, *parts: int | None) -> int | None:
    """What is left of it; None: not known, or it would be less than nothing."""
    known = [part for part in parts if part is not None]
    if whole is None or len(known) < len(parts) or sum(known) > whole:
        return None
    return whole - sum(known)


_NO_EVENTS = Trace(*(np.zeros(0, kind) for kind in ("u1", *["i8"] * 4, *["u4"] * 4)))
