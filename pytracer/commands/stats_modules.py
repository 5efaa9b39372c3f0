"""The table of `pytracer stats` about the modules that memory belonged to."""

from rich.table import Table

from pytracer.analysis.modules import Modules
from pytracer.analysis.report import DeviceReport
from pytracer.commands.table import add_row, new_table
from pytracer.text import number, printable, size


def modules_table(device: DeviceReport, modules: Modules, top: int) -> Table:
    """Make the table of the modules at the out-of-memory, at the peak, or else at the end."""
    usages, moment = modules.at_end, "end"
    if device.sites_at_oom is not None:
        moment = "out-of-memory"
    elif modules.at_peak is not None:
        usages, moment = modules.at_peak, "peak"
    title = f"Modules that held memory at the {moment}"
    table = new_table("bytes", "share", "blocks", "module", title=title, text=-1)
    total = sum(usage.size_bytes for usage in usages)

    def row(size_bytes: int, count: int, name: str) -> None:
        share = size_bytes / total if total else 0.0
        add_row(table, size(size_bytes), f"{share:.0%}", f"{count:,}", name)

    for usage in usages[:top]:
        name = "(none)" if usage.module is None else printable(usage.module)
        row(usage.size_bytes, usage.count, name)
    if others := usages[top:]:
        row(
            sum(usage.size_bytes for usage in others),
            sum(usage.count for usage in others),
            f"({number(len(others), 'other')})",
        )
    return table
