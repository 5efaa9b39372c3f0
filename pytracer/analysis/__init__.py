"""Answers from a snapshot: reports, usage over time, call sites, comparisons.

    from pytracer.analysis import compare_snapshots, replay, stats
    from pytracer.reading import load

    snapshot = load("snapshot.pickle")
    report = stats(snapshot)                       # the figures of `pytracer show --all`
    history = replay(snapshot, device=0)           # usage after every event, life of every block
    explanations = explain(snapshot)               # the last out-of-memory, or the peak
    difference = compare_snapshots(load("baseline.pickle"), snapshot)

Nothing here imports torch or needs a device. The names are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytracer.analysis.diff import Difference, compare_snapshots
    from pytracer.analysis.explanation import Explanation, explain
    from pytracer.analysis.groups import Held, who_holds
    from pytracer.analysis.history import ContradictionError, History, Lifetimes, Usage, replay
    from pytracer.analysis.holders import Site, sites_at
    from pytracer.analysis.leaks import LeakReport, find_leaks
    from pytracer.analysis.pinned_segments import Fragmentation, fragmentation
    from pytracer.analysis.report import DeviceReport, Report, stats
    from pytracer.analysis.usage import UsageSample, UsageSeries

__all__ = [
    "ContradictionError",
    "DeviceReport",
    "Difference",
    "Explanation",
    "Fragmentation",
    "Held",
    "History",
    "LeakReport",
    "Lifetimes",
    "Report",
    "Site",
    "Usage",
    "UsageSample",
    "UsageSeries",
    "compare_snapshots",
    "explain",
    "find_leaks",
    "fragmentation",
    "replay",
    "sites_at",
    "stats",
    "who_holds",
]

_MODULES = {
    "diff": ("Difference", "compare_snapshots"),
    "explanation": ("Explanation", "explain"),
    "pinned_segments": ("Fragmentation", "fragmentation"),
    "groups": ("Held", "who_holds"),
    "history": ("ContradictionError", "History", "Lifetimes", "Usage", "replay"),
    "holders": ("Site", "sites_at"),
    "leaks": ("LeakReport", "find_leaks"),
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
