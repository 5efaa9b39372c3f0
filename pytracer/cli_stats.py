"""The command `pytracer stats`."""

import os
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.cli_files import (
    files_argument,
    in_parallel,
    json_option,
    say_errors,
    write_json,
)
from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.moments import Moment
from pytracer.reading.periods import Phase, Step
from pytracer.reading.reader import load
from pytracer.reading.sites import Site
from pytracer.reading.stats import DeviceReport, Report, stats, told_number
from pytracer.reading.text import duration, place, printable, size, time

TOP = 10
SHOWN_OOMS = 3


@click.command("stats")
@files_argument
@click.option("--device", type=click.IntRange(min=0), help="Only the device of this index.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    help=f"How many call sites, steps and phases to show.  [default: {TOP}; in JSON all]",
)
@json_option
@click.pass_context
def stats_command(
    context: click.Context,
    paths: tuple[Path, ...],
    device: int | None,
    top: int | None,
    json_path: str | None,
) -> None:
    """Say in numbers what snapshots tell: peaks, who held them, steps, phases, what was lost.

    Each of several files, those in directories too, has a row; with --top or --json all is told of
    each.
    """
    found: list[Path] = []
    results: list[Report | PytracerError] = []
    for path in paths:
        try:
            found += find([path])
        except PytracerError as error:
            results.append(error)
    read = partial(_read, device=device, top=None if json_path is None else top)
    results += in_parallel(read, list(dict.fromkeys(found)), "Reading snapshots")
    reports = [result for result in results if isinstance(result, Report)]
    if json_path is not None:
        errors = [str(result) for result in results if isinstance(result, PytracerError)]
        write_json({"files": reports, "errors": errors}, json_path)
    else:
        if len(results) > 1 and reports:
            _console().print(_overview(reports))
        for report in reports if len(results) == 1 or top is not None else ():
            _show_file(report, TOP if top is None else top)
    if say_errors(results):
        context.exit(1)


def _read(path: Path, device: int | None, top: int | None) -> Report:
    return stats(load(path), device, top)


def _console() -> Console:
    return Console(highlight=False)


def _overview(reports: list[Report]) -> Table:
    devices = {device.device for report in reports for device in report.devices}
    files = [os.path.abspath(report.path) for report in reports]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    table = _table("file", "peak allocated", "peak reserved", "fragmentation", "lost", text=1)
    table.title = printable(folder)
    for report, file in zip(reports, files, strict=True):
        name = printable(os.path.relpath(file, folder))
        if not report.devices:
            _row(table, name, *"----")
        for device in report.devices:
            shown = printable(f"{name}, {device.name}") if len(devices) > 1 else name
            peak, reserved = device.peak_allocated, device.peak_reserved
            _row(
                table,
                shown,
                "-" if peak is None else _least(device) + size(peak.allocated_bytes),
                "-" if reserved is None else size(reserved.reserved_bytes),
                "-" if peak is None else size(peak.fragmentation_bytes),
                "yes" if _lost(report, device, of_stacks=False) else "no",
            )
    return table


def _show_file(report: Report, top: int) -> None:
    console = _console()
    console.print(Text(printable(report.path), "bold"), soft_wrap=True)
    if written := _written(report):
        console.print(Text(written))
    if not report.devices:
        console.print("there is nothing in it: no event, no segment")
    for device in report.devices:
        console.print()
        _show_device(console, report, device, top)


def _written(report: Report) -> str:
    """By whom, when and why."""
    about = report.about
    if not about:
        return ""
    parts = [f"by pytracer {about.get('version')}"]
    parts += [f"{name} {about[name]}" for name in ("torch", "torch_npu") if about.get(name)]
    parts += [f"{name} {about[name]}" for name in ("rank", "role") if about.get(name) is not None]
    parts += [f"{name} {about[name]}" for name in ("host", "pid") if name in about]
    if (written_ns := told_number(about, "written_ns")) is not None:
        parts.append(time(written_ns // 1000))
    oom = about.get("oom")
    if isinstance(oom, dict) and (requested := told_number(oom, "requested_bytes")) is not None:
        free = told_number(oom, "free_bytes")
        left = "" if free is None else f", {size(free)} were free"
        parts.append(f"when {size(requested)} were not to be had{left}")
    return printable(", ".join(parts))


def _show_device(console: Console, report: Report, device: DeviceReport, top: int) -> None:
    console.print(Text(printable(f"{device.name}: {_span(device)}"), "bold"))
    console.print(_levels(device))
    for line in [*_lost(report, device), *_counts(device), *_outside(device)]:
        console.print(Text(printable(line)))
    if device.sites and top:
        console.print()
        console.print(_sites(device, top))
    if len(device.steps) > 1 and top:
        console.print()
        console.print(_steps(device, top))
    if {phase.phase for phase in device.phases} - {"", None} and top:
        console.print()
        console.print(_phases(device, top))
    if device.ooms:
        console.print()
        console.print(_ooms(device))


def _span(device: DeviceReport) -> str:
    if not device.events:
        return "no events, the state in the end alone"
    events = f"{device.events:,} event{'s' if device.events > 1 else ''}"
    if device.first_us is None or device.last_us is None:
        return f"{events}; the file does not tell when"
    return f"{events} in {duration(device.last_us - device.first_us)} from {time(device.first_us)}"


def _lost(report: Report, device: DeviceReport, of_stacks: bool = True) -> list[str]:
    """What the file does not have, in sentences; with what stacks do not have, or without."""
    about, of = report.about, device.lost
    lines = []
    if device.contradiction is not None:
        lines.append(f"Only the end is known. {device.contradiction}")
    if of.overwritten:
        lines.append(
            f"The ring lost its first {of.overwritten:,} events, and what peaks were there: a "
            "larger trace_alloc_max_entries keeps more."
        )
    if of.before_bytes:
        lines.append(f"{size(of.before_bytes)} were requested before the first event.")
    if of.exact_from:
        lines.append(f"Before event {of.exact_from:,} only requested and reserved bytes are exact.")
    if device.peak_allocated is not None and not device.is_peak_certain:
        lines.append("The peak is of what is known: it may have been higher, or elsewhere.")
    for count, what in (
        (of.live_dropped, "blocks had no room in the table of live blocks"),
        (of.unknown_frees, "frees were of blocks that were not known"),
        (of.labels_dropped, "pools and labels had no room"),
        (
            of_stacks and _count(about, "stacks", "dropped"),
            "events have no stack, for want of room",
        ),
        (
            of_stacks and _count(about, "stacks", "truncated"),
            "stacks are not whole: stack_depth cut them",
        ),
        (_count(about, "phases", "names_dropped"), "phases had no room"),
    ):
        if count:
            lines.append(f"{count:,} {what}.")
    if about.get("untraced"):
        lines.append(f"Not recorded: {about['untraced']}")
    if about.get("waiting") is True:
        lines.append("No events were being recorded: the step was not selected.")
    window = about.get("window")
    if isinstance(window, dict) and window.get("complete") is False:
        lines.append("The end of the program cut its step short.")
    return lines


def _count(about: dict[str, object], part: str, name: str) -> int:
    told = about.get(part)
    return told_number(told, name) or 0 if isinstance(told, dict) else 0


def _counts(device: DeviceReport) -> list[str]:
    counts = device.counts
    if not device.events:
        return []
    parts = [f"{counts.allocs:,} allocations", f"{counts.frees:,} frees"]
    if not device.is_cpu:
        parts.append(f"{counts.device_allocs:,} device allocations")
        parts.append(f"{counts.device_frees:,} device frees")
        parts.append(f"{counts.ooms:,} out of memory")
        parts.append(f"{counts.retries:,} retries")
    return [", ".join(parts) + "."]


def _outside(device: DeviceReport) -> list[str]:
    told = device.outside
    if told is None:
        return []
    lines = []
    if told.outside_bytes is not None:
        lines.append(f"{size(told.outside_bytes)} of the process's are outside the allocator.")
    else:
        lines.append("What the process holds outside the allocator is not told.")
    if told.others_bytes is not None:
        lines.append(f"{size(told.others_bytes)} of the device are other processes'.")
    if told.free_bytes is not None and told.total_bytes is not None:
        lines.append(f"{size(told.free_bytes)} of {size(told.total_bytes)} are free.")
    return [" ".join(lines)]


def _levels(device: DeviceReport) -> Table:
    """The peaks and the end, a column each."""
    moments: dict[str, Moment | None] = {
        "peak allocated": device.peak_allocated,
        "peak reserved": device.peak_reserved,
        "end": device.end,
    }
    if device.is_cpu:
        del moments["peak reserved"]
    shown = {name: moment for name, moment in moments.items() if moment is not None}
    table = _table("", *shown, text=1)

    def row(name: str, values: list[str]) -> None:
        if any(values):
            _row(table, name, *values)

    each = list(shown.values())
    row("after event", ["" if m.event is None else f"{m.event:,}" for m in each])
    row("time", [_since(device, m) for m in each])
    row("step", ["" if m.step is None else str(m.step) for m in each])
    row("phase", [printable(m.phase or "") for m in each])
    row("requested", [size(m.requested_bytes) for m in each])
    row("allocated", [_least(device, m) + size(m.allocated_bytes) for m in each])
    if device.is_cpu:
        return table
    row("active", [_least(device, m) + size(m.active_bytes) for m in each])
    row("reserved", [size(m.reserved_bytes) for m in each])
    row("reserved - allocated", [_most(m) + size(m.fragmentation_bytes) for m in each])
    row("active - requested", [_least(device, m) + size(m.rounding_bytes) for m in each])
    row("inactive split", [_most(m) + size(m.inactive_split_bytes) for m in each])
    row("largest free block", [_most(m) + size(m.largest_free_bytes) for m in each])
    row("Σ free² / (Σ free)²", [_ratio(m.free_concentration) for m in each])
    row("segments", [f"{m.segments:,}" for m in each])
    return table


def _since(device: DeviceReport, moment: Moment) -> str:
    if moment.time_us is None or device.first_us is None:
        return ""
    return "+ " + duration(moment.time_us - device.first_us)


def _least(device: DeviceReport, moment: Moment | None = None) -> str:
    """What stands before a number that is a lower bound."""
    exact = device.is_peak_certain if moment is None else moment.is_exact
    return "" if exact else "≥ "


def _most(moment: Moment) -> str:
    return "" if moment.is_exact else "≤ "


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _sites(device: DeviceReport, top: int) -> Table:
    at = "at the peak" if device.peak_allocated is not None else "in the end"
    return sites_table(device.sites, f"Who held it {at}", top)


def sites_table(sites: list[Site], title: str, top: int) -> Table:
    """The largest sites, and how much the others hold."""
    is_rounded = any(site.size_bytes != site.requested_bytes for site in sites)
    names = ("bytes", "requested", "blocks") if is_rounded else ("bytes", "blocks")
    table = _table(*names, "allocated at", title=title, text=-1)

    def row(some: list[Site], where: str) -> None:
        numbers = [size(sum(site.size_bytes for site in some))]
        if is_rounded:
            numbers.append(size(sum(site.requested_bytes for site in some)))
        numbers.append(f"{sum(site.count for site in some):,}")
        _row(table, *numbers, where)

    for site in sites[:top]:
        row([site], place(site.call_site))
    if others := sites[top:]:
        row(others, f"({len(others):,} other place{'s' if len(others) > 1 else ''})")
    return table


def _steps(device: DeviceReport, top: int) -> Table:
    title = "Steps" if len(device.steps) <= top else f"Steps, the last {top} of {len(device.steps)}"
    table = _table(
        "step", "peak", "end", "allocations", "requested", "device\nallocs", "\nfrees", title=title
    )
    for step in device.steps[-top:]:
        _row(
            table,
            _step_name(step),
            *(_size(each) for each in (step.peak_bytes, step.end_bytes)),
            f"{step.allocations:,}",
            size(step.allocations_bytes),
            f"{step.device_allocs:,}",
            f"{step.device_frees:,}",
        )
    return table


def _step_name(step: Step) -> str:
    name = "none" if step.step is None else str(step.step)
    return name if step.begins_in_trace else f"{name} (…)"


def _phases(device: DeviceReport, top: int) -> Table:
    table = _table(
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
        _row(
            table,
            _phase_name(phase),
            _size(phase.at_peak_bytes),
            _size(phase.peak_bytes),
            _size(phase.end_bytes),
            f"{phase.allocations:,}",
            size(phase.allocations_bytes),
        )
    return table


def _phase_name(phase: Phase) -> str:
    if phase.phase is None:
        return "(before the trace)"
    return printable(phase.phase) or "(none)"


def _ooms(device: DeviceReport) -> Table:
    count = len(device.ooms)
    title = "Out of memory" + (f", the last {SHOWN_OOMS} of {count}" if count > SHOWN_OOMS else "")
    table = _table(
        "", *(f"event {oom.event:,}" for oom in device.ooms[-SHOWN_OOMS:]), title=title, text=1
    )
    shown = device.ooms[-SHOWN_OOMS:]
    _row(table, "requested", *(size(oom.requested_bytes) for oom in shown))
    _row(table, "free on the device", *(size(oom.device_free_bytes) for oom in shown))
    moments = [oom.moment for oom in shown if oom.moment is not None]
    if len(moments) == len(shown):
        _row(table, "allocated", *(_least(device, m) + size(m.allocated_bytes) for m in moments))
        _row(table, "reserved", *(size(m.reserved_bytes) for m in moments))
        _row(table, "free in segments", *(_most(m) + size(m.free_bytes) for m in moments))
        _row(table, "largest free block", *(_most(m) + size(m.largest_free_bytes) for m in moments))
        _row(table, "it fits in these", *("yes" if o.fits_in_free_blocks else "no" for o in shown))
    _row(table, "step", *("-" if oom.step is None else str(oom.step) for oom in shown))
    _row(table, "phase", *(printable(oom.phase) or "-" for oom in shown))
    _row(table, "allocated at", *(place(o.call_site) for o in shown))
    return table


def _size(count_bytes: int | None) -> str:
    return "-" if count_bytes is None else size(count_bytes)


def _row(table: Table, *cells: str) -> None:
    """What is in brackets is no markup: cells may have names from the file."""
    table.add_row(*(Text(cell, overflow="fold") for cell in cells))


def _table(*names: str, title: str | None = None, text: int = 0) -> Table:
    """Of numbers; the first (1) or the last (-1) column is text."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(names):
        is_text = i == (0 if text > 0 else len(names) - 1) and text != 0
        table.add_column(name, justify="left" if is_text else "right")
    return table
