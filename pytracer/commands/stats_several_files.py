"""The table of `pytracer stats` for several files: a row for each device of each file."""

import os
import shlex
from collections import Counter
from pathlib import Path

from rich.table import Table
from rich.text import Text

from pytracer.analysis.report import DeviceReport, Report
from pytracer.analysis.usage import UsageSample
from pytracer.commands.stats_tables import usage_text
from pytracer.commands.table import Fitted, new_table
from pytracer.reading.files import parse_place
from pytracer.reading.metadata import read_number
from pytracer.text import number, printable, size, size_range, utc_time, wrapped_text


def answers(reports: list[Report]) -> list[str]:
    """Return what a reader wants to know first: the highest peak, and who ran out of memory."""
    found = [
        (sample, device, report)
        for report in reports
        for device in report.devices
        if (sample := device.peak_allocated or device.end)
    ]
    texts = []
    if found:
        sample, device, report = max(found, key=lambda each: each[0].allocated_bytes)
        reserved = "" if device.is_cpu else f" ({size(sample.reserved_bytes)} reserved)"
        when = "at the end" if device.peak_allocated is None else "at the peak"
        texts.append(
            f"The highest usage: {size(sample.allocated_bytes)} allocated{reserved} {when} of "
            f"{device.name}, in {report.path}."
        )
    failed = [report for report in reports if any(device.ooms for device in report.devices)]
    if failed:
        paths = [shlex.quote(report.path) for report in failed]
        texts.append(
            f"{len(failed):,} of {number(len(reports), 'file')} ran out of memory. To see why: "
            f"pytracer explain {paths[0]}"
        )
    leaking = [report for report in reports if any(device.leak for device in report.devices)]
    if leaking:
        leak = next(device.leak for device in leaking[0].devices if device.leak)
        path = shlex.quote(leaking[0].path)
        texts.append(f"{leak} See pytracer leaks {path}")
    return [printable(text) for text in texts]


def overview(reports: list[Report]) -> Table:
    """Make the table of the peaks of each file, and of whether the file lacks events.

    The newest file comes last; files that do not say when they were written come first.
    """
    reports = sorted(reports, key=lambda report: read_number(report.metadata, "written_ns") or 0)
    devices = {device.device for report in reports for device in report.devices}
    files = [os.path.abspath(report.path) for report in reports]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    has_ooms = any(device.ooms for report in reports for device in report.devices)
    table = new_table(
        *("file", "peak\nallocated", "peak\nreserved", "reserved -\nallocated"),
        *(("OOM",) if has_ooms else ()),
        "lost",
        text=1,
    )
    days = {written[:10] for report in reports if (written := _written(report))}
    day = days.pop() if len(days) == 1 else ""
    title = printable(folder) + (f", {day} (UTC)" if day else "")
    table.title = Text(title, "table.title")
    for report, name in zip(reports, _names(reports, files, folder, day), strict=True):
        if not report.devices:
            table.add_row(_cell(name), *"-" * (len(table.columns) - 1))
        for device in report.devices:
            peak, reserved = device.peak_allocated, device.peak_reserved
            table.add_row(
                _cell([*name, printable(device.name)] if len(devices) > 1 else name),
                _peak(device),
                _usage(device, reserved, "reserved_bytes"),
                _usage(device, peak, "fragmentation_bytes"),
                *((str(len(device.ooms)),) if has_ooms else ()),
                _lost(report, device),
            )
    return table


def _names(reports: list[Report], files: list[str], folder: str, day: str) -> list[list[str]]:
    """Return a distinct name for each file, in parts: step or kind, rank, pid, time of writing.

    The first part is the file's path below the folder if the path names no step, kind or rank, or
    if all parts of another file are the same.
    """
    places = [parse_place(Path(file), Path(folder)) for file in files]
    details = [
        _details(report, day, place.rank) for report, place in zip(reports, places, strict=True)
    ]
    names = [[str(place), *parts] for place, parts in zip(places, details, strict=True)]
    counts = Counter(map(tuple, names))
    return [
        [
            printable(part)
            for part in (
                name
                if (place.kind or place.who) and counts[tuple(name)] == 1
                else [os.path.relpath(file, folder), *parts]
            )
        ]
        for name, place, file, parts in zip(names, places, files, details, strict=True)
    ]


def _details(report: Report, day: str, named_rank: int | None) -> list[str]:
    """Return rank (unless the file name has it), pid, and time without the common day."""
    parts = []
    rank, pid = (read_number(report.metadata, name) for name in ("rank", "pid"))
    if rank is not None and named_rank is None:
        parts.append(f"rank {rank}")
    if pid is not None:
        parts.append(f"pid {pid}")
    if written := _written(report):
        parts.append(written.removeprefix(day).strip())
    return parts


def _written(report: Report) -> str:
    """Return when the file was written, to the second; "": unknown."""
    written_ns = read_number(report.metadata, "written_ns")
    return "" if written_ns is None else utc_time(written_ns // 1000).partition(".")[0]


def _cell(name: list[str]) -> Fitted:
    first, *others = name

    def fitted(width: int) -> str:
        lines = [wrapped_text(first + ("," if others else ""), width)]
        for i, part in enumerate(others):
            part += "," if i + 1 < len(others) else ""
            last = lines[-1].rpartition("\n")[2]
            if len(last) + 1 + len(part) <= width:
                lines[-1] += f" {part}"
            else:
                lines.append(part)
        return "\n".join(lines)

    return Fitted(fitted, ", ".join(name))


def _usage(device: DeviceReport, sample: UsageSample | None, name: str) -> str:
    return "-" if sample is None or device.is_cpu else usage_text(device, sample, name)


def _peak(device: DeviceReport) -> str:
    peak = device.peak_allocated
    if peak is None:
        return "-"
    if device.peak_most_bytes is None:
        return f"~ {size(peak.allocated_bytes)}"
    return size_range(peak.allocated_bytes, device.peak_most_bytes)


def _lost(report: Report, device: DeviceReport) -> str:
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
        or report.metadata.get("untraced")
        or device.only_phase is not None
    )
    if not is_lossy and lost.overwritten is None and device.events:
        return "unknown"
    return "yes" if is_lossy else "no"
