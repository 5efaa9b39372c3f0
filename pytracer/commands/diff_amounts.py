"""The table of the amounts of two recordings, for `pytracer diff`."""

from rich.table import Table

from pytracer.analysis.diff import DeviceDifference
from pytracer.analysis.diff.texts import signed
from pytracer.commands.table import new_table
from pytracer.text import size

_AMOUNTS = {
    "requested_bytes": "requested",
    "allocated_bytes": "allocated",
    "active_bytes": "active",
    "reserved_bytes": "reserved",
    "fragmentation_bytes": "reserved - allocated",
    "rounding_bytes": "active - requested",
    "inactive_split_bytes": "inactive split",
    "largest_free_bytes": "largest free block",
    "segments": "segments",
    "peak_reserved_bytes": "reserved, own peak",
    "allocs": "allocations",
    "frees": "frees",
    "device_allocs": "device allocs",
    "device_frees": "device frees",
    "ooms": "out of memory",
    "retries": "retries",
}
_OF_CPU = ("requested_bytes", "allocated_bytes", "allocs", "frees")


def amounts_table(device: DeviceDifference, title: str) -> Table:
    """Make the table of the amounts of a device, and of their differences."""
    is_cpu = device.before == device.after == "cpu"
    table = new_table("delta", "baseline", "new", "", title=title, text=-1)
    for key, name in _AMOUNTS.items():
        amount = device.amounts[key]
        if (is_cpu and key not in _OF_CPU) or (not amount.before and not amount.after):
            continue
        show = size if key.endswith("_bytes") else "{:,}".format
        table.add_row(
            "" if amount.delta is None else signed(amount.delta, show),
            "-" if amount.before is None else show(amount.before),
            "-" if amount.after is None else show(amount.after),
            name,
        )
    return table
