"""A plot of the peaks over a range of sizes, with matplotlib, which is optional."""

from pathlib import Path
from typing import Any

from pytracer.errors import ConfigError
from pytracer.experiments.plot import COLOURS, LIMIT, save_plot, unit_of
from pytracer.fitting.results import OWN, Fit
from pytracer.text import size


def plot(found: Fit, path: Path) -> None:
    """Draw the peaks of the sizes, under each setting, and the memory that the allocator can get.

    Raises:
        ConfigError: Not one size has several values.
        PytracerError: The file cannot be written, or `check_plot` refuses it.
    """
    rows = found.predictions
    ranges = [name for name in rows[0].sizes if len({row.sizes[name] for row in rows}) > 1]
    if len(ranges) != 1:
        raise ConfigError("a plot needs several values of one size: give --at batch=1..32")
    name = ranges[0]

    def draw(axes: Any) -> None:
        unit, unit_bytes = unit_of(max(row.peak.reserved_bytes for row in rows))
        for settings in dict.fromkeys(row.settings for row in rows):
            own = [row for row in rows if row.settings == settings]
            for kind, colour in COLOURS.items() if settings == OWN else [("reserved", None)]:
                axes.plot(
                    [row.sizes[name] for row in own],
                    [getattr(row.peak, f"{kind}_bytes") / unit_bytes for row in own],
                    color=colour,
                    label=kind if settings == OWN else f"{kind}, {settings}",
                )
        if found.device_memory_bytes is not None:
            room_bytes = found.device_memory_bytes - found.outside_bytes
            axes.axhline(room_bytes / unit_bytes, label=f"limit: {size(room_bytes)}", **LIMIT)
        axes.set(xlabel=name, ylabel=unit)
        axes.legend(fontsize=8)

    save_plot(path, draw)
