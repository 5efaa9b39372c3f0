"""The plot of a comparison; matplotlib draws it, which need not be there."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.comparison import Comparison, Setting
from pytracer.comparison_report import folded_name, out_of_memory_runs
from pytracer.errors import ConfigError, PytracerError
from pytracer.reading.snapshot import Column

SUFFIXES = (".png", ".svg", ".pdf")

Curve = tuple[Column, Column, Column]
"""How full a device was: x, which rises, reserved bytes and allocated bytes, of equal length."""

MAX_POINTS = 4000
"""Of a curve that is drawn."""

_PEAKS = {"peak_reserved_bytes": "reserved", "peak_allocated_bytes": "allocated"}
_COLOURS = {"reserved": "#b8c4d6", "allocated": "#3b6ea5"}
_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_NAME_WIDTH = 24


def check_plot(path: Path) -> None:
    """Whether a plot can be drawn into the file, before anything is run.

    Raises:
        ConfigError: Its name does not end in a format's, or its directory is not there.
        PytracerError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path} is no name of a plot: it has to end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no directory {path.parent} to write the plot into")
    if importlib.util.find_spec("matplotlib") is None:
        raise PytracerError(
            "a plot takes matplotlib, which is not installed: `pip install 'torch-pytracer[plot]'`"
        )


def plot(comparison: Comparison, path: Path, curves: Mapping[str, Curve] | None = None) -> None:
    """Draws the peaks of each setting, with their range over its runs; over them its curves.

    Args:
        comparison: What to draw.
        path: Where; its suffix says in which format.
        curves: How full the device was under each setting, by its name. None: no panel of these.

    Raises:
        PytracerError: The file cannot be written, or `check_plot` refuses it.
    """
    check_plot(path)
    from matplotlib.figure import Figure  # draws into files alone: no window, no global state

    settings = comparison.settings
    width = max(6.0, 1.5 + 1.7 * len(settings))
    figure = Figure((width, 8.0 if curves else 4.0), layout="constrained")
    axes = figure.subplots(2 if curves else 1, squeeze=False)[:, 0]
    _draw_peaks(axes[-1], settings)
    if curves:
        _draw_curves(axes[0], curves)
    try:
        figure.savefig(path)
    except OSError as error:
        raise PytracerError(f"cannot write {path}: {error.strerror}") from error


def _draw_peaks(axes: Any, settings: Sequence[Setting]) -> None:
    known = [s.spread(name) for s in settings for name in _PEAKS]
    unit, unit_bytes = _unit(max((spread[1] for spread in known if spread), default=0))
    bar = 0.4
    for at, (attribute, label) in zip((-bar / 2, bar / 2), _PEAKS.items(), strict=True):
        drawn = [
            (i + at, value, spread)
            for i, setting in enumerate(settings)
            if (value := setting.typical(attribute)) is not None
            and (spread := setting.spread(attribute)) is not None
        ]
        positions = [x for x, _, _ in drawn]
        heights = [value / unit_bytes for _, value, _ in drawn]
        bars = axes.bar(positions, heights, bar, color=_COLOURS[label], label=f"peak {label}")
        axes.bar_label(bars, [f"{height:.3g}" for height in heights], padding=3, fontsize=8)
        if any(low < high for _, _, (low, high) in drawn):
            errors = (
                [(value - low) / unit_bytes for _, value, (low, _) in drawn],
                [(high - value) / unit_bytes for _, value, (_, high) in drawn],
            )
            axes.errorbar(positions, heights, errors, fmt="none", ecolor="black", capsize=4)
    axes.set_xticks(range(len(settings)), [_name(setting) for setting in settings], fontsize=8)
    axes.set_ylabel(unit)
    axes.margins(y=0.3)
    axes.legend(fontsize=8, loc="upper center", ncols=2)


def _draw_curves(axes: Any, curves: Mapping[str, Curve]) -> None:
    unit, unit_bytes = _unit(
        max(int(reserved.max(initial=0)) for _, reserved, _ in curves.values())
    )
    for name, curve in curves.items():
        x, *levels = thinned(curve)
        colour = None
        for level, label, style in zip(levels, _PEAKS.values(), ("-", ":"), strict=True):
            (line,) = axes.step(
                x, level / unit_bytes, style, where="post", color=colour, label=f"{name}, {label}"
            )
            colour = line.get_color()
    axes.set_ylabel(unit)
    axes.set_xlabel("request")
    axes.legend(fontsize=8)


def thinned(curve: Curve) -> Curve:
    """A curve of `MAX_POINTS` or fewer: each stands for those up to the next, with their most."""
    x, reserved, allocated = curve
    if len(x) <= MAX_POINTS:
        return curve
    first = np.linspace(0, len(x), MAX_POINTS, endpoint=False).astype(np.intp)
    return x[first], np.maximum.reduceat(reserved, first), np.maximum.reduceat(allocated, first)


def _unit(most_bytes: float) -> tuple[str, int]:
    return next((each for each in _BYTES if most_bytes >= each[1]), _BYTES[-1])


def _name(setting: Setting) -> str:
    """Below its bars, with what the bars do not show."""
    name = folded_name(setting.name, _NAME_WIDTH)
    runs, of = out_of_memory_runs(setting)
    if not setting.measured:
        return f"{name}\n(not known)"
    return f"{name}\nout of memory in {runs} of {of}" if runs else name
