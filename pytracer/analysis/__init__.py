"""Answers from a snapshot: reports, usage over time, call sites, comparisons.

    from pytracer.analysis import compare_snapshots, replay, stats
    from pytracer.reading import load

    snapshot = load("snapshot.pickle")
    report = stats(snapshot)                       # what `pytracer stats --json` prints
    history = replay(snapshot, device=0)           # usage after every event, life of every block
    difference = compare_snapshots(load("baseline.pickle"), snapshot)

Nothing here imports torch or needs a device. The names are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytracer.analysis.call_sites import Site, sites_at, sites_at_end
    from pytracer.analysis.diff import Difference, compare_snapshots
    from pytracer.analysis.history import ContradictionError, History, Lifetimes, Usage, replay
    from pytracer.analysis.report import DeviceReport, Report, stats
    from pytracer.analysis.usage import UsageSample, UsageSeries

__all__ = [
    "ContradictionError",
    "DeviceReport",
    "Difference",
    "History",
    "Lifetimes",
    "Report",
    "Site",
    "Usage",
    "UsageSample",
    "UsageSeries",
    "compare_snapshots",
    "replay",
    "sites_at",
    "sites_at_end",
    "stats",
]

_MODULES = {
    "call_sites": ("Site", "sites_at", "sites_at_end"),
    "diff": ("Difference", "compare_snapshots"),
    "history": ("ContradictionError", "History", "Lifetimes", "Usage", "replay"),
    "report": ("DeviceReport", "Report", "stats"),
    "usage": ("UsageSample", "UsageSeries"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
