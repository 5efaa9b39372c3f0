"""The tables of `pytracer stats`, of one device each."""

from rich.table import Table
from rich.text import Text

from pytracer.reading.moments import Moment
from pytracer.reading.periods import Phase, Step
from pytracer.reading.stats import DeviceReport
from pytracer.reading.text import duration, place, printable, size

SHOWN_OOMS = 3


def new_table(*names: str, title: str | None = None, text: int = 0) -> Table:
    """A table of numbers; the first (1) or the last (-1) column is text."""
    # What is in brackets is no markup: titles and cells may have names from the file.
    table = Table(title=None if title is None else Text(title, "table.title"), title_justify="left")
    for i, name in enumerate(names):
        is_text = i == (0 if text > 0 else len(names) - 1) and text != 0
        if is_text:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Adds a row of which nothing is markup."""
    table.add_row(*(Text(cell, overflow="fold") for cell in cells))


_UPPER = {"fragmentation_bytes", "inactive_split_bytes", "largest_free_bytes", "free_bytes"}
_KNOWN = {"requested_bytes", "reserved_bytes", "segments"}


def mark(device: DeviceReport, name: str, is_exact: bool) -> str:
    """What stands before a level of that name if it is not exact."""
    if is_exact:
        return ""
    # What others did meanwhile makes levels too low or too high: they are no bounds.
    return "~ " if device.only_phase is not None else "≤ " if name in _UPPER else "≥ "


def level(device: DeviceReport, of: Moment | Step | Phase, name: str) -> str:
    """A level of it in bytes, with its mark; "-": it is not known."""
    count_bytes = getattr(of, name)
    if count_bytes is None:
        return "-"
    is_exact = _is_exact(device, of, name) if isinstance(of, Moment) else name not in of.inexact
    return mark(device, name, is_exact) + size(count_bytes)


def _is_exact(device: DeviceReport, moment: Moment, name: str) -> bool:
    return moment.is_exact or (name in _KNOWN and device.only_phase is None)


def levels_table(device: DeviceReport) -> Table:
    """The peaks and the end, a column each."""
    moments: dict[str, Moment | None] = {
        "peak allocated": device.peak_allocated,
        "peak reserved": device.peak_reserved,
        "end": device.end,
    }
    if device.is_cpu:
        del moments["peak reserved"]
    shown = {name: moment for name, moment in moments.items() if moment is not None}
    table = new_table("", *shown, text=1)

    def row(name: str, values: list[str]) -> None:
        if any(values):
            add_row(table, name, *values)

    def levels(name: str, key: str) -> None:
        row(name, [level(device, moment, key) for moment in each])

    each = list(shown.values())
    row("after event", ["" if m.event is None else f"{m.event:,}" for m in each])
    row("time", [_since(device, m) for m in each])
    row("step", ["" if m.step is None else str(m.step) for m in each])
    row("phase", [printable(m.phase or "") for m in each])
    levels("requested", "requested_bytes")
    levels("allocated", "allocated_bytes")
    if device.is_cpu:
        return table
    levels("active", "active_bytes")
    levels("reserved", "reserved_bytes")
    levels("reserved - allocated", "fragmentation_bytes")
    levels("active - requested", "rounding_bytes")
    levels("inactive split", "inactive_split_bytes")
    levels("largest free block", "largest_free_bytes")
    row("Σ free² / (Σ free)²", [_ratio(m.free_concentration) for m in each])
    row(
        "segments",
        [
            mark(device, "segments", _is_exact(device, m, "segments")) + f"{m.segments:,}"
            for m in each
        ],
    )
    return table


def _since(device: DeviceReport, moment: Moment) -> str:
    if moment.time_us is None or device.first_us is None:
        return ""
    return "+ " + duration(moment.time_us - device.first_us)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def steps_table(device: DeviceReport, top: int) -> Table:
    """The last steps."""
    title = "Steps" if len(device.steps) <= top else f"Steps, the last {top} of {len(device.steps)}"
    of_device = () if device.is_cpu else ("device\nallocs", "\nfrees")
    table = new_table("step", "peak", "end", "allocations", "requested", *of_device, title=title)
    for step in device.steps[-top:]:
        counts = (step.device_allocs, step.device_frees)
        add_row(
            table,
            _step_name(step),
            level(device, step, "peak_bytes"),
            level(device, step, "end_bytes"),
            f"{step.allocations:,}",
            size(step.allocations_bytes),
            *(f"{count:,}" for count in counts[: len(of_device)]),
        )
    return table


def _step_name(step: Step) -> str:
    name = "none" if step.step is None else str(step.step)
    return name if step.begins_in_trace else f"{name} (…)"


def phases_table(device: DeviceReport, top: int) -> Table:
    """The phases that hold most at the peak."""
    table = new_table(
        "phase",
        "at the peak",
        "own peak",
        "at the end",
        "allocations",
        "requested",
        title="Phases",
        text=1,
    )
    for phase in device.phases[:top]:
        add_row(
            table,
            _phase_name(device, phase),
            level(device, phase, "at_peak_bytes"),
            level(device, phase, "peak_bytes"),
            level(device, phase, "end_bytes"),
            f"{phase.allocations:,}",
            size(phase.allocations_bytes),
        )
    return table


def _phase_name(device: DeviceReport, phase: Phase) -> str:
    if phase.phase is None:
        return "(before the trace)" if device.only_phase is None else "(before, and of others)"
    return printable(phase.phase) or "(none)"


def ooms_table(device: DeviceReport) -> Table:
    """The last times that memory ran out, a column each."""
    count, shown = len(device.ooms), device.ooms[-SHOWN_OOMS:]
    title = "Out of memory" + (f", the last {SHOWN_OOMS} of {count}" if count > SHOWN_OOMS else "")
    table = new_table("", *(f"event {oom.event:,}" for oom in shown), title=title, text=1)
    add_row(table, "requested", *(size(oom.requested_bytes) for oom in shown))
    add_row(table, "free on the device", *(size(oom.device_free_bytes) for oom in shown))
    moments = [oom.moment for oom in shown if oom.moment is not None]
    if len(moments) == len(shown):
        for name, key in (
            ("allocated", "allocated_bytes"),
            ("reserved", "reserved_bytes"),
            ("free in segments", "free_bytes"),
            ("largest free block", "largest_free_bytes"),
        ):
            add_row(table, name, *(level(device, moment, key) for moment in moments))
        add_row(table, "it fits in these", *(_FITS[oom.fits_in_free_blocks] for oom in shown))
    add_row(table, "step", *("-" if oom.step is None else str(oom.step) for oom in shown))
    add_row(table, "phase", *(printable(oom.phase) or "-" for oom in shown))
    add_row(table, "allocated at", *(place(o.call_site) for o in shown))
    return table


_FITS = {True: "yes", False: "no", None: "not known"}
