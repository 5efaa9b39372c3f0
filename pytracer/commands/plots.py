"""Plots with matplotlib, which is optional: of a comparison, and of a range of sizes."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytracer.atomic_file import open_output
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.comparison import Comparison, Setting
from pytracer.experiments.conclusions import wrapped_name
from pytracer.fitting.results import Fit
from pytracer.text import size

_SUFFIXES = (".png", ".svg", ".pdf")

_Style = dict[str, Any]  # keyword arguments for matplotlib's functions

_PEAKS = {"peak_reserved_bytes": "reserved", "peak_allocated_bytes": "allocated"}
_COLOURS = {"reserved": "#b8c4d6", "allocated": "#3b6ea5"}
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_NAME_WIDTH = 24
_LIMIT: _Style = {"color": "black", "linestyle": "--", "linewidth": 1}
_OUT_OF_MEMORY = "#b3261e"
_FAILED: _Style = {"color": _OUT_OF_MEMORY, "markeredgewidth": 2}
_LABEL: _Style = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
_READABLE: _Style = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}


def check_plot(path: Path) -> None:
    """Check that a plot can be written to a file, before anything is run.

    Raises:
        ConfigError: The file's suffix is unknown, or its directory does not exist.
        PytracerError: matplotlib is not installed.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(
            f"{path} is not a file name for a plot: give one that ends in {', '.join(_SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path}: the directory {path.parent} does not exist: make it, or give another path"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise PytracerError(
            "a plot needs matplotlib, which is not installed: `pip install matplotlib`"
        )


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Draw the peaks of each setting, with the range of its runs; the suffix is the format.

    Raises:
        PytracerError: The file cannot be written.
    """
    width = max(8.0, 3.5 + 1.7 * len(comparison.settings))
    _save(path, lambda axes: _draw_peaks(axes, comparison.settings), width)


def plot_range(found: Fit, path: Path) -> None:
    """Draw the estimated peaks of the sizes, and the memory that the allocator can get.

    Raises:
        ConfigError: Not one size has several values.
        PytracerError: The file cannot be written.
    """
    rows = found.predictions
    ranges = [name for name in rows[0].sizes if len({row.sizes[name] for row in rows}) > 1]
    if len(ranges) != 1:
        raise ConfigError("a plot needs a range of values for one size: give --at batch=1..32")
    name = ranges[0]

    def draw(axes: Any) -> None:
        unit, unit_bytes = _unit_of(max(row.peak.reserved_bytes for row in rows))
        for kind, colour in _COLOURS.items():
            peaks = [getattr(row.peak, f"{kind}_bytes") / unit_bytes for row in rows]
            axes.plot([row.sizes[name] for row in rows], peaks, color=colour, label=kind)
        if found.room_bytes is not None:
            limit = found.room_bytes / unit_bytes
            axes.axhline(limit, label=f"limit: {size(found.room_bytes)}", **_LIMIT)
        axes.set(xlabel=name, ylabel=unit)
        axes.legend(fontsize=8)

    _save(path, draw)


def _save(path: Path, draw: Callable[[Any], None], width: float = 8.0) -> None:
    """Write what `draw` draws on matplotlib's axes; the suffix is the format."""
    from matplotlib.figure import Figure  # opens no window, unlike pyplot

    figure = Figure((width, 4.0), layout="constrained")
    draw(figure.subplots())
    with open_output(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())


def _unit_of(most_bytes: float) -> tuple[str, int]:
    """Return the unit of an axis, and its bytes."""
    return next((each for each in _UNITS.items() if most_bytes >= each[1]), ("B", 1))


def _draw_peaks(axes: Any, settings: Sequence[Setting]) -> None:
    from matplotlib.patches import Patch

    most_bytes = max(
        *(spread[1] for s in settings for name in _PEAKS if (spread := s.spread(name))),
        *(sum(_last_oom(setting)) for setting in settings),
        0,
    )
    unit, unit_bytes = _unit_of(most_bytes)
    bar = 0.4
    for at, (attribute, label) in zip((-bar / 2, bar / 2), _PEAKS.items(), strict=True):
        for i, setting in enumerate(settings):
            value, spread = setting.typical(attribute), setting.spread(attribute)
            if value is None or spread is None:
                continue
            height, is_early = value / unit_bytes, setting.ended_early
            colour = _COLOURS[label]
            (drawn,) = axes.bar(i + at, height, bar, color=colour, edgecolor=colour)
            if is_early:
                drawn.set(facecolor="white", hatch="///")
            text = f"≥ {height:.3g}" if is_early else f"{height:.3g}"
            axes.annotate(text, (i + at, height), (0, 3), bbox=_READABLE, **_LABEL)
            if spread[0] != spread[1]:
                low, high = (abs(value - bound) / unit_bytes for bound in spread)
                axes.errorbar(i + at, height, [[low], [high]], ecolor="black", capsize=4)
    for i, setting in enumerate(settings):
        if _is_near(_limit(setting), most_bytes):
            axes.hlines(_limit(setting) / unit_bytes, i - bar, i + bar, **_LIMIT)
        reserved, requested = (value / unit_bytes for value in _last_oom(setting))
        if requested:
            top = reserved + requested  # the failed request, on top of the reserved bytes
            axes.vlines(i, reserved, top, color=_OUT_OF_MEMORY, linewidth=2)
            axes.plot(i, top, "x", **_FAILED)
            axes.annotate("out of memory", (i, top), (0, 6), color=_OUT_OF_MEMORY, **_LABEL)
    axes.set_xticks(range(len(settings)), [_name(setting) for setting in settings], fontsize=8)
    axes.set_ylabel(unit)
    axes.margins(y=0.15)
    handles = [Patch(color=_COLOURS[name], label=f"peak {name}") for name in _PEAKS.values()]
    if any(setting.ended_early for setting in settings):
        label = "ended out of memory:\npeaks are lower bounds"
        handles.append(Patch(facecolor="white", edgecolor="grey", hatch="///", label=label))
    if limit_bytes := max(map(_limit, settings)):
        above = "" if _is_near(limit_bytes, most_bytes) else "\n(above the picture)"
        handles += axes.plot([], [], label=f"limit: {size(limit_bytes)}{above}", **_LIMIT)
    outside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
    axes.legend(handles=handles, fontsize=8, **outside)


def _last_oom(setting: Setting) -> tuple[float, float]:
    """Return the bytes reserved and requested when memory ran out; zeros: it did not run out."""
    reserved = setting.typical("oom_reserved_bytes")
    return reserved or 0.0, setting.typical("oom_requested_bytes") or 0.0


def _limit(setting: Setting) -> int:
    """Return the bytes that the allocator could reserve; 0: unknown."""
    return round(setting.typical("limit_bytes") or 0)


def _is_near(limit_bytes: int, most_bytes: float) -> bool:
    """Return whether a line at the limit leaves the rest of the picture readable."""
    return 0 < limit_bytes <= 2 * most_bytes


def _name(setting: Setting) -> str:
    name = wrapped_name(setting.name, _NAME_WIDTH)
    runs, known = setting.out_of_memory_runs
    if not setting.measured:
        return f"{name}\n(unknown)"
    return f"{name}\nout of memory in {runs} of {known}" if runs else name
