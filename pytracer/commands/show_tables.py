"""The tables of `pytracer show --all`."""

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial

from rich.table import Table

from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.report import DeviceReport, Report
from pytracer.analysis.steps_and_phases import Phase, Step
from pytracer.analysis.usage import AMOUNTS, UsageSample
from pytracer.commands.table import (
    Cell,
    Columns,
    Fitted,
    add_row,
    call_chain,
    make_table,
    new_table,
    transposed_table,
)
from pytracer.text import duration, size, wrapped_text

SHOWN_OOMS = 3

AMOUNTS_OF_CPU = ("requested_bytes", "allocated_bytes")

_UPPER = {"fragmentation_bytes", "inactive_split_bytes", "largest_free_bytes", "free_bytes"}
"""The amounts of which a sample that is not exact has the upper bound."""

_EXACT = {"requested_bytes", "reserved_bytes", "peak_reserved_bytes", "segments"}


def usage_text(device: DeviceReport, source: UsageSample | Step | Phase, name: str) -> str:
    """Return an amount as text, after "≥" or "≤" if it is a bound, "~" if not even that; or "-"."""
    amount: int | float | None = getattr(source, name)
    if amount is None or isinstance(amount, float):
        return "-" if amount is None else f"{amount:.3f}"
    is_exact, peak = source.is_exact, device.peak_allocated
    if name == "at_peak_bytes" and peak is not None:
        is_exact = peak.is_exact
    text = f"{amount:,}" if name == "segments" else size(amount)
    return _mark(device, name, is_exact=is_exact) + text


def _mark(device: DeviceReport, name: str, *, is_exact: bool) -> str:
    if is_exact:
        return ""
    if device.only_phase is not None:
        return "~ "
    if name in _EXACT:
        return ""
    return "≤ " if name in _UPPER else "≥ "


def has_steps(device: DeviceReport) -> bool:
    """Return whether the program counts steps; without steps, everything is in the first one."""
    numbers = {step.step for step in device.steps}
    return len(numbers) > 1 or not numbers <= {None, 0, 1}


def usage_table(device: DeviceReport) -> Table:
    """Make the table of the peaks and the end, one column each."""
    samples: dict[str, UsageSample | None] = {
        "peak allocated": device.peak_allocated,
        "peak reserved": device.peak_reserved,
        "end": device.end,
    }
    if device.is_cpu:
        del samples["peak reserved"]
    columns = [(name, sample) for name, sample in samples.items() if sample is not None]
    rows: dict[str, Callable[[UsageSample], Cell]] = {
        "after event": lambda sample: "" if sample.event is None else f"{sample.event:,}",
        "time": partial(_since, device),
        "step": lambda sample: (
            str(sample.step) if has_steps(device) and sample.step is not None else ""
        ),
        "phase": lambda sample: sample.phase or "",
    }
    for key, name in AMOUNTS.items():
        if not device.is_cpu or key in AMOUNTS_OF_CPU:
            rows[name] = partial(usage_text, device, name=key)
    return transposed_table(columns, rows)


def _since(device: DeviceReport, sample: UsageSample) -> str:
    if sample.time_us is None or device.first_us is None:
        return ""
    return "+ " + duration(sample.time_us - device.first_us)


def steps_table(device: DeviceReport, top: int) -> Table:
    """Make the table of the last steps."""
    title = "Steps" if len(device.steps) <= top else f"Steps, the last {top} of {len(device.steps)}"
    columns: dict[str, str | Callable[[Step], str]] = {
        "step": _step_name,
        "peak": partial(usage_text, device, name="peak_bytes"),
        "end": partial(usage_text, device, name="end_bytes"),
        "allocs": "allocations",
        "requested": "allocations_bytes",
    }
    if not device.is_cpu:
        columns |= {"device\nallocs": "device_allocs", "\nfrees": "device_frees"}
    return make_table(device.steps[-top:], columns, title=title)


def _step_name(step: Step) -> str:
    name = "none" if step.step is None else str(step.step)
    return name if step.begins_in_trace else f"{name} (…)"


def phases_table(device: DeviceReport, modules: Collection[str], top: int) -> Table:
    """Make the table of the phases that hold most at the peak, without calls of `modules`."""
    shown = [phase for phase in device.phases if phase.phase not in modules]
    is_complete = len(shown) == len(device.phases)
    columns: Columns = {
        "phase": partial(_phase_name, device),
        "at the peak": partial(usage_text, device, name="at_peak_bytes"),
        "own peak": partial(usage_text, device, name="peak_bytes"),
        "at the end": "end_bytes",
        "allocs": "allocations",
        "requested": "allocations_bytes",
    }
    title = "Phases" if is_complete else "Phases other than module calls"
    return make_table(shown[:top], columns, title=title, text=0)


def _phase_name(device: DeviceReport, phase: Phase) -> str:
    if phase.phase is None:
        return "(before the trace)" if device.only_phase is None else "(before, or other phases)"
    return phase.phase or "(none)"


def ooms_table(device: DeviceReport) -> Table:
    """Make the table of the last out-of-memory errors, one column each."""
    count, shown = len(device.ooms), device.ooms[-SHOWN_OOMS:]
    title = "Out of memory" + (f", the last {SHOWN_OOMS} of {count}" if count > SHOWN_OOMS else "")

    def usage(key: str) -> Callable[[OutOfMemory], str]:
        return lambda oom: "unknown" if oom.sample is None else usage_text(device, oom.sample, key)

    rows: dict[str, Callable[[OutOfMemory], Cell]] = {
        "requested": lambda oom: _size(oom.requested_bytes),
        f"free {'in the system' if device.is_cpu else 'on the device'}": lambda oom: _size(
            oom.device_free_bytes
        ),
    }
    if any(oom.available_bytes != oom.device_free_bytes for oom in shown):
        rows["free within the limit"] = lambda oom: _size(oom.available_bytes)
    rows["allocated"] = usage("allocated_bytes")
    if not device.is_cpu:
        rows |= {
            "reserved": usage("reserved_bytes"),
            "free in segments": usage("free_bytes"),
            "largest free block": usage("largest_free_bytes"),
            "held outside the allocator": lambda oom: _size(oom.elsewhere_bytes),
            "fits in one block": lambda oom: _ANSWERS[oom.fits_in_largest_block],
            "fits if joined": lambda oom: _ANSWERS[oom.fits_if_joined],
        }
    if has_steps(device):
        rows["step"] = lambda oom: "-" if oom.step is None else str(oom.step)
    if any(oom.phase for oom in shown):
        rows["phase"] = lambda oom: oom.phase or "-"
    rows["call site"] = lambda oom: call_chain(oom.call_site)
    return transposed_table(((f"event {oom.event:,}", oom) for oom in shown), rows, title)


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else size(size_bytes)


_ANSWERS = {True: "yes", False: "no", None: "unknown"}


def overview(reports: Sequence[Report]) -> Table:
    """Make the table of the peaks of each file, and of whether the file lacks events.

    The newest file comes last; files that do not say when they were written come first.
    """
    reports = sorted(reports, key=lambda report: report.metadata.written_ns or 0)
    files = [os.path.abspath(report.path) for report in reports]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    table = new_table(
        ("file", "peak\nallocated", "peak\nreserved", "reserved -\nallocated", "OOM", "lost"),
        title=folder,
        text=0,
    )
    for report, file in zip(reports, files, strict=True):
        name = os.path.relpath(file, folder)
        if not report.devices:
            add_row(table, _file_name(name), *"-----")
        for device in report.devices:
            peak, reserved = device.peak_allocated, device.peak_reserved
            cells = ["-"] * 3
            if peak is not None:
                mark = _mark(device, "", is_exact=device.is_peak_certain)
                cells[0] = mark + size(peak.allocated_bytes)
            if peak is not None and reserved is not None and not device.is_cpu:
                cells[1] = usage_text(device, reserved, "reserved_bytes")
                cells[2] = usage_text(device, peak, "fragmentation_bytes")
            ooms, lossy = str(len(device.ooms)), _is_lossy(report, device)
            add_row(table, _file_name(f"{name}, {device.name}"), *cells, ooms, lossy)
    return table


def _file_name(name: str) -> Fitted:
    return Fitted(lambda width: name if width is None else wrapped_text(name, width, "/_, -"))


def _is_lossy(report: Report, device: DeviceReport) -> str:
    """Return whether the file lacks events or blocks, so that its usage may be wrong.

    Blocks that are older than the trace do not count, because the report bounds their effect.
    Missing stacks do not change the usage.
    """
    lost = device.lost
    is_lossy = (
        lost.overwritten
        or lost.live_dropped
        or lost.labels_dropped
        or device.contradiction is not None
        or report.metadata.untraced
        or device.only_phase is not None
    )
    if not is_lossy and lost.overwritten is None and device.events:
        return "unknown"
    return "yes" if is_lossy else "no"
