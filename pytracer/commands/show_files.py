"""The table of `pytracer show --all` for several files: a row for each device of each file."""

import os
from collections.abc import Sequence

from rich.table import Table

from pytracer.analysis.report import DeviceReport, Report
from pytracer.analysis.usage import UsageSample
from pytracer.commands.show_tables import usage_text
from pytracer.commands.table import Fitted, add_row, new_table
from pytracer.text import printable, size, size_range, wrapped_text


def overview(reports: Sequence[Report]) -> Table:
    """Make the table of the peaks of each file, and of whether the file lacks events.

    The newest file comes last; files that do not say when they were written come first.
    """
    reports = sorted(reports, key=lambda report: report.metadata.written_ns or 0)
    files = [os.path.abspath(report.path) for report in reports]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    table = new_table(
        ("file", "peak\nallocated", "peak\nreserved", "reserved -\nallocated", "OOM", "lost"),
        title=printable(folder),
        text=0,
    )
    for report, file in zip(reports, files, strict=True):
        name = printable(os.path.relpath(file, folder))
        if not report.devices:
            add_row(table, _cell(name), *"-----")
        for device in report.devices:
            peak, reserved = device.peak_allocated, device.peak_reserved
            add_row(
                table,
                _cell(f"{name}, {printable(device.name)}"),
                _peak(device),
                _usage(device, reserved, "reserved_bytes"),
                _usage(device, peak, "fragmentation_bytes"),
                str(len(device.ooms)),
                _lost(report, device),
            )
    return table


def _cell(name: str) -> Fitted:
    return Fitted(lambda width: name if width is None else wrapped_text(name, width, "/_, -"))


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
        or report.metadata.untraced
        or device.only_phase is not None
    )
    if not is_lossy and lost.overwritten is None and device.events:
        return "unknown"
    return "yes" if is_lossy else "no"
