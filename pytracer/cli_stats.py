"""The command `pytracer stats`."""

import os
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.cli_files import (
    TOP,
    files_argument,
    in_parallel,
    json_option,
    say_errors,
    write_json,
)
from pytracer.cli_tables import (
    add_row,
    level,
    levels_table,
    mark,
    new_table,
    ooms_table,
    phases_table,
    steps_table,
)
from pytracer.errors import PytracerError
from pytracer.reading.about import told_number
from pytracer.reading.files import find, place_of
from pytracer.reading.reader import load
from pytracer.reading.sites import Site
from pytracer.reading.stats import SCHEMA_VERSION, DeviceReport, Report, stats
from pytracer.reading.text import duration, folded, number, place, printable, size, time


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
        write_json(
            {"schema_version": SCHEMA_VERSION, "files": reports, "errors": errors}, json_path
        )
    else:
        if len(results) > 1 and reports:
            console = _console()
            console.print(_overview(reports, console.width))
        for report in reports if len(results) == 1 or top is not None else ():
            _show_file(report, TOP if top is None else top)
    if say_errors(results):
        context.exit(1)


def _read(path: Path, device: int | None, top: int | None) -> Report:
    return stats(load(path), device, top)


def _console() -> Console:
    return Console(highlight=False)


def _overview(reports: list[Report], width: int) -> Table:
    devices = {device.device for report in reports for device in report.devices}
    files = [os.path.abspath(report.path) for report in reports]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    names = _names(files, folder, width - _NUMBERS_WIDTH)
    table = new_table(
        *("file", "peak\nallocated", "peak\nreserved", "reserved -\nallocated", "lost"), text=1
    )
    table.title = Text(printable(folder), "table.title")
    for report, name in zip(reports, names, strict=True):
        if not report.devices:
            add_row(table, name, *"----")
        for device in report.devices:
            peak, reserved = device.peak_allocated, device.peak_reserved
            is_cpu = device.is_cpu
            add_row(
                table,
                f"{name}, {printable(device.name)}" if len(devices) > 1 else name,
                "-"
                if peak is None
                else mark(device, "allocated_bytes", device.is_peak_certain)
                + size(peak.allocated_bytes),
                "-" if reserved is None or is_cpu else level(device, reserved, "reserved_bytes"),
                "-" if peak is None or is_cpu else level(device, peak, "fragmentation_bytes"),
                "yes" if _is_lossy(report, device) else "no",
            )
    return table


_NUMBERS_WIDTH = 53
"""Of all columns but the files', with the lines between them."""


def _names(files: list[str], folder: str, width: int) -> list[str]:
    """What the files are of, as their names tell; their names below the folder, if they do not."""
    places = [place_of(Path(file), Path(folder)) for file in files]
    often = Counter(map(str, places))
    return [
        printable(str(place))
        if (place.kind or place.who) and often[str(place)] == 1
        else folded(printable(os.path.relpath(file, folder)), width)
        for place, file in zip(places, files, strict=True)
    ]


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
    parts += _window(about)
    if (written_ns := told_number(about, "written_ns")) is not None:
        parts.append(time(written_ns // 1000))
    oom = about.get("oom")
    if isinstance(oom, dict) and (requested := told_number(oom, "requested_bytes")) is not None:
        free = told_number(oom, "free_bytes")
        left = "" if free is None else f", {size(free)} were free"
        parts.append(f"when {size(requested)} were not to be had{left}")
    return printable(", ".join(parts))


def _window(about: Mapping[str, Any]) -> list[str]:
    """Which steps, or which phase, the file is of."""
    window = about.get("window")
    if not isinstance(window, dict):
        return []
    first, last, occurrence = (
        told_number(window, name) for name in ("first", "last", "occurrence")
    )
    parts = []
    if first is not None and last is not None:
        parts.append(f"step {first}" if first == last else f"steps {first}-{last}")
    if window.get("phase") is not None:
        parts.append(f"phase {window['phase']}")
    if occurrence is not None:
        parts.append(f"occurrence {occurrence}")
    if window.get("complete") is False:
        parts.append("cut short by the end of the program")
    elif parts:
        parts.append("complete")
    return parts


def _show_device(console: Console, report: Report, device: DeviceReport, top: int) -> None:
    console.print(Text(printable(f"{device.name}: {_span(device)}"), "bold"))
    console.print(levels_table(device))
    for line in [*_lost(report, device), *_counts(device), *_outside(device)]:
        console.print(Text(printable(line)))
    if device.sites and top:
        console.print()
        console.print(_sites(device, top))
    if len(device.steps) > 1 and top:
        console.print()
        console.print(steps_table(device, top))
    if {phase.phase for phase in device.phases} - {"", None} and top:
        console.print()
        console.print(phases_table(device, top))
    if device.ooms:
        console.print()
        console.print(ooms_table(device))


def _span(device: DeviceReport) -> str:
    if not device.events:
        return "no events, the state in the end alone"
    events = number(device.events, "event")
    if device.first_us is None or device.last_us is None:
        return f"{events}; the file does not tell when"
    return f"{events} in {duration(device.last_us - device.first_us)} from {time(device.first_us)}"


def _lost(report: Report, device: DeviceReport) -> list[str]:
    """What the file does not have, in sentences."""
    about, of, phase = report.about, device.lost, device.only_phase
    lines = []
    if phase is not None:
        lines.append(
            f"Only events of the phase {phase!r} are in it: what others did meanwhile is not, so "
            "levels before the end may be too low or too high (~)."
        )
    if device.contradiction is not None:
        lines.append(f"Only the end is known. {device.contradiction}")
    if of.overwritten:
        events = number(of.overwritten, "event")
        lines.append(
            f"The ring lost its first {events}"
            f"{'' if phase is None else ' of all phases'}, and what peaks were there: a larger "
            "trace_alloc_max_entries keeps more."
        )
    elif of.overwritten is None and device.events:
        lines.append("The file does not tell whether its ring lost events before these.")
    if of.before_bytes:
        about_bytes = mark(device, "requested_bytes", phase is None) + size(of.before_bytes)
        lines.append(f"{about_bytes} were requested before the first event.")
    if of.exact_from and phase is None:
        lines.append(
            f"Up to event {of.exact_from - 1:,} only requested and reserved bytes are exact, and "
            "segments."
        )
    if device.peak_allocated is not None and not device.is_peak_certain and phase is None:
        lines.append("The peak is of what is known: it may have been higher, or elsewhere.")
    for what, count in (
        ("Blocks that had no room in the table of live blocks", of.live_dropped),
        ("Frees of blocks that were not known", of.unknown_frees),
        ("Pools and labels that had no room", of.labels_dropped),
        ("Events without a stack, for want of room", _count(about, "stacks", "dropped")),
        ("Stacks that stack_depth cut", _count(about, "stacks", "truncated")),
        ("Phases that had no room", _count(about, "phases", "names_dropped")),
    ):
        if count:
            lines.append(f"{what}: {count:,}.")
    phases = about.get("phases")
    if isinstance(phases, dict) and phases.get("complete") is False:
        lines.append("When the first phases were entered and left is not told, for want of room.")
    if about.get("untraced"):
        lines.append(f"Not recorded: {about['untraced']}")
    if about.get("waiting") is True:
        lines.append("No events were being recorded: the step was not selected.")
    return lines


def _is_lossy(report: Report, device: DeviceReport) -> bool:
    """Whether levels may have been other than what is told; not whether stacks are whole."""
    of = device.lost
    # So is the peak of a file of one phase.
    is_uncertain = device.peak_allocated is not None and not device.is_peak_certain
    return bool(
        of.overwritten
        or of.live_dropped
        or of.labels_dropped
        or device.contradiction is not None
        or report.about.get("untraced")
        or is_uncertain
    )


def _count(about: dict[str, object], part: str, name: str) -> int:
    told = about.get(part)
    return told_number(told, name) or 0 if isinstance(told, dict) else 0


def _counts(device: DeviceReport) -> list[str]:
    counts = device.counts
    if not device.events:
        return []
    parts = [number(counts.allocs, "allocation"), number(counts.frees, "free")]
    if not device.is_cpu:
        parts.append(number(counts.device_allocs, "device allocation"))
        parts.append(number(counts.device_frees, "device free"))
        parts.append(f"{counts.ooms:,} out of memory")
        parts.append(number(counts.retries or 0, "retry", "retries"))
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


def _sites(device: DeviceReport, top: int) -> Table:
    at = "at the peak" if device.peak_allocated is not None else "in the end"
    return sites_table(device.sites, f"Who held it {at}", top)


def sites_table(sites: list[Site], title: str, top: int) -> Table:
    """The largest sites, and how much the others hold."""
    is_rounded = any(site.size_bytes != site.requested_bytes for site in sites)
    names = ("bytes", "requested", "blocks") if is_rounded else ("bytes", "blocks")
    table = new_table(*names, "allocated at", title=title, text=-1)

    def row(some: list[Site], where: str) -> None:
        numbers = [size(sum(site.size_bytes for site in some))]
        if is_rounded:
            numbers.append(size(sum(site.requested_bytes for site in some)))
        numbers.append(f"{sum(site.count for site in some):,}")
        add_row(table, *numbers, where)

    for site in sites[:top]:
        row([site], place(site.call_site))
    if others := sites[top:]:
        row(others, f"({number(len(others), 'other place')})")
    return table
